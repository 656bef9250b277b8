package attacks

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"
)

var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "attacks-")
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		binary, err = Build(ctx, dir)
		cancel()
	}
	code := 1
	if err == nil {
		code = m.Run()
		err = os.RemoveAll(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// beside runs an attack on an aggregator of its own while a victim's job exchanges gradients, and checks that it changed nothing.
func beside(t *testing.T, flags []string, attack func(context.Context, *Aggregator) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	a, err := Start(ctx, binary, flags...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Stop(); err != nil {
			t.Errorf("%v\n%s", err, a.log.Bytes())
		}
	}()
	v, err := Join(ctx, a.URL, "victim", "victim's", "tcp")
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	before, alone := v.Rounds(0)
	if err := attack(ctx, a); err != nil {
		t.Error(err)
	}
	if page, err := a.Metrics(ctx); err != nil || page == "" {
		t.Errorf("metrics: %v", err)
	}
	after, attacked := v.Rounds(before)
	if next, err := Join(ctx, a.URL, "next", "", "tcp"); err != nil {
		t.Errorf("a new job: %v", err)
	} else if err := next.Leave(); err != nil {
		t.Errorf("a new job: %v", err)
	}
	if err := v.Leave(); err != nil {
		t.Error(err)
	}
	if err := a.Recovers(256 << 20); err != nil {
		t.Error(err)
	}
	t.Logf("the victim's p99: %v alone in %d rounds, %v attacked in %d", alone, before, attacked, after-before)
}

type attack struct {
	name string
	run  func(context.Context, *Aggregator) error
}

var (
	strangers = []attack{
		{"register as nobody", RegisterAsNobody},
		{"bodies that inflate", InflateWithoutEnd},
		{"large bodies", LargeBodies},
		{"an endless profile", EndlessProfile},
		{"admin calls", AdminCalls},
		{"deep bodies", DeepBodies},
		{"many connections", ManyConnections},
		{"closed windows", ClosedWindows},
		{"garbage", Garbage},
		{"rapid resets", RapidResets},
		{"headers without end", HeadersWithoutEnd},
		{"pings and settings", PingsAndSettings},
		{"slow bodies", SlowBodies},
		{"large heads", LargeHeads},
		{"pipelined", Pipelined},
		{"the data path", DataPath},
	}
	tenants = []attack{
		{"absent workers", AbsentWorkers},
		{"half jobs", HalfJobs},
		{"never attach", NeverAttach},
		{"empty tensors", EmptyTensors},
		{"guessed sessions", GuessSessions},
		{"another's token", OthersToken},
		{"a flood of barriers", BarrierFlood},
		{"half closed", HalfClosed},
	}
)

func TestStrangersHurtNobody(t *testing.T) {
	for _, c := range strangers {
		t.Run(c.name, func(t *testing.T) { beside(t, nil, c.run) })
	}
}

func TestTenantsStayWithinTheirQuota(t *testing.T) {
	beside(t, []string{"--max-job-memory", fmt.Sprint(512 << 20)}, HugeTensors)
}

func TestTenantsHurtNobody(t *testing.T) {
	for _, c := range tenants {
		t.Run(c.name, func(t *testing.T) { beside(t, nil, c.run) })
	}
}

func TestALogThatNobodyReadsStopsNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	url, end, err := startUnread(ctx, binary)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	for range 20 {
		v, err := Join(ctx, url, "victim", "", "tcp")
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Leave(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTenantsOfALaneHurtNobody(t *testing.T) {
	for _, c := range []struct {
		name   string
		attack func(context.Context, *Aggregator) error
	}{
		{"commits while tensors are registered", CommitWhileRegistering},
		{"tensors registered one by one", RegisterOneByOne},
		{"a flood of chunks", FloodLanes},
		{"ends in the middle", DieAmidAll},
	} {
		t.Run(c.name, func(t *testing.T) { beside(t, nil, c.attack) })
	}
}
