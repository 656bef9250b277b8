//go:build !amd64

package lab

// tscKHz is of no use here: the lab boots no guests on this machine.
func tscKHz() uint64 { return 0 }
