package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/keys"
)

func tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make and list the tokens by which jobs join an aggregator that other hosts reach",
		Long: `Make and list the tokens by which jobs join an aggregator that other hosts reach. Run it as the aggregator's user on its host.
Only a token's digest is kept; a running aggregator knows a new one within a second.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var dir string
	keysFlag(cmd.PersistentFlags(), &dir)
	open := func() (*keys.Keys, error) { return keys.Open(cmp.Or(dir, keys.Folder())) }
	cmd.AddCommand(tokenMakeCommand(open), tokenListCommand(open), tokenFingerprintCommand(open))
	return cmd
}

func keysFlag(f *pflag.FlagSet, dir *string) {
	f.StringVar(dir, "keys", "", "folder of the certificate and tokens that are made (default "+keys.Folder()+")")
}

func tokenMakeCommand(open func() (*keys.Keys, error)) *cobra.Command {
	var from string
	var t keys.Token
	cmd := printing(&cobra.Command{
		Use:   "make JOB",
		Short: "Make a token for a job, and print it",
		Long: `Make a token for a job, and print it. With --from the token is one that was made elsewhere: the aggregators of several racks take
the same token of a job.`,
		Example: `  rackweave token make resnet
  rackweave token make resnet --from resnet.token
  rackweave token make resnet --max-workers 8 --max-memory 8589934592 --weight 2`,
		Args: oneArg("JOB"),
	}, func(cmd *cobra.Command, args []string) (any, func(io.Writer), error) {
		t.Job = args[0]
		if err := service.CheckJobName(t.Job); err != nil {
			return nil, nil, err
		}
		if t.Weight < 0 || t.Weight > aggregate.MaxWeight {
			return nil, nil, fmt.Errorf("--weight %d: use 1 to %d", t.Weight, aggregate.MaxWeight)
		}
		if t.Workers < 0 || t.MemoryBytes < 0 {
			return nil, nil, fmt.Errorf("--max-workers %d, --max-memory %d: use 1 or more, or 0 for what the aggregator gives", t.Workers,
				t.MemoryBytes)
		}
		k, err := open()
		if err != nil {
			return nil, nil, err
		}
		token := ""
		if from == "" {
			token, err = k.Make(t)
		} else if token, err = readToken(cmd.InOrStdin(), from); err == nil {
			err = k.Take(t, token)
		}
		return map[string]string{"job": t.Job, "token": token}, says("%s", token), err
	})
	cmd.Flags().StringVar(&from, "from", "", "file with a token that was made elsewhere (-: standard input)")
	cmd.Flags().IntVar(&t.Workers, "max-workers", 0, "most workers of the job; if 0, what the aggregator gives")
	cmd.Flags().Int64Var(&t.MemoryBytes, "max-memory", 0, "most bytes of memory of the job; if 0, what the aggregator gives")
	cmd.Flags().IntVar(&t.Weight, "weight", 0, "the job's share of the lanes against others'; if 0, 1")
	return cmd
}

// readToken reads a token from a file.
func readToken(in io.Reader, from string) (string, error) {
	var text []byte
	var err error
	if from == "-" {
		text, err = io.ReadAll(io.LimitReader(in, maxConfigBytes))
	} else {
		text, err = readConfig(from)
	}
	if err != nil {
		return "", fmt.Errorf("read a token: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

func tokenListCommand(open func() (*keys.Keys, error)) *cobra.Command {
	return printing(&cobra.Command{
		Use:     "list",
		Short:   "List the jobs that have tokens, with what they may have",
		Example: `  rackweave token list --json`,
	}, func(cmd *cobra.Command, _ []string) (any, func(io.Writer), error) {
		k, err := open()
		if err != nil {
			return nil, nil, err
		}
		all, err := k.List()
		return all, func(out io.Writer) {
			w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "job\tmade\tworkers\tmemory\tweight\tdigest")
			for _, t := range all {
				fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d\t%.12s\n", t.Job, t.Made.Format(time.DateTime), t.Workers,
					report.Size(uint64(t.MemoryBytes)), max(t.Weight, 1), t.SHA256)
			}
			w.Flush()
		}, err
	})
}

func tokenFingerprintCommand(open func() (*keys.Keys, error)) *cobra.Command {
	return printing(&cobra.Command{
		Use:   "fingerprint",
		Short: "Print the fingerprint of the aggregator's certificate, which is made if it is missing",
		Long: `Print the fingerprint of the aggregator's certificate, which is made if it is missing: as ca in a cluster's file, before the
aggregators are started, and for --ca.`,
		Example: `  rackweave token fingerprint`,
	}, func(cmd *cobra.Command, _ []string) (any, func(io.Writer), error) {
		k, err := open()
		if err != nil {
			return nil, nil, err
		}
		cert, err := k.Certificate()
		if err != nil {
			return nil, nil, err
		}
		fingerprint := api.Fingerprint(cert.Certificate[0])
		return map[string]string{"fingerprint": fingerprint}, says("%s", fingerprint), nil
	})
}
