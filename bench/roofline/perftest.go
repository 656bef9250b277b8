package roofline

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/rackweave/rackweave/bench/internal/command"
	"github.com/rackweave/rackweave/bench/report"
)

// ErrPerftestMissing is wrapped by errors that name the command which installs perftest.
var ErrPerftestMissing = errors.New("perftest is not installed")

// Perftest measures RDMA writes in both directions between two processes of this host, with perftest's ib_write_bw.
//
// # What an exchange has of it, and where the rest goes
//
// Measured in the lab: one guest of 2 emulated processors (QEMU 7.2, TCG), Linux 6.1, soft-RoCE; 2 workers, 2 cores, 4 queue
// pairs, chunks of 32 KiB, 16 MB a worker, gradients in registered memory; ib_write_bw with 4 queue pairs in turn with it. The
// host had 2 processors and other work, so rates in turn say little: 72 to 76 % while the guest had nearly both processors
// throughout, anything from 39 to 108 % otherwise. Packets per second of the host's processor time vary less: 85 % of
// ib_write_bw's (median of 8 runs, 75 to 96 %). In parts of the guest's processor time:
//
//	~75 %   what soft-RoCE does for ib_write_bw, too: copies, checksums, acknowledgements, the doorbell's system call
//	4-7 %   a worker waits for a sum and a core for a gradient at the same time: idle. ib_write_bw waits for nobody
//	5-6 %   sums, copies and bookkeeping in user mode (12-14 % from ordinary memory, which a worker copies); ib_write_bw 1.5 %
//	~5 %    the Go runtime's monitor, which wakes every 20 us while cores are in calls: an emulated timer is dear. It was 13 %
//	        until guests got coarse timers (highres=off)
//	~8 %    the kernel beyond what it does for ib_write_bw: receives, completion events, and switching between five busy
//	        threads of three processes where ib_write_bw has two that never leave their processor
//
// With all in one process (--procs=false) it is 87 to 97 % of ib_write_bw's packets per processor time; SCHED_BATCH and a
// single core are worse. An answer's doorbell carries 7 requests.
type Perftest struct {
	Device string // as in /sys/class/infiniband
	Bytes  uint32 // of a message: the exchange's chunk
	QPs    int    // queue pairs: one per worker and core
	// Seconds that are measured, at least 1.
	Seconds int
}

// PerftestRow is a row of perftest's table of results. GB/s are of both directions together in a bidirectional test.
type PerftestRow struct {
	Bytes      uint64  `json:"bytes"`
	Iterations uint64  `json:"iterations"`
	PeakGBs    float64 `json:"peak_gbs"`
	GBs        float64 `json:"gbs"`
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
	if p.Device == "" || p.Bytes == 0 || p.QPs < 1 || p.Seconds < 1 {
		return fail(fmt.Errorf("%d bytes, %d queue pairs, %d seconds: a device, and at least 1 of each is needed", p.Bytes, p.QPs,
			p.Seconds))
	}
	binary, err := exec.LookPath("ib_write_bw")
	if err != nil {
		return fail(fmt.Errorf("%w: install it: apt-get install -y perftest", ErrPerftestMissing))
	}
	dir, err := os.MkdirTemp("", "rackweave-perftest-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	port, err := freePort()
	if err != nil {
		return fail(err)
	}
	printed, err := p.run(ctx, dir, append([]string{binary}, p.args(port)...))
	if err != nil {
		return fail(err)
	}
	row, err := p.row(printed)
	if err != nil {
		return fail(err)
	}
	return report.Roofline{Name: "ib_write_bw", GBs: row.GBs}, nil
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

// row returns the result of the one size that was asked for.
func (p Perftest) row(printed string) (PerftestRow, error) {
	rows, err := ParsePerftest(printed)
	if err != nil {
		return PerftestRow{}, err
	}
	row := rows[0]
	if row.Bytes != uint64(p.Bytes) {
		return PerftestRow{}, fmt.Errorf("the result is of %d bytes, not of %d", row.Bytes, p.Bytes)
	}
	// perftest does not fail when no message ended in the measured time.
	if !(row.GBs > 0) || math.IsInf(row.GBs, 0) {
		return PerftestRow{}, fmt.Errorf("nothing was moved in %d s: the device may be slow, measure for longer", p.Seconds)
	}
	return row, nil
}

// ParsePerftest reads the table that a perftest bandwidth test prints, in any of its units. It returns at least one row or an
// error. perftest's MB/s are of 2^20 bytes, whatever its version calls them.
func ParsePerftest(printed string) ([]PerftestRow, error) {
	var rows []PerftestRow
	var unit float64 // bytes per second of one, in 1e9; 0: the table has not begun
	for line := range strings.Lines(printed) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "#bytes"):
			var err error
			if unit, err = perftestUnit(line); err != nil {
				return nil, err
			}
		case unit == 0 || line == "" || line[0] < '0' || line[0] > '9':
			// before the table, a rule, or a remark
		default:
			row, err := perftestRow(line, unit)
			if err != nil {
				return nil, err
			}
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("perftest printed no result: %.200q", strings.TrimSpace(printed))
	}
	return rows, nil
}

func perftestUnit(header string) (float64, error) {
	_, rest, _ := strings.Cut(header, "BW average[")
	unit, _, closed := strings.Cut(rest, "]")
	switch {
	case !closed:
		return 0, fmt.Errorf("perftest's table has no average bandwidth: %.200q", header)
	case unit == "Gb/sec":
		return 1.0 / 8, nil
	case unit == "MB/sec" || unit == "MiB/sec":
		return (1 << 20) / 1e9, nil
	}
	return 0, fmt.Errorf("perftest's bandwidth is in %q: Gb/sec, MB/sec and MiB/sec are known", unit)
}

// perftestRow reads size, iterations, peak and average. The rest is not needed, and may have a warning glued to it.
func perftestRow(line string, unit float64) (PerftestRow, error) {
	var row PerftestRow
	if n, err := fmt.Sscan(line, &row.Bytes, &row.Iterations, &row.PeakGBs, &row.GBs); err != nil {
		return PerftestRow{}, fmt.Errorf("row of perftest's table, field %d of %.200q: %w", n+1, line, err)
	}
	row.PeakGBs *= unit
	row.GBs *= unit
	return row, nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("finding a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
