package roofline

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/rackweave/rackweave/bench/internal/command"
	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/launch"
)

// Perftest measures RDMA writes in both directions between two processes of this host, with perftest's ib_write_bw.
//
// Over soft-RoCE in the lab's guests an exchange moves 85 % of its packets per second of processor time. The rest goes into waits
// of workers and cores for each other, sums and copies in user mode, and switches between five threads where ib_write_bw has two.
type Perftest struct {
	Device  string // as in /sys/class/infiniband
	Bytes   uint32 // of a message: the exchange's chunk
	QPs     int    // queue pairs: one per worker and core
	Seconds int    // that are measured
}

const (
	// settle is the seconds at each end of a test that perftest is told not to count.
	settle = 1
	// setup is the most that connecting may take: perftest registers memory and brings up queue pairs first.
	setup = 20 * time.Second
	retry = 100 * time.Millisecond
)

// Measure runs perftest's server and client.
func (p Perftest) Measure(ctx context.Context) (report.Roofline, error) {
	fail := func(err error) (report.Roofline, error) {
		return report.Roofline{}, fmt.Errorf("ib_write_bw on %s: %w", p.Device, err)
	}
	binary, err := exec.LookPath("ib_write_bw")
	if err != nil {
		return fail(errors.New("perftest is not installed: install it: apt-get install -y perftest"))
	}
	dir, err := os.MkdirTemp("", "rackweave-perftest-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	port, err := launch.FreePort()
	if err != nil {
		return fail(err)
	}
	printed, err := p.run(ctx, dir, append([]string{binary}, p.args(port)...))
	if err != nil {
		return fail(err)
	}
	gbs, err := p.rate(printed)
	if err != nil {
		return fail(err)
	}
	return report.Roofline{Name: "ib_write_bw", GBs: gbs}, nil
}

func (p Perftest) args(port int) []string {
	return []string{
		"-d", p.Device, "-s", strconv.FormatUint(uint64(p.Bytes), 10), "-q", strconv.Itoa(p.QPs), "-p", strconv.Itoa(port),
		"-b", "-F", "--report_gbits", "-D", strconv.Itoa(p.Seconds + 2*settle), "-f", strconv.Itoa(settle),
	}
}

// run starts the server, and then the client until it connects: it is refused while the server does not listen yet.
func (p Perftest) run(ctx context.Context, dir string, server []string) (string, error) {
	limit := setup + time.Duration(p.Seconds+2*settle)*time.Second
	ctx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		_, err := command.Run(ctx, limit, dir, server)
		ended <- err
	}()
	client := append(append([]string{}, server...), "127.0.0.1")
	for {
		printed, err := command.Run(ctx, limit, dir, client)
		if err == nil {
			return string(printed), <-ended
		}
		select {
		case serverErr := <-ended:
			return "", errors.Join(serverErr, err)
		case <-ctx.Done():
			<-ended
			return "", errors.Join(context.Cause(ctx), err)
		case <-time.After(retry):
		}
	}
}

// rate returns the rate in GB/s, of both directions together, from the table that ib_write_bw --report_gbits prints. It reads size,
// iterations, peak and average of the row. The rest may have a warning glued to it.
func (p Perftest) rate(printed string) (float64, error) {
	_, table, found := strings.Cut(printed, "BW average[Gb/sec]")
	_, table, _ = strings.Cut(table, "\n")
	if table = strings.TrimSpace(table); !found || table == "" || table[0] < '0' || table[0] > '9' {
		return 0, fmt.Errorf("no result in Gb/sec was printed: %.200q", strings.TrimSpace(printed))
	}
	var bytes, iterations uint64
	var peak, average float64
	if n, err := fmt.Sscan(table, &bytes, &iterations, &peak, &average); err != nil {
		return 0, fmt.Errorf("field %d of the result %.200q: %w", n+1, table, err)
	}
	if bytes != uint64(p.Bytes) {
		return 0, fmt.Errorf("the result is of %d bytes, not of %d", bytes, p.Bytes)
	}
	// perftest does not fail when no message ended in the measured time.
	if !(average > 0) || math.IsInf(average, 0) {
		return 0, fmt.Errorf("nothing was moved in %d s: the device may be slow, measure for longer", p.Seconds)
	}
	return average / 8, nil
}
