// Package tcp is the transport provider for hosts without RDMA (tcp.h).
package tcp

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror -fno-strict-aliasing
#include "tcp.h"
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
