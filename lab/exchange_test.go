package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// program builds the one binary for a guest.
func program(t *testing.T, g *Guest) string {
	t.Helper()
	return build(t, g, "rackweave", "build", "github.com/rackweave/rackweave/cmd/rackweave")
}

// small is a benchmark that recomputes everything in plain Go.
const small = "--bytes 1MB --workers 2 --iters 2 --warmup 1 --optimizer sgd_torch --verify --no-roofline"

// exchange runs a benchmark in the guest and returns the checksum of the final parameters, which plain Go must confirm.
func exchange(t *testing.T, g *Guest, flags string) string {
	t.Helper()
	const file = SharedDir + "/result.json"
	out, err := g.Run(within(t, patience), program(t, g)+" bench --json "+file+" "+flags)
	if err != nil {
		t.Fatalf("%s: %v\n%s", flags, err, out)
	}
	return checksum(t, filepath.Join(g.Dir(), "result.json"), flags)
}

// exchangeOnHost does the same as exchange on this machine.
func exchangeOnHost(t *testing.T, g *Guest, flags string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "result.json")
	cmd := exec.CommandContext(within(t, patience), filepath.Join(g.Dir(), "rackweave"),
		append([]string{"bench", "--json", file}, strings.Fields(flags)...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", flags, err, out)
	}
	return checksum(t, file, flags)
}

func checksum(t *testing.T, file, flags string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var result struct {
		Wrong     int
		Verified  bool
		Checksum  string
		Reference string `json:"reference_checksum"`
	}
	if err := json.Unmarshal(text, &result); err != nil {
		t.Fatalf("%s: %v\n%s", flags, err, text)
	}
	if result.Wrong != 0 || !result.Verified || result.Checksum == "" || result.Checksum != result.Reference {
		t.Fatalf("%s: plain Go does not confirm it: %+v", flags, result)
	}
	return result.Checksum
}

// sameBitsOverRDMA exchanges within one guest over every transport.
func sameBitsOverRDMA(t *testing.T, g *Guest) {
	want := exchange(t, g, small+" --provider shm")
	for _, provider := range []string{"ibv", "tcp"} {
		if got := exchange(t, g, small+" --provider "+provider); got != want {
			t.Errorf("%s: checksum %s, over shm %s", provider, got, want)
		}
	}
}

// resNet50 exchanges a whole model over RDMA in the guest, and over the other transports on this machine, which is faster.
func resNet50(t *testing.T, g *Guest) {
	if os.Getenv("RACKWEAVE_LONG") == "" {
		t.Skip("RACKWEAVE_LONG is not set: an emulated processor takes a minute for 100 MB")
	}
	const flags = "--model resnet50 --workers 2 --iters 1 --warmup 1 --optimizer sgd_torch --hyper momentum=0.9 --verify --no-roofline"
	got := exchange(t, g, flags+" --provider ibv")
	for _, provider := range []string{"shm", "tcp"} {
		if want := exchangeOnHost(t, g, flags+" --provider "+provider); got != want {
			t.Errorf("checksum %s, over %s %s", got, provider, want)
		}
	}
}

// twoHostsExchange exchanges between an aggregator in one guest and workers in another, over RDMA, over TCP, and over RDMA while
// packets are lost.
func twoHostsExchange(t *testing.T, aggregator, worker *Guest) {
	serve(t, aggregator, "ibv", "--insecure --listen :7077")
	url := fmt.Sprintf("http://%s:7077", aggregator.Addr(0))
	untilItServes(t, worker, url)
	flags := small + " --provider ibv --server " + url
	want := exchange(t, worker, flags)
	serve(t, aggregator, "tcp", "--insecure --listen :7080")
	overTCP := fmt.Sprintf("http://%s:7080", aggregator.Addr(0))
	untilItServes(t, worker, overTCP)
	if got := exchange(t, worker, small+" --provider tcp --server "+overTCP); got != want {
		t.Errorf("over tcp: checksum %s, over ibv %s", got, want)
	}
	for _, g := range []*Guest{aggregator, worker} {
		run(t, g, "tc qdisc add dev nic0 root netem loss 1%")
		defer run(t, g, "tc qdisc del dev nic0 root")
	}
	if got := exchange(t, worker, flags); got != want {
		t.Errorf("with 1%% of the packets lost: checksum %s, without %s", got, want)
	}
}
