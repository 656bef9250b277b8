// Package include holds the C header of librackweave.
package include

import "embed"

// The go command does not see the headers of another package. As part of this one, the header makes what includes it be built anew.
//
//go:embed rackweave.h
var _ embed.FS
