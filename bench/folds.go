package bench

import (
	"bufio"
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// folds are what an aggregator's lanes say of themselves, by lane and metric.
type folds map[string]map[string]float64

// foldTimes reads the aggregator's metrics for a replay. They only explain the time, so that nothing fails without them: of an
// aggregator behind TLS or a proxy there may be none.
func (r *Runner) foldTimes(ctx context.Context, s *Spec, server string) folds {
	if !s.Replay || r.Enter != nil { // elsewhere the aggregator may have another address, or none
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/metrics", nil)
	if err != nil {
		return nil
	}
	request.Close = true
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil
	}
	defer answer.Body.Close()
	f := folds{}
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		f.add(lines.Text())
	}
	return f
}

// add takes a line such as rackweave_lane_chunks_total{lane="0",…} 12.
func (f folds) add(line string) {
	name, rest, labelled := strings.Cut(line, "{")
	metric, ours := strings.CutPrefix(name, "rackweave_lane_")
	end := strings.LastIndex(rest, "} ")
	if !labelled || !ours || end < 0 {
		return
	}
	v, err := strconv.ParseFloat(rest[end+2:], 64)
	if err != nil {
		return
	}
	lane := rest[:end]
	if f[lane] == nil {
		f[lane] = map[string]float64{}
	}
	f[lane][metric] = v
}

// until returns the seconds that the busiest lane spent on sums and optimizer until later: of the sampled chunks, times all chunks
// over those.
func (f folds) until(later folds) (busiest float64) {
	for lane, now := range later {
		grew := func(metric string) float64 { return now[metric] - f[lane][metric] }
		if sampled := grew("sampled_chunks_total"); sampled > 0 {
			busiest = max(busiest, grew("sampled_fold_seconds_total")*grew("chunks_total")/sampled)
		}
	}
	return busiest
}
