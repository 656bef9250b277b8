package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/rxe"
)

func rxeCommand() *cobra.Command {
	return printing(&cobra.Command{
		Use:   "rxe up|down [netdev]",
		Short: "Make or remove soft-RoCE: RDMA in software on a network device (default: that of the default route), as root",
		Example: `  rackweave rxe up
  rackweave rxe up eth0 --json
  rackweave rxe down eth0`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 || args[0] != "up" && args[0] != "down" {
				return fmt.Errorf("%s: use up or down, and at most one network device", strings.Join(append([]string{"rxe"}, args...), " "))
			}
			return nil
		},
	}, func(cmd *cobra.Command, args []string) (_ any, _ func(io.Writer), err error) {
		devices := make([]rxe.Device, 1)
		if netdev := append(args, "")[1]; args[0] == "up" {
			devices[0], err = rxe.Add(cmd.Context(), netdev)
		} else {
			devices, err = rxe.Remove(netdev)
		}
		return devices, func(w io.Writer) {
			for _, d := range devices {
				fmt.Fprintf(w, "%s on %s: %s\n", d.Name, d.NetDev, d.State)
			}
		}, err
	})
}
