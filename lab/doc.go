// Package lab boots test racks: QEMU guests with soft-RoCE devices, joined by virtual wires, on a machine that needs neither
// RDMA hardware nor privileges nor KVM.
//
// A guest runs a stock distribution kernel, fetched as a package and cached under $XDG_CACHE_HOME/rackweave/lab, and mounts
// the host's root file system read-only over 9p. So every library, tool and test binary of the host is in the guest, at the
// same path; only /tmp and /run are the guest's own (a host path below those is at [GuestPath]). One directory is shared
// read-write: [Guest.Dir] on the host, [SharedDir] in the guest.
//
//	hosts, err := lab.Pair.Configs() // two, on one wire
//	rack, err := lab.BootAll(ctx, hosts...)
//	defer rack.Close()
//	server := rack.Guests[1].Start("ib_write_bw -d rxe0")
//	out, err := rack.Guests[0].Run(ctx, "ib_write_bw -d rxe0 "+rack.Guests[1].Addr(0))
//
// Every NIC of a guest is called nic0, nic1, … and carries a soft-RoCE device rxe0, rxe1, …; a NIC without a wire is a dummy
// interface, on which RDMA reaches only itself. [Guest.SetLink] pulls a cable and plugs it in, [Guest.Kill] pulls the power
// cord, and tc's netem in the guest loses packets.
//
// A guest dies with its deadline, with [Guest.Close] and with the process that booted it, whichever comes first, and leaves
// nothing behind. What the guest's kernel complains of (BUG, WARNING, Oops, panic) is an error of [Guest.Close].
//
// Time in a guest is a software emulator's: figures taken there are good only as ratios within one run, and on a busy host a
// guest stands still now and then, so give what runs there seconds where hardware needs milliseconds.
//
// Environment: RACKWEAVE_LAB_KERNEL names another kernel package (linux-image-6.12-amd64); RACKWEAVE_LAB_ACCEL=kvm uses KVM,
// which is not the default because a /dev/kvm that opens is no proof that it works.
//
// `go run ./lab/cmd/lab shell` gives a person a shell in a guest.
package lab
