package data

import (
	"fmt"
	"io"
	"slices"
)

// published are the figures of the thesis' tables 6.3, 6.5 and 6.6 for its validation, of thesisRuns trainings of ResNet-56v1 with
// 12 asynchronous workers: means and what it calls variances, in all likelihood standard deviations. aware stands for clusters by
// what rows look like.
var published = []struct {
	set, way                   string
	accuracy, sd, loss, spread float64
	ours                       string // the way with as many groups for each class
}{
	{"CIFAR-10", "random", .935489, .000863, .442370, .006174, ""},
	{"CIFAR-10", "stratified", .935396, .000284, .444076, .005401, "stratified"},
	{"CIFAR-10", "aware, k=20", .935291, .000648, .445127, .004059, "aware, k=20"},
	{"CIFAR-10", "aware, k=30", .935885, .000550, .442075, .003431, "aware, k=30"},
	{"CIFAR-10", "aware, k=40", .935127, .001358, .441692, .011402, "aware, k=40"},
	{"CIFAR-100, 20 classes", "random", .805993, .004452, 1.216487, .010065, ""},
	{"CIFAR-100, 20 classes", "stratified", .805841, .000728, 1.232794, .006096, "stratified"},
	{"CIFAR-100, 20 classes", "aware, k=30", .806072, .000931, 1.219970, .009967, ""},
	{"CIFAR-100, 20 classes", "aware, k=40", .806237, .002374, 1.211612, .008745, "aware, k=20"},
	{"CIFAR-100, 20 classes", "aware, k=60", .805775, .003009, 1.209313, .021793, "aware, k=30"},
	{"CIFAR-100, 100 classes", "random", .704707, .002222, 1.841267, .026051, ""},
	{"CIFAR-100, 100 classes", "stratified", .708432, .001225, 1.817435, .011633, "stratified"},
	{"CIFAR-100, 100 classes", "aware, k=50", .707048, .004526, 1.835961, .019680, ""},
	{"CIFAR-100, 100 classes", "aware, k=100", .703488, .003561, 1.851682, .015945, "aware, k=10"},
	{"CIFAR-100, 100 classes", "aware, k=200", .708234, .002264, 1.839176, .013421, "aware, k=20"},
}

const thesisRuns = 5

// thesis prints the published figures beside those of a study.
func thesis(s *Study, out io.Writer) error {
	fmt.Fprintf(out, "\n# tables 6.3, 6.5 and 6.6 of the thesis: validation, sd as it gives variances; variances are random's over its, p of an F test "+
		"of %d runs; ours: this study's\n", thesisRuns)
	lines := [][]string{{"data", "way", "accuracy %", "sd", "variance", "p", "ours", "p", "loss", "sd", "variance", "p", "ours", "p"}}
	random := published[0]
	for _, p := range published {
		line := []string{p.set, p.way, fmt.Sprintf("%.2f", 100*p.accuracy), fmt.Sprintf("%.2f", 100*p.sd), "", "", "", "",
			fmt.Sprintf("%.3f", p.loss), fmt.Sprintf("%.4f", p.spread), "", "", "", ""}
		if p.way == "random" {
			random = p
			lines = append(lines, line)
			continue
		}
		ratio := func(at int, its, his float64) {
			f, chance := variances(his*his, its*its, thesisRuns)
			line[at], line[at+1] = fmt.Sprintf("%.2f", f), probability(chance)
		}
		ratio(4, p.sd, random.sd)
		ratio(10, p.spread, random.spread)
		if i := slices.IndexFunc(s.Rows, func(r Row) bool { return r.Way == p.ours }); i > 0 {
			v := s.Rows[i].beside(&s.Rows[0])
			line[6], line[7], line[12], line[13] = fmt.Sprintf("%.2f", v.ratio), probability(v.p), fmt.Sprintf("%.2f", v.lossRatio),
				probability(v.lossP)
		}
		lines = append(lines, line)
	}
	return table(out, lines)
}
