package job

import (
	"context"

	"github.com/rackweave/rackweave/service/door"
	"github.com/rackweave/rackweave/service/rpc"
)

// Caller identifies the maker of a call, before the call's body is read.
type Caller struct {
	Admin  bool
	Token  string
	Member *Member // by its session
	Dealt  string  // the session of a worker to which the service deals rows beside an aggregator
	Rack   bool    // by its seal
	Conn   *door.Conn
	Call   *door.Call // while a stranger's
	owed   []func()   // gives back what the call was charged
}

type callerKey struct{}

// CallerOf returns who makes a call. A call that no request brought is a stranger's.
func CallerOf(ctx context.Context) *Caller {
	if c, ok := ctx.Value(callerKey{}).(*Caller); ok {
		return c
	}
	return &Caller{}
}

// IsRack makes a stranger whose seal shows that it is a rack's aggregator one that is not limited as strangers are.
func (c *Caller) IsRack(name string) {
	c.Rack = true
	if c.Member == nil {
		c.becomes("rack " + name)
	}
}

// IsObserver makes a stranger who has shown a job's token one that is not limited as strangers are.
func (c *Caller) IsObserver(j *Job) { c.becomes("observer of " + j.Name) }

// becomes makes a stranger a member, a rack or an observer.
func (c *Caller) becomes(who any) {
	if c.Call != nil {
		c.Call.End()
	}
	if c.Conn != nil {
		c.Conn.Promote(who)
	}
}

// Owe adds what must be done once the call's answer is written.
func (c *Caller) Owe(giveBack func()) { c.owed = append(c.owed, giveBack) }

// Settle gives back what a call was charged, once its answer is written.
func (c *Caller) Settle() {
	for _, giveBack := range c.owed {
		giveBack()
	}
}

// With returns a context of a call that c makes.
func (c *Caller) With(ctx context.Context) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// Owns reports whether a job is the caller's.
func (c *Caller) Owns(j *Job) bool {
	return c.Admin || c.Member != nil && c.Member.Job == j || c.Token != "" && rpc.Equal(c.Token, j.Token)
}

// MayKnow reports whether a tenant's run is of the caller's job.
func (c *Caller) MayKnow(k Tenant) bool {
	return c.Admin || c.Member != nil && c.Member.Job.Name == k.Job && rpc.Equal(c.Member.Job.Token, k.Token) ||
		c.Token != "" && rpc.Equal(c.Token, k.Token)
}
