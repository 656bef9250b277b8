package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/bench/learn"
	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/policy"
)

func learnCommand() *cobra.Command {
	var cfg learn.Config
	var policies, clusters []string
	var to study
	cmd := &cobra.Command{
		Use:   "learn",
		Short: "Measure what synchronization policies do to learning, and plot it",
		Long: `Measure what synchronization policies do to learning, in virtual time but for one study, and plot it:

  rates     pushes in a time, under SSP, LagTuner's three readings and ASP
  policies  time to a loss under every policy, on a mixed cluster and with random stragglers
  lagtuner  the same on clusters of one to three speeds, as LagTuner was published
  ssp       SSP with bounds from 3 to 15
  switch    Strategy-Switch from 10 to 90 % and by the loss: speed-up and accuracy, over 5 folds
  racks     racks that train on their own and meet every few steps: time to a loss, and what crosses a slow core
  real      by the clock: through an aggregator over shared memory, with workers that sleep, beside the simulation

A small network learns handwritten digits. Every gradient is computed for real, on the parameters that its worker had; how long a
step takes is drawn. A cluster is the step times of its workers, "1,1,3,3"; "1,1,1,1~0.05" lets one step in twenty take five
times as long. The policies are ` + strings.Join(policy.Names(), ", ") + `.`,
		Example: `  rackweave bench learn --svg figures
  rackweave bench learn --only switch --seeds 10 --json -
  rackweave bench learn --policy ssp:s=8 --policy lagtuner:sl=3,su=15,reading=loose --cluster 1,1,2,4`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, s := range policies {
				p, err := policy.Parse(s)
				if err != nil {
					return err
				}
				cfg.Policies = append(cfg.Policies, p)
			}
			for _, s := range clusters {
				c, err := learn.ParseCluster(s)
				if err != nil {
					return err
				}
				cfg.Clusters = append(cfg.Clusters, c)
			}
			if err := cfg.Check(); err != nil {
				return err
			}
			if err := to.check(); err != nil {
				return err
			}
			cfg.Progress = func(label string, total int) *report.Progress {
				return report.NewProgress(cmd.ErrOrStderr(), label, total)
			}
			all, err := learn.Learn(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			return to.write(cmd, &all)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&cfg.Only, "only", nil, "what to study (default: all): "+strings.Join(learn.Names(), ", "))
	f.IntVar(&cfg.Seeds, "seeds", 5, "runs of each kind, with seeds from 1 on")
	f.StringArrayVar(&policies, "policy", nil, "a policy to study instead, beside bsp; may be given several times")
	f.StringArrayVar(&clusters, "cluster", nil,
		"a cluster to study instead, as the step times of its workers; may be given several times")
	to.flags(f, "learn-NAME.svg")
	return cmd
}
