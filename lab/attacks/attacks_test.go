package attacks

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/rackweave/rackweave/lab/binary"
)

var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "attacks-")
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		program, err = binary.Build(ctx, dir)
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

// testAttacks measures what attacks do to their victims where there is time.
func testAttacks(t *testing.T, all []Attack) {
	pairs := 0
	if os.Getenv("RACKWEAVE_LONG") != "" {
		pairs = 9
	}
	for _, c := range all {
		t.Run(c.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
			defer cancel()
			report, err := c.Beside(ctx, program, pairs)
			if err != nil {
				t.Error(err)
			}
			if report != "" {
				t.Log(report)
			}
		})
	}
}

func TestStrangersHurtNobody(t *testing.T) { testAttacks(t, Strangers) }

func TestTenantsHurtNobody(t *testing.T) { testAttacks(t, Tenants(t.TempDir())) }

func TestALogThatNobodyReadsStopsNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	url, end, err := startUnread(ctx, program)
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
