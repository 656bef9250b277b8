package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/rxe"
)

func rxeCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
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
		RunE: func(cmd *cobra.Command, args []string) error {
			devices, err := switchRxe(cmd, args[0] == "up", append(args, "")[1])
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), devices)
			}
			for _, d := range devices {
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s on %s: %s\n", d.Name, d.NetDev, d.State); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func switchRxe(cmd *cobra.Command, up bool, netdev string) ([]rxe.Device, error) {
	if !up {
		return rxe.Remove(netdev)
	}
	d, err := rxe.Add(cmd.Context(), netdev)
	return []rxe.Device{d}, err
}
