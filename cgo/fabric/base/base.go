// Package base holds the transport contract in C (fabric.h) and the code that its providers share (provider.h).
package base

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror -fno-strict-aliasing
#cgo LDFLAGS: -lpthread
#include "provider.h"
*/
import "C"

import "embed"

// The go command does not see the headers of another package. Headers embedded in this one rebuild the packages that include them.
//
//go:embed *.h
var _ embed.FS
