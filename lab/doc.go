// Package lab boots test racks: QEMU guests with soft-RoCE devices, joined by virtual wires, on a machine that needs neither
// RDMA hardware nor privileges nor KVM.
//
// A guest runs a stock distribution kernel, fetched as a package and cached under $XDG_CACHE_HOME/rackweave/lab, and mounts
// the host's root file system read-only over 9p. Every library, tool and test binary of the host is therefore in the guest, at the
// same path. Only /tmp and /run are the guest's own ([GuestPath] gives the path of host files there). One directory is shared
// read-write: [Guest.Dir] on the host, [SharedDir] in the guest.
//
//	hosts, err := lab.Pair.Configs() // two, on one wire
//	rack, err := lab.BootAll(ctx, hosts...)
//	defer rack.Close()
//	server := rack.Guests[1].Start("ib_write_bw -d rxe0")
//	out, err := rack.Guests[0].Run(ctx, "ib_write_bw -d rxe0 "+rack.Guests[1].Addr(0))
//
// The NICs of a guest are nic0, nic1, … and carry the soft-RoCE devices rxe0, rxe1, …. A NIC without a wire is a dummy interface,
// on which RDMA reaches only itself. [Guest.SetLink] pulls a cable and plugs it in, [Guest.Kill] pulls the power cord, and tc's
// netem in the guest loses packets.
//
// A guest ends at its deadline, with [Guest.Close] or with the process that booted it, whichever comes first, and leaves nothing
// behind. [Guest.Close] returns the complaints of the guest's kernel (BUG, WARNING, Oops, panic) as an error.
//
// Time in a guest is that of a software emulator. Figures are good only as ratios within one run. On a busy host a guest stands
// still now and then: give programs there seconds where hardware needs milliseconds.
//
// Environment: RACKWEAVE_LAB_KERNEL names another kernel package (linux-image-6.12-amd64); RACKWEAVE_LAB_ACCEL=kvm uses KVM,
// which is not the default because a /dev/kvm that opens does not prove that it works.
//
// `go run ./lab/cmd/lab shell` gives a person a shell in a guest.
package lab
