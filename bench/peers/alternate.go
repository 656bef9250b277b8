package peers

import (
	"context"
	"fmt"
	"io"

	"github.com/rackweave/rackweave/bench/report"
)

// Ours runs one round of our side of a comparison.
type Ours func(ctx context.Context) (report.Times, error)

// Alternate compares ours with peers on the exchange of spec, in rounds: ours, each peer, ours again and so on, so that the
// machine's other work affects all of them. The result names a peer that cannot run here, the reason, and the command that
// installs it. A peer that fails a round takes part in the next; a failure of ours ends the comparison, as the end of ctx does.
// With that error comes the result of the whole rounds before it, without contenders if there were none. Its progress goes to
// out, if that is not nil.
//
// The caller fills in Machine and Note.
func Alternate(ctx context.Context, ours Ours, peers []*Peer, spec Spec, rounds int, out io.Writer) (report.Comparison, error) {
	if rounds < 1 {
		return report.Comparison{}, fmt.Errorf("a comparison of %d rounds: at least 1 is needed", rounds)
	}
	result := report.Comparison{Workers: spec.Workers, Bytes: spec.Bytes, DType: spec.DType, Rounds: rounds,
		Missing: map[string]string{}}
	var present []*Peer
	for _, peer := range peers {
		switch err := peer.Probe(ctx); {
		case ctx.Err() != nil:
			return report.Comparison{}, context.Cause(ctx)
		case err != nil:
			result.Missing[peer.Name] = err.Error()
		default:
			present = append(present, peer)
		}
	}
	progress := report.NewProgress(out, "compare", rounds*(1+len(peers)))
	var mine []report.Times
	theirs := make([][]report.Times, len(present))
	failures := make([]error, len(present))
	for round := range rounds {
		times, err := ours(ctx)
		if err != nil {
			return result, fmt.Errorf("round %d of ours: %w", round+1, err)
		}
		mine = append(mine, times)
		progress.Add(1)
		for i, peer := range present {
			times, err := peer.Run(ctx, spec)
			if ctx.Err() != nil {
				return result, fmt.Errorf("round %d of %s: %w", round+1, peer.Name, context.Cause(ctx))
			}
			if err != nil {
				times, failures[i] = report.Times{Name: peer.Name}, err
			}
			theirs[i] = append(theirs[i], times)
			progress.Add(1)
		}
		result.Rounds, result.Contenders = round+1, []report.Contender{report.NewContender(mine, mine, nil)}
		for i := range present {
			result.Contenders = append(result.Contenders, report.NewContender(theirs[i], mine, failures[i]))
		}
	}
	return result, nil
}
