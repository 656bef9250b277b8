package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/doctor"
	"github.com/rackweave/rackweave/numa"
)

// servingURL returns the URL of an aggregator that lasts as long as the test.
func servingURL(t *testing.T) string {
	t.Helper()
	var where struct{ URL string }
	if err := json.Unmarshal([]byte(serving(t, "--json")), &where); err != nil {
		t.Fatal(err)
	}
	return where.URL
}

// serving runs `serve` until the test ends and returns its first line of output.
func serving(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := root()
	out, in := io.Pipe()
	cmd.SetOut(in)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(append([]string{"serve", "--listen", "127.0.0.1:0"}, args...))
	ended := make(chan error, 1)
	go func() {
		err := cmd.ExecuteContext(ctx)
		in.CloseWithError(io.EOF)
		ended <- err
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("serve: %v", err)
			}
		case <-time.After(2 * time.Minute):
			t.Error("serve did not end")
		}
	})
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, lines)
	return line
}

func TestServeSaysWhereItIsAndStatusAnswers(t *testing.T) {
	line := serving(t, "--json")
	var said struct {
		URL       string
		Providers []string
	}
	if err := json.Unmarshal([]byte(line), &said); err != nil || len(said.Providers) == 0 {
		t.Fatalf("%v: %s", err, line)
	}
	out, err := run(t, "status", "--server", said.URL, "--json")
	if err != nil {
		t.Fatal(err)
	}
	var status struct {
		Version string
		Engines []struct {
			Provider string
			Lanes    []map[string]any
		}
		Jobs []any
	}
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	if len(status.Engines) != len(said.Providers) || len(status.Engines[0].Lanes) == 0 || len(status.Jobs) != 0 {
		t.Errorf("status %+v of an idle aggregator serving %v", status, said.Providers)
	}
	if out, err = run(t, "status", "--server", said.URL); err != nil || !strings.Contains(out, "lane 0") {
		t.Errorf("%v:\n%s", err, out)
	}
	for path, want := range map[string]int{"/metrics": http.StatusOK, "/debug/pprof/": http.StatusForbidden} {
		answer, err := http.Get(said.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s: %s", path, answer.Status)
		}
	}
}

func TestADrainedAggregatorEndsWhenItsJobsHave(t *testing.T) {
	url := strings.TrimSuffix(strings.Fields(serving(t, "--providers", "tcp"))[2], ";")
	out, err := run(t, "drain", "--server", url, "--json")
	if err != nil || strings.Join(strings.Fields(out), "") != `{"jobs":0}` {
		t.Fatalf("%v: %s", err, out)
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := net.Dial("tcp", strings.TrimPrefix(url, "http://")); err != nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal("it still listens")
		}
	}
}

func TestServeForAPersonSaysWhereItIs(t *testing.T) {
	line := serving(t, "--providers", "tcp", "--unpinned")
	if !strings.HasPrefix(line, "listening on http://127.0.0.1:") || !strings.HasSuffix(line, "; transports tcp\n") {
		t.Errorf("it said %q", line)
	}
}

func TestTheBenchmarkRunsAsAJobThatIsListed(t *testing.T) {
	url := strings.TrimSuffix(strings.Fields(serving(t, "--providers", "tcp", "--unpinned", "--jobs-file",
		file(t, "jobs", "resnet=SECRET\n")))[2], ";")
	args := []string{"bench", "--server", url, "--provider", "tcp", "--workers", "2", "--bytes", "4KiB", "--iters",
		"1", "--no-roofline"}
	fails(t, args, "may not run here", "use the name of a job")
	if out, err := run(t, append(args, "--job", "resnet", "--token-file", file(t, "token", "SECRET\n"))...); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestATakenPortIsNamedWithTheRemedy(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fails(t, []string{"serve", "--listen", l.Addr().String()}, l.Addr().String(), "address already in use", "give another address")
}

func TestTopoPrintsJSON(t *testing.T) {
	out, err := run(t, "topo", "--json", "--cores", "1")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Topology struct{ Nodes, CPUs []any }
		Lanes    []any
		Chunks   int
		LaneLoad []laneLoad `json:"lane_load"`
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	if len(got.Topology.Nodes) == 0 || len(got.Topology.CPUs) == 0 || len(got.Lanes) != 1 || len(got.LaneLoad) != 1 ||
		got.LaneLoad[0].Chunks != got.Chunks {
		t.Errorf("%+v", got)
	}
	if text, err := run(t, "topo"); err != nil || !strings.Contains(text, "chunk map of resnet50") {
		t.Errorf("%v:\n%s", err, text)
	}
}

func TestTopoThatCannotBePrintedIsAnError(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	cmd := root()
	cmd.SetOut(full)
	cmd.SetArgs([]string{"topo"})
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("error %v, want no space left", err)
	}
}

func TestServeOnAllAddressesNamesThoseThatReachIt(t *testing.T) {
	line := serving(t, "--listen", ":0", "--insecure", "--providers", "tcp", "--json")
	var said struct {
		URL  string
		URLs []string
	}
	if err := json.Unmarshal([]byte(line), &said); err != nil || len(said.URLs) == 0 || said.URLs[len(said.URLs)-1] != said.URL {
		t.Fatalf("%v: %s", err, line)
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip := a.(*net.IPNet).IP; ip.IsGlobalUnicast() && !strings.Contains(line, "//"+ip.String()+":") &&
			!strings.Contains(line, "//["+ip.String()+"]:") {
			t.Errorf("%v is not among %v", ip, said.URLs)
		}
	}
	for _, url := range said.URLs {
		if out, err := run(t, "status", "--server", url); err != nil {
			t.Errorf("%s: %v %s", url, err, out)
		}
	}
}

func TestTopoMapsTheDevicesThatServeTakes(t *testing.T) {
	up, down := numa.Port{State: "ACTIVE"}, numa.Port{State: "DOWN"}
	device := func(name string, ports ...numa.Port) numa.RDMADevice {
		return numa.RDMADevice{Device: numa.Device{Name: name}, Ports: ports}
	}
	a, b, c := device("a", down), device("b", up), device("c")
	for _, tc := range []struct {
		here []numa.RDMADevice
		want string
	}{
		{[]numa.RDMADevice{a, b, c}, "b"},
		{[]numa.RDMADevice{a, c}, "a c"},
		{nil, ""},
	} {
		if got := strings.Join(servedByDefault(tc.here), " "); got != tc.want {
			t.Errorf("of %v: %q, want %q", tc.here, got, tc.want)
		}
	}
}

func TestDoctorPrintsFindingsWithRemedies(t *testing.T) {
	out, err := run(t, "doctor", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var findings []doctor.Finding
	if err := json.Unmarshal([]byte(out), &findings); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	told := map[string]bool{}
	for _, f := range findings {
		told[f.Check] = true
		if f.Detail == "" || f.Level == doctor.LevelWarn && f.Remedy == "" {
			t.Errorf("finding %+v lacks a detail or a remedy", f)
		}
	}
	for _, p := range []string{"provider ibv", "provider shm", "provider tcp"} {
		if !told[p] {
			t.Errorf("no finding on %s:\n%s", p, out)
		}
	}
	if text, err := run(t, "doctor"); err != nil || !strings.Contains(text, "provider shm") {
		t.Errorf("%v:\n%s", err, text)
	}
}
