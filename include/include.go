// Package include holds the C headers of librackweave.
package include

import "embed"

// The go command does not see the headers of another package. As part of this one, they make what includes them be built anew.
//
//go:embed *.h
var _ embed.FS
