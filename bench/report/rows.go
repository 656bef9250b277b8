package report

import (
	"fmt"
	"slices"
)

// Rows is the traffic of exchanges of the rows of an embedding that workers touch.
type Rows struct {
	Rows    int `json:"rows"`
	Touched int `json:"touched"` // by each worker in an exchange
	// Union is the mean number of rows that any worker touches in an exchange.
	Union float64 `json:"union"`
	// Sent and Received are those of one worker in one exchange.
	Sent     RowBytes `json:"sent"`
	Received RowBytes `json:"received"`
	// Lanes has the rows that all workers push to each lane in an exchange.
	Lanes []float64 `json:"lanes"`
}

// RowBytes is bytes of a direction, and what the rows and their numbers take alone.
type RowBytes struct {
	Bytes uint64 `json:"bytes"`
	Least uint64 `json:"least"`
}

func (b RowBytes) String() string {
	return fmt.Sprintf("%d B, %.4f of rows and their numbers", b.Bytes, float64(b.Bytes)/float64(max(b.Least, 1)))
}

// Busiest returns the rows of the busiest lane over the mean of all.
func (r *Rows) Busiest() float64 {
	total := 0.0
	for _, n := range r.Lanes {
		total += n
	}
	return slices.Max(r.Lanes) * float64(len(r.Lanes)) / max(total, 1)
}

func (r *Rows) String() string {
	share := func(n float64) float64 { return 100 * n / float64(r.Rows) }
	return fmt.Sprintf("of %d rows a worker touches %d (%.3g%%), all together %.0f (%.3g%%); it sends %v, and receives %v; the busiest of "+
		"%d lanes has %.3f of the mean", r.Rows, r.Touched, share(float64(r.Touched)), r.Union, share(r.Union), r.Sent, r.Received,
		len(r.Lanes), r.Busiest())
}
