package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/client"
)

func reshapeCommand() *cobra.Command {
	var cfg client.Config
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "reshape SHAPE",
		Short: "Have the racks of a running job reduce in another shape, without changing a bit",
		Long: `Have the racks of a running job reduce in another shape. All racks hold for a moment, agree on the epoch at which each chunk
turns, and go on. The shape's owners must be those of the present one, as optimizer state stays where it is: sharded and pods.
The job is of mode eager or aggregate, and its racks have no buddies. If some racks turn and others do not answer, the job fails.
The links, which shape auto goes by, change the job's shape no more.`,
		Example: `  rackweave reshape --server http://aggregator-a:7077 --token ADMIN --job resnet pods`,
		Args:    oneArg("SHAPE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			was, err := client.Reshape(cmd.Context(), cfg, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), map[string]string{"was": was, "shape": args[0]})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "job %s: %s, and was %s\n", cfg.Job, args[0], was)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Server, "server", "http://127.0.0.1:7077", "URL of one of the job's aggregators")
	f.StringVar(&cfg.CA, "ca", "", "file with the certificates to trust, or sha256:FINGERPRINT, for https")
	jobFlag(cmd, &cfg.Job)
	f.StringVar(&cfg.Token, "token", "", "the aggregator's admin token, where it has one")
	f.DurationVar(&cfg.Timeout, "timeout", 20*time.Second, "how long to wait for the answer")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
