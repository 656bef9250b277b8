package quota

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestEveryJobLeavesRoomForTheNext(t *testing.T) {
	l := New(Amounts{Memory: 1 << 30})
	last := int64(1 << 30)
	for range 10 {
		a := l.Open(nil)
		n := a.Limit(Memory)
		if n < last/leaves-leaves || n >= last {
			t.Fatalf("a job may have %d of %d", n, last)
		}
		if err := a.Charge(Amounts{Memory: n}); err != nil {
			t.Fatal(err)
		}
		if err := a.Charge(Amounts{Memory: leaves}); !errors.Is(err, ErrExceeded) {
			t.Fatalf("beyond its limit: %v", err)
		}
		last -= n
	}
}

// TestAccountsAgreeWithAList charges at random, and keeps beside it a list of all that was charged.
func TestAccountsAgreeWithAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := Amounts{Memory: 1000, "doors": 10}
		l := New(total)
		type charge struct {
			account int
			x       Amounts
		}
		var accounts []*Account
		limits := []Amounts{nil, {Memory: 300}, {"doors": 2, "windows": 3}}
		for _, limit := range limits {
			accounts = append(accounts, l.Open(limit))
		}
		var list []charge
		sum := func(account int, name string) (n int64) { // of all for -1
			for _, c := range list {
				if account < 0 || c.account == account {
					n += c.x[name]
				}
			}
			return n
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(list) > 0 && rapid.Bool().Draw(t, "return") {
				i := rapid.IntRange(0, len(list)-1).Draw(t, "which")
				accounts[list[i].account].Return(list[i].x)
				list = slices.Delete(list, i, i+1)
				continue
			}
			c := charge{rapid.IntRange(0, len(accounts)-1).Draw(t, "account"), Amounts{}}
			for name, most := range map[string]int{Memory: 400, "doors": 4, "windows": 4} {
				if n := rapid.IntRange(0, most).Draw(t, name); n > 0 {
					c.x[name] = int64(n)
				}
			}
			fits := true
			for name, n := range c.x {
				has, all := sum(c.account, name), sum(-1, name)
				if free := total[name] - all + has; total[name] > 0 && has+n > free-free/leaves {
					fits = false
				}
				if limit := limits[c.account][name]; limit > 0 && has+n > limit {
					fits = false
				}
			}
			if err := accounts[c.account].Charge(c.x); (err == nil) != fits {
				t.Fatalf("charge %v with %v there: %v, want it to fit: %v", c, list, err, fits)
			}
			if fits {
				list = append(list, c)
			}
		}
		for i, a := range accounts {
			for name, n := range a.Used() {
				if n != sum(i, name) {
					t.Fatalf("account %d has %d %s, want %d", i, n, name, sum(i, name))
				}
			}
			a.Close()
		}
		for name, n := range maps.All(l.used) {
			if n != 0 {
				t.Fatalf("%d %s are left", n, name)
			}
		}
	})
}

// What was charged to an account that has passed on a part is not given back twice.
func TestAnAccountPassesOnWhatIsKept(t *testing.T) {
	l := New(Amounts{Memory: 800, "regions": 8})
	a := l.Open(nil)
	call := Amounts{Memory: 100}
	for _, x := range []Amounts{{Memory: 200, "regions": 3}, call} {
		if err := a.Charge(x); err != nil {
			t.Fatal(err)
		}
	}
	kept := a.PassOn(Memory, 50)
	a.Return(call) // it was under way
	a.Close()
	if err := a.Charge(call); err == nil {
		t.Error("the account that was passed on takes charges")
	}
	if used := kept.Used(); used[Memory] != 50 || used["regions"] != 0 {
		t.Errorf("passed on: %v", used)
	}
	if most := l.Open(nil).Limit(Memory); most != 750-750/leaves {
		t.Errorf("another may have %d bytes beside 50", most)
	}
	kept.Close()
	if most := l.Open(nil).Limit(Memory); most != 800-800/leaves {
		t.Errorf("another may have %d bytes of 800", most)
	}
}
