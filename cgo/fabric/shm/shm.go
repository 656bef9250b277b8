// Package shm is the transport provider for processes of one host (shm.h).
package shm

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror -fno-strict-aliasing
#include "shm.h"
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
