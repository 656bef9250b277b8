package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

func doctorCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check what of this machine's settings helps or hinders, each finding with its remedy",
		Example: `  rackweave doctor
  rackweave doctor --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			top, err := numa.Discover("")
			if err != nil {
				return err
			}
			limits, err := numa.ReadLimits(0)
			if err != nil {
				return err
			}
			findings := append(numa.Findings(top, limits), providerFindings()...)
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), findings)
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, f := range findings {
				fmt.Fprintf(w, "%s\t%s\t%s\n", f.Level, f.Check, f.Detail)
				if f.Remedy != "" {
					fmt.Fprintf(w, "\t\t→ %s\n", f.Remedy)
				}
			}
			return w.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// providerFindings reports which transports work here, by opening them.
func providerFindings() []numa.Finding {
	var out []numa.Finding
	for _, p := range []string{verbs.ProviderIBV, verbs.ProviderSHM, verbs.ProviderTCP} {
		f := numa.Finding{Check: "provider " + p, Level: numa.LevelOK}
		d, err := verbs.Open(p, "", "")
		if err != nil {
			f.Level, f.Detail = numa.LevelInfo, err.Error()
		} else {
			a := d.Attr()
			f.Detail = fmt.Sprintf("device %s: queue pairs of %d work requests, completion queues of %d", a.Name, a.MaxQPWR, a.MaxCQE)
			if err := d.Close(); err != nil {
				f.Level, f.Detail = numa.LevelWarn, err.Error()
			}
		}
		out = append(out, f)
	}
	return out
}
