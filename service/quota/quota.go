// Package quota keeps account of what jobs take from a machine. Everything is charged before it is taken, all of a charge or
// nothing.
package quota

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Amounts are of resources by name. Memory is one, in bytes; the machine may have any others.
type Amounts map[string]int64

// Add adds amounts to x.
func (x Amounts) Add(more Amounts) {
	for name, n := range more {
		x[name] += n
	}
}

// Memory is the resource that every machine has.
const Memory = "bytes of memory"

// leaves is the share of what a job finds free that it leaves to the next: one in leaves.
const leaves = 8

// ErrExceeded is wrapped by the errors of charges that are refused.
var ErrExceeded = errors.New("quota exceeded")

// ErrOver is the error of charges to a closed account.
var ErrOver = errors.New("the job is over")

// Ledger is the account of a machine.
type Ledger struct {
	mu    sync.Mutex
	total Amounts // a resource that is not named has no bound
	used  Amounts
}

// New makes the ledger of a machine that has so much.
func New(total Amounts) *Ledger { return &Ledger{total: maps.Clone(total), used: Amounts{}} }

// Add gives the machine more.
func (l *Ledger) Add(more Amounts) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total.Add(more)
}

// Account holds what one job may have and has.
type Account struct {
	l     *Ledger
	limit Amounts // a resource that is not named, or 0: as much as the machine gives
	used  Amounts
	over  bool
}

// Open opens an account. A job without a limit may take all but an eighth of what it finds, so that the next one gets in, too.
func (l *Ledger) Open(limit Amounts) *Account { return &Account{l: l, limit: limit, used: Amounts{}} }

// most returns how much of a resource the account may have in all once others have given so much back, and whether there is a
// bound. The caller holds l.mu.
func (a *Account) most(name string, others int64) (n int64, bounded bool) {
	total, bounded := a.l.total[name]
	if bounded {
		found := total - a.l.used[name] + others + a.used[name]
		n = found - found/leaves
	}
	if limit := a.limit[name]; limit > 0 && (!bounded || limit < n) {
		n, bounded = limit, true
	}
	return n, bounded
}

// Could reports whether a charge would be taken if other accounts gave so much back first.
func (a *Account) Could(x, others Amounts) bool {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	return !a.over && a.exceeds(x, others) == nil
}

// Charge takes all of what is asked, or returns an error that names what there is too little of.
func (a *Account) Charge(x Amounts) error {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	if a.over {
		return ErrOver
	}
	if err := a.exceeds(x, nil); err != nil {
		return err
	}
	a.used.Add(x)
	a.l.used.Add(x)
	return nil
}

// exceeds returns why a charge is refused, when other accounts have given so much back. The caller holds l.mu.
func (a *Account) exceeds(x, others Amounts) error {
	for _, name := range slices.Sorted(maps.Keys(x)) {
		if n, bounded := a.most(name, others[name]); bounded && a.used[name]+x[name] > n {
			return fmt.Errorf("%w: %d %s are needed beside the %d that the job has, and it may have %d in all: use less, or raise its quota",
				ErrExceeded, x[name], name, a.used[name], n)
		}
	}
	return nil
}

// Return gives back what was charged. Once the account is closed it does nothing.
func (a *Account) Return(x Amounts) {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	if a.over {
		return
	}
	a.giveBack(x)
}

func (a *Account) giveBack(x Amounts) {
	for name, n := range x {
		if a.used[name] < n {
			panic(fmt.Sprintf("quota: %d %s are returned, and %d were charged", n, name, a.used[name]))
		}
		a.used[name] -= n
		a.l.used[name] -= n
	}
}

// Close gives back all that the account has, for good.
func (a *Account) Close() { a.PassOn(Memory, 0) }

// PassOn closes the account, and returns another that has so much of a resource of what it had.
func (a *Account) PassOn(name string, n int64) *Account {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	n = min(n, a.used[name])
	a.giveBack(maps.Clone(a.used))
	a.over = true
	a.l.used[name] += n
	return &Account{l: a.l, limit: a.limit, used: Amounts{name: n}}
}

// Used returns what was charged and not given back.
func (a *Account) Used() Amounts {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	return maps.Clone(a.used)
}

// Limit returns how much of a resource the account may have in all at present, or 0 for no bound.
func (a *Account) Limit(name string) int64 {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	n, _ := a.most(name, 0)
	return n
}
