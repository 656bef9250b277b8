package roofline

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

func TestParsePerftest(t *testing.T) {
	datadriven.RunTest(t, "testdata/perftest.txt", func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd != "parse" {
			d.Fatalf(t, "unknown command %q", d.Cmd)
		}
		gbs, err := small.rate(d.Input)
		if err != nil {
			return "error: " + err.Error() + "\n"
		}
		return fmt.Sprintf("%.6g GB/s\n", gbs)
	})
}

func FuzzParsePerftest(f *testing.F) {
	f.Add(" #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n 32768 5000 1.5 1.25 0.1\n")
	f.Add(" #bytes BW average[Gb/sec]\n0 0 nan -inf\n")
	f.Fuzz(func(t *testing.T, printed string) {
		if gbs, err := small.rate(printed); (err == nil) != (gbs > 0) {
			t.Errorf("%v GB/s with error %v", gbs, err)
		}
	})
}

// tool puts an ib_write_bw into the path that is a shell script: $client is 1 in the client, and $DIR is for both.
func tool(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	text := "#!/bin/sh\nDIR=" + dir + "\nclient=0\nfor a in \"$@\"; do [ \"$a\" = 127.0.0.1 ] && client=1; done\n" + script
	if err := os.WriteFile(filepath.Join(dir, "ib_write_bw"), []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// conversation: the client is refused until the server listens, and the server ends after the client.
const conversation = `
if [ $client = 0 ]; then echo "$@" >$DIR/args; sleep 0.3; touch $DIR/listens; until [ -e $DIR/done ]; do sleep 0.05; done; exit; fi
[ -e $DIR/listens ] || { echo "Couldn't connect" >&2; exit 1; }
touch $DIR/done
echo ' #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]'
`

var small = Perftest{Device: "rxe0", Bytes: 32768, QPs: 4, Seconds: 2}

func TestPerftestWaitsForItsServer(t *testing.T) {
	tool(t, conversation+"echo ' 32768 5000 0.0 80.0 0.3'")
	got, err := small.Measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "ib_write_bw" || got.GBs != 10 {
		t.Errorf("roofline = %+v, want 80 Gb/s as 10 GB/s", got)
	}
	args, err := os.ReadFile(filepath.Join(filepath.SplitList(os.Getenv("PATH"))[0], "args"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"-d rxe0", "-s 32768", "-q 4", "-b", "--report_gbits", "-D 4 -f 1"} {
		if !strings.Contains(string(args), want) {
			t.Errorf("arguments %q, want %q among them", args, want)
		}
	}
}

func TestPerftestThatFails(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"server":     {"echo IB device rxe0 not found >&2; exit 1", "IB device rxe0 not found"},
		"other size": {conversation + "echo ' 65536 5000 0.0 80.0 0.3'", "65536 bytes, not of 32768"},
		"nothing":    {conversation + "echo ' 32768 0 0.0 0.0 0.0'", "nothing was moved"},
		"nan":        {conversation + "echo ' 32768 0 0.0 nan 0.0'", "nothing was moved"},
		"-nan":       {conversation + "echo ' 32768 0 0.0 -nan 0.0'", "field 4"},
		"no table":   {`[ $client = 1 ] && echo hello; exit 0`, "no result"},
	} {
		t.Run(name, func(t *testing.T) {
			tool(t, c.script)
			if _, err := small.Measure(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error = %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestPerftestEndsWithItsContext(t *testing.T) {
	tool(t, "[ $client = 1 ] && exit 1; sleep 60")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err := small.Measure(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error = %v, want %v", err, context.DeadlineExceeded)
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("it took %v", took)
	}
}

func TestMissingPerftestNamesItsPackage(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := small.Measure(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "perftest is not installed: install it: apt-get install -y perftest") {
		t.Errorf("error = %v, want what installs perftest", err)
	}
}

func TestPerftestOnADevice(t *testing.T) {
	devices, err := os.ReadDir("/sys/class/infiniband")
	if err != nil || len(devices) == 0 {
		t.Skip("this machine has no RDMA device: run it in a lab guest")
	}
	p := Perftest{Device: devices[0].Name(), Bytes: 32768, QPs: 2, Seconds: 3}
	got, err := p.Measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %.3f GB/s", p.Device, got.GBs)
}
