package report

import "testing"

func TestRowsAreReportedBesideTheirLeastBytes(t *testing.T) {
	r := Rows{Rows: 1_000_000, Touched: 10_000, Union: 39_404, Sent: RowBytes{2_640_000, 2_600_000}, Received: RowBytes{Bytes: 7},
		Lanes: []float64{30, 10}}
	const want = "of 1000000 rows a worker touches 10000 (1%), all together 39404 (3.94%); it sends 2640000 B, 1.0154 of rows and their " +
		"numbers, and receives 7 B, 7.0000 of rows and their numbers; the busiest of 2 lanes has 1.500 of the mean"
	if got := r.String(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
