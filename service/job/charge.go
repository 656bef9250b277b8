package job

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/service/quota"
	"github.com/rackweave/rackweave/service/rpc"
)

// openLedger opens the machine's account: the memory that is available now, less what the process needs for itself.
func openLedger() *quota.Ledger {
	available := numa.AvailableMemory()
	return quota.New(quota.Amounts{quota.Memory: available - available/16})
}

// Charge charges the job, or returns a refusal. What is kept of other jobs makes room, if that is enough.
func (j *Job) Charge(what string, x quota.Amounts) error {
	err := j.Account.Charge(x)
	for err != nil && j.Account.Could(x, j.Table.Retainer.Used(j.Tenant())) && j.Table.Retainer.DropOldest(j.Tenant()) {
		err = j.Account.Charge(x)
	}
	if err != nil {
		j.Table.Refused("quota")
		return rpc.Refuse(connect.CodeResourceExhausted, "%s of job %q: %w", what, j.Name, err)
	}
	return nil
}

// ChargeCall charges the job for memory that a call takes, until the call's answer is written.
func (j *Job) ChargeCall(ctx context.Context, what string, bytes int64) error {
	x := quota.Amounts{quota.Memory: bytes}
	if err := j.Account.Charge(x); err != nil { // for a moment's memory no other job's state is given up
		j.Table.Refused("quota")
		return rpc.Refuse(connect.CodeResourceExhausted, "%s of job %q: %w", what, j.Name, err)
	}
	CallerOf(ctx).Owe(func() { j.Account.Return(x) })
	return nil
}

// chargeWorkers charges a job that begins for its workers. What ended jobs still hold, and jobs whose workers do not connect, is
// free soon: where that will be enough, chargeWorkers waits.
func (j *Job) chargeWorkers(ctx context.Context, x quota.Amounts) error {
	for ctx.Err() == nil && !j.Account.Could(x, j.Table.Retainer.Used(j.Tenant())) && j.Account.Could(x, j.Table.freeSoon(true)) {
		if !j.Account.Could(x, j.Table.freeSoon(false)) {
			j.Table.mu.Lock()
			j.Table.endIdle(false)
			j.Table.mu.Unlock()
		}
		select {
		case <-ctx.Done():
		case <-time.After(placeAgain):
		}
	}
	return j.Charge("workers", x)
}

// freeSoon returns what ended jobs still hold. With idle it adds the jobs whose workers have not all connected.
func (t *Table) freeSoon(idle bool) quota.Amounts {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := quota.Amounts{}
	for j := range t.retired {
		sum.Add(j.Account.Used())
	}
	for _, j := range t.jobs {
		if j.idles() && idle || !j.isForming() && j.State() != "forming" && j.Agg.Failure() != nil {
			sum.Add(j.Account.Used())
		}
	}
	return sum
}
