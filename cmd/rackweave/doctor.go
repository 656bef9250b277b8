package main

import (
	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/doctor"
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
			findings, err := doctor.Examine()
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), findings)
			}
			return doctor.Write(cmd.OutOrStdout(), findings)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
