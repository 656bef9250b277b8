// Package sim is the transport provider for one process: a seeded, repeatable network with faults (sim.h).
package sim

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror -fno-strict-aliasing
#include "sim.h"
*/
import "C"

import (
	"embed"

	_ "github.com/rackweave/rackweave/cgo/fabric/base"
)

// See package base.
//
//go:embed *.h
var _ embed.FS
