// Package ibv is the transport provider for RDMA NICs and soft-RoCE, by way of libibverbs (ibv.h).
package ibv

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror -fno-strict-aliasing
#cgo LDFLAGS: -ldl
#include "ibv.h"
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
