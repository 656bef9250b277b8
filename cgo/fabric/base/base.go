// Package base holds the transport contract in C (fabric.h) and what its providers have in common (provider.h).
package base

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror -fno-strict-aliasing
#cgo LDFLAGS: -lpthread
#include "provider.h"
*/
import "C"

import "embed"

// The go command does not see the headers of another package. Headers that are part of this one make what includes them be
// built anew.
//
//go:embed *.h
var _ embed.FS
