package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/doctor"
)

func doctorCommand() *cobra.Command {
	return printing(&cobra.Command{
		Use:   "doctor",
		Short: "Check what of this machine's settings helps or hinders, each finding with its remedy",
		Example: `  rackweave doctor
  rackweave doctor --json`,
	}, func(*cobra.Command, []string) (any, func(io.Writer), error) {
		findings, err := doctor.Examine()
		return findings, func(w io.Writer) { doctor.Write(w, findings) }, err
	})
}
