package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rackweave/rackweave/numa"
)

func TestPlanChoosesAShape(t *testing.T) {
	out, err := run(t, "plan", "--racks", "8", "--pods", "2", "--workers", "16", "--link", "25Gb/s", "--core", "4:1",
		"--pod-core", "8:1",
		"--model", "bert-large", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Best   string
		Bytes  float64
		Shapes []struct {
			Shape   string
			Seconds float64
			Unfit   string
			Links   map[string]float64 `json:"bytes_by_link"`
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Best != "pods" || got.Shapes[0].Shape != "pods" || got.Shapes[0].Links["pod uplink"] != got.Bytes {
		t.Errorf("%+v", got)
	}
	if last := got.Shapes[len(got.Shapes)-1]; last.Shape != "spine" || last.Unfit == "" {
		t.Errorf("the shape that does not fit comes as %+v", last)
	}
}

func TestPlanPrintsThePapersTable(t *testing.T) {
	out, err := run(t, "plan", "--table1")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{"ResNet-269", "122   122", "1408  1408", "6.26"} {
		if !strings.Contains(out, row) {
			t.Errorf("no %q in\n%s", row, out)
		}
	}
}

func TestPlanNamesWhatItCannotUse(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--link", "fast"}, `--link "fast" is no rate: write it as 100Gb/s or 12.5GB/s`},
		{[]string{"--racks", "2", "--core", "4:2"}, `--core "4:2" is no oversubscription: write it as 4:1`},
		{[]string{"--racks", "4", "--pods", "3"}, "4 racks in 3 pods"},
		{[]string{"--racks", "0"}, "0 racks of 8 workers"},
		{[]string{"--memory", "-1GB/s"}, `--memory "-1GB/s"`},
		{[]string{"--model", "resnet5"}, "resnet5"},
		{[]string{"--server", "http://a:7077"}, `--server "http://a:7077": without --probe no aggregator is asked: add --probe`},
		{[]string{"--cluster", "c.yaml", "--table1"}, `--cluster "c.yaml": without --probe`},
		{[]string{"--token", "secret"}, `--token: without --probe`},
		{[]string{"--timeout", "2s"}, `--timeout "2s": without --probe`},
		{[]string{"--probe", "--server", "http://a:7077", "--cluster", "c.yaml"},
			`--server "http://a:7077" and --cluster "c.yaml": give one of them`},
		{[]string{"--probe", "--cluster", "none.yaml"}, "read cluster: open none.yaml"},
		{[]string{"--in-rack"}, `--in-rack "true": without --probe`},
		{[]string{"--here", "--probe"}, "--here with --probe: give one of them"},
		{[]string{"--here", "--scale", "1,2"}, "--here with --scale"},
		{[]string{"--probe", "--link", "25Gb/s"}, "--link 25Gb/s: with --probe links are measured: leave it out"},
		{[]string{"--probe", "--rack-latency", "4us"}, "--rack-latency 4µs: with --probe links are measured"},
		{[]string{"--compute", "-5ms"}, "--compute -5ms: use a time of at least 0"},
		{[]string{"--chunk-bytes", "7"}, "--chunk-bytes 7: use a multiple of 64"},
		{[]string{"--price-worker", "NaN"}, "--price-worker NaN: use a finite number"},
		{[]string{"--price-uplink", "-1"}, "--price-uplink -1: use a finite number of at least 0"},
		{[]string{"--racks", "4", "--pod-core", "4:1"}, "--pod-core 4:1 without pods"},
		{[]string{"--core", "4:1"}, "--core 4:1 with one rack"},
		{[]string{"--racks", "2", "--core", "1e308:1"}, `--core "1e308:1" is no oversubscription`},
		{[]string{"--table1", "--table2"}, "--table1 and --table2: give one of them"},
	} {
		if _, err := run(t, append([]string{"plan"}, tc.args...)...); err == nil || !strings.Contains(err.Error(),
			tc.want) {
			t.Errorf("%v: %v, expected %q", tc.args, err, tc.want)
		}
	}
}

func TestPlanPrintsWhatTable2CanBe(t *testing.T) {
	out, err := run(t, "plan", "--table2", "--link", "10Gb/s")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{"alexnet          16000        1309   1712", "1.75   2.70", "117.0 Gb/s"} {
		if !strings.Contains(out, row) {
			t.Errorf("no %q in\n%s", row, out)
		}
	}
}

func TestPlanSimulatesAGrowingCluster(t *testing.T) {
	dir := t.TempDir()
	out, err := run(t, "plan", "--scale", "1,4", "--workers", "4", "--core", "8:1", "--bytes", "10MB", "--price-worker", "2",
		"--svg", dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"racks  workers", "simulated", "    1        4     306", "    4       16     306"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if figure, err := os.ReadFile(filepath.Join(dir, "scale.svg")); err != nil || !strings.Contains(string(figure), "sharded") {
		t.Errorf("the figure: %v, %d bytes", err, len(figure))
	}
	if _, err := run(t, "plan", "--scale", "300", "--workers", "40"); err == nil || !strings.Contains(err.Error(), "at most 10000") {
		t.Errorf("12000 workers: %v", err)
	}
}

// The aggregator that is asked is the first of the cluster's file.
func TestPlanAsksTheClustersFirstAggregator(t *testing.T) {
	var asked atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Store(true)
		http.Error(w, "", http.StatusServiceUnavailable)
	}))
	defer s.Close()
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	for _, tc := range []struct{ url, want string }{{s.URL, s.URL}, {"", `rack "a", the first, has no url: give that of its aggregator`}} {
		text := fmt.Sprintf("secret: a secret of the racks\nracks:\n  - {name: a, url: %q}\n  - {name: b, url: \"http://127.0.0.1:1\"}\n", tc.url)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := run(t, "plan", "--probe", "--cluster", file, "--timeout", "2s")
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("with URL %q: %v, want it to say %q", tc.url, err, tc.want)
		}
	}
	if !asked.Load() {
		t.Error("the first aggregator was not asked")
	}
}

// What is predicted for workers of an aggregator that is alone goes by this host's link to it.
func TestPlanMeasuresTheLinkToAnAggregatorThatIsAlone(t *testing.T) {
	line := serving(t, "--json", "--cores", "1")
	var said struct{ URL string }
	if err := json.Unmarshal([]byte(line), &said); err != nil {
		t.Fatal(err)
	}
	args := []string{"plan", "--probe", "--server", said.URL, "--provider", "tcp", "--workers", "3", "--aggregator-link", "1Tb/s",
		"--bytes", "8MB"}
	out, err := run(t, append(args, "--json")...)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Bytes  float64
		InRack measuredLink `json:"in_rack"` // as in a cluster
		Shapes []struct {
			Bound   float64 `json:"bound_seconds"`
			Fill    float64 `json:"fill_seconds"`
			Binding string
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	l, s := got.InRack, got.Shapes[0]
	if l.Provider != "tcp" || !(l.Up > 0) || !(l.Down > 0) || !(l.UpLatency > 0) || !(l.DownLatency > 0) || l.Note == "" {
		t.Errorf("the link: %+v", l)
	}
	if want := got.Bytes / min(l.Up, l.Down); s.Binding != "worker NIC" || s.Bound < 0.999*want || s.Bound > 1.001*want ||
		s.Fill < 2*max(l.UpLatency, l.DownLatency) {
		t.Errorf("a step of %+v by a link of %+v", s, l)
	}
	if out, err = run(t, args...); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"as measured over tcp in", "\nup ", "\ndown ", "1 rack of 3 workers", "bound by the worker NIC"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestPlanGoesByThisMachine(t *testing.T) {
	out, err := run(t, "plan", "--here", "--workers", "2", "--link", "10Gb/s", "--aggregator-link", "10Gb/s", "--bytes", "10MB",
		"--compute", "1s", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Here    []limit
		OneRack struct{ Workers int } `json:"workers_per_aggregator"`
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	least := 10e9 / 8 // the NIC that the flags name, whatever this machine has
	for _, l := range got.Here {
		switch {
		case l.Of == "memory":
			least = min(least, l.Rate/2) // a gradient crosses it twice
		case l.Of != "NIC" && l.Rate > 0:
			least = min(least, l.Rate)
		}
		if measured := l.Of == "memory" || l.Of == "cores"; measured && !(l.Rate > 1e7) || l.From == "" {
			t.Errorf("%+v", l)
		}
	}
	if want := int(least / 10e6); len(got.Here) != 4 || got.OneRack.Workers < want-1 || got.OneRack.Workers > want+1 {
		t.Errorf("%d workers, want %d, by %+v", got.OneRack.Workers, want, got.Here)
	}
}

// The NICs of an aggregator add up, but the functions of one card have one PCIe link.
func TestNICsAndTheirPCIeLinksAddUp(t *testing.T) {
	device := func(name, pci string, lanes int) numa.RDMADevice {
		return numa.RDMADevice{Name: name, PCI: pci, PCIe: numa.PCIe{Lanes: lanes, GigaTransfer: 16},
			Ports: []numa.Port{{State: "ACTIVE", RateMbps: 100_000}}}
	}
	x16 := float64(numa.PCIe{Lanes: 16, GigaTransfer: 16}.Mbps()) * 1e6 / 8
	a := device("a", "0000:01:00.0", 16)
	for name, tc := range map[string]struct {
		rdma      []numa.RDMADevice
		nics      []numa.NIC
		nic, pcie float64
	}{
		"two cards":      {rdma: []numa.RDMADevice{a, device("b", "0000:02:00.0", 16)}, nic: 25e9, pcie: 2 * x16},
		"one card":       {rdma: []numa.RDMADevice{a, device("b", "0000:01:00.1", 16)}, nic: 25e9, pcie: x16},
		"a link unknown": {rdma: []numa.RDMADevice{a, device("b", "0000:02:00.0", 0)}, nic: 25e9},
		"no cable":       {rdma: []numa.RDMADevice{{Name: "a", Ports: []numa.Port{{State: "DOWN", RateMbps: 100_000}}}}},
		"no RDMA": {nics: []numa.NIC{{Name: "eth0", PCI: "0000:01:00.0", OperState: "up", SpeedMbps: 10_000,
			PCIe: numa.PCIe{Lanes: 16, GigaTransfer: 16}}, {Name: "eth1", OperState: "down", SpeedMbps: 10_000}}, nic: 1.25e9, pcie: x16},
		"nothing": {},
	} {
		got := nicLimits(&numa.Topology{RDMA: tc.rdma, NICs: tc.nics})
		if got[0].Rate != tc.nic || got[1].Rate != tc.pcie {
			t.Errorf("%s: %+v, want %g and %g", name, got, tc.nic, tc.pcie)
		}
	}
}
