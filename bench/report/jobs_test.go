package report

import (
	"math"
	"strings"
	"testing"
)

func TestAJobsShareIsOfItsWeightOrOfWhatItTakesAlone(t *testing.T) {
	for _, tc := range []struct {
		name  string
		alone float64
		jobs  []Job
		want  []float64
		total float64
	}{
		{"equal", 4, []Job{{Weight: 1, GBs: 2}, {Weight: 1, GBs: 2}}, []float64{1, 1}, 1},
		{"starved by a flood", 4, []Job{{Weight: 1, GBs: 1}, {Weight: 1, GBs: 3, Floods: true}}, []float64{0.5, 1.5}, 1},
		{"small beside a flood", 1, []Job{{Weight: 1, GBs: 0.9}, {Weight: 1, GBs: 8.1, Floods: true}}, []float64{0.9, 1.8}, 9},
		{"by weight", 4, []Job{{Weight: 3, GBs: 3}, {Weight: 1, GBs: 1}}, []float64{1, 1}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := Jobs{Alone: Job{GBs: tc.alone, TimeUS: TimeUS{P99: 10}}, Jobs: tc.jobs}
			r.Jobs[0].TimeUS.P99 = 15
			r.Share()
			for i, want := range tc.want {
				if got := r.Jobs[i].Share; math.Abs(got-want) > 1e-9 {
					t.Errorf("job %d has a share of %v, expected %v", i, got, want)
				}
			}
			if math.Abs(r.TotalOverAlone-tc.total) > 1e-9 || r.Jobs[0].P99OverAlone != 1.5 {
				t.Errorf("total %v, expected %v; p99 %v of that alone", r.TotalOverAlone, tc.total, r.Jobs[0].P99OverAlone)
			}
		})
	}
}

func TestJobsArePrintedInRows(t *testing.T) {
	r := Jobs{
		Provider: "shm", Model: "1MB", Workers: 2, Alone: Job{Bytes: 1e6, GBs: 4, TimeUS: TimeUS{P50: 100, P99: 200}},
		Jobs: []Job{
			{Bytes: 1e6, Weight: 1, GBs: 2, TimeUS: TimeUS{P50: 150, P99: 300}, Apart: TimeUS{P50: 130, P99: 240}},
			{Bytes: 16e6, Weight: 1, GBs: 2, TimeUS: TimeUS{P50: 1e3, P99: 2e3}, Floods: true},
		},
	}
	r.Share()
	var b strings.Builder
	WriteJobs(&b, &r)
	_, got, _ := strings.Cut(b.String(), "each\n")
	const want = `#  job           size  weight      rate   share        p50        p99  p99/alone  p99/apart
#                 (B)            (GB/s)               (us)       (us)
 alone        1000000       1     4.000              100.0      200.0
     0        1000000       1     2.000    100%      150.0      300.0       1.50       1.25
 flood       16000000       1     2.000    100%     1000.0     2000.0
# apart: the flood is at another aggregator of this machine, and takes its processors, but not the job's lanes;
#   job 0 takes p50 130.0 us, p99 240.0 us then, 1.20 of alone
# all jobs together move 1.00 of what one moves alone
`
	if got != want {
		t.Errorf("printed\n%s\nexpected\n%s", got, want)
	}
}
