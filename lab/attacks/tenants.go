package attacks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
)

// tenant makes calls as a worker that does only what the attack wants.
type tenant struct {
	rpc     apiconnect.JobServiceClient
	session string
	info    *api.JoinResponse
}

// newTenant returns a worker to be, over HTTP/2, with a connection of its own.
func (a *Aggregator) newTenant(token string) *tenant {
	t := &http.Transport{Protocols: new(http.Protocols), DialContext: dialer.DialContext}
	t.Protocols.SetUnencryptedHTTP2(true)
	n := &tenant{}
	n.rpc = apiconnect.NewJobServiceClient(&http.Client{Transport: t}, a.URL, api.Identify(func() string { return n.session }, token))
	return n
}

// newName returns a job's name that none has had: an attack's job may outlast it.
func newName(what string) string { return fmt.Sprint(what, time.Now().UnixNano()) }

// join joins a job of mode aggregate over tcp.
func (n *tenant) join(ctx context.Context, job string, workers int) (err error) {
	n.info, err = n.rpc.Join(ctx, &api.JoinRequest{Job: job, Rank: -1, Workers: uint32(workers), Mode: "aggregate",
		Providers: []string{"tcp"}, Provider: "tcp", TimeoutMs: 20_000})
	n.session = n.info.GetSession()
	return err
}

// leave ends the tenant's membership.
func (n *tenant) leave(ctx context.Context) { n.rpc.Leave(ctx, &api.LeaveRequest{}) }

// AbsentWorkers starts jobs whose only worker is never heard of again, as fast as it can, while a new job wants to start.
func AbsentWorkers(ctx context.Context, a *Aggregator) error {
	return besideNewJob(ctx, a, func(ctx context.Context, i int) {
		a.newTenant("").join(ctx, newName("absent"), 1)
	})
}

// HalfJobs begins jobs whose second worker never comes.
func HalfJobs(ctx context.Context, a *Aggregator) error {
	return besideNewJob(ctx, a, func(ctx context.Context, i int) {
		a.newTenant("").join(ctx, newName("half"), 2)
	})
}

// besideNewJob makes calls without end until a new job has started beside them.
func besideNewJob(ctx context.Context, a *Aggregator, call func(context.Context, int)) error {
	attack, stop := context.WithCancel(ctx)
	var calls sync.WaitGroup
	for g := range 40 {
		calls.Go(func() {
			for i := 0; attack.Err() == nil && i < 50; i++ {
				call(attack, 1000*g+i)
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	time.Sleep(300 * time.Millisecond)
	defer calls.Wait()
	defer stop()
	v, err := a.comeIn(ctx, newName("honest"), "")
	if err != nil {
		return fmt.Errorf("beside the attack: %w", err)
	}
	return v.Leave()
}

// comeIn joins the victim's job, again and again for a while: it may be refused where strangers have spent what all of them may
// connect, or lose its place to the crowd while the machine is busy.
func (a *Aggregator) comeIn(ctx context.Context, job, token string) (*Victim, error) {
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		v, err := Join(ctx, a.URL, job, token, "tcp")
		if err == nil || time.Now().After(end) {
			return v, err
		}
	}
}

// NeverAttach lets many workers of large jobs ask for connections and connect none of them.
func NeverAttach(ctx context.Context, a *Aggregator) error {
	const jobs, workers = 8, 8
	prefix := newName("large")
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for j := range jobs {
		for range workers {
			all.Go(func() {
				n := a.newTenant("")
				if n.join(ctx, fmt.Sprint(prefix, "-", j), workers) != nil {
					return // refused: its memory is bounded
				}
				r := &api.ConnectRequest{TimeoutMs: 2_000}
				for range n.info.Lanes {
					r.Lanes = append(r.Lanes, &api.WorkerLane{Endpoint: make([]byte, 64), Staging: 64})
				}
				n.rpc.Connect(ctx, r)
			})
		}
	}
	all.Wait()
	if now, err := a.resident(); err != nil || now > a.idle+2<<30 {
		return fmt.Errorf("%d MiB are resident, %w", now>>20, err)
	}
	return nil
}

// worker joins a job of one worker and keeps its Watch open, as a real one does.
func (a *Aggregator) worker(ctx context.Context, job string) (*client.Worker, error) {
	return client.Join(ctx, client.Config{Server: a.URL, Job: job, Workers: 1, Provider: "tcp", Timeout: 20 * time.Second})
}

// HugeTensors registers tensors of 2^31 elements in jobs that keep no parameters: their chunks alone are a gigabyte.
func HugeTensors(ctx context.Context, a *Aggregator) error {
	var all sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		all.Go(func() {
			w, err := a.worker(ctx, newName("huge"))
			if err != nil {
				errs[i] = err
				return
			}
			for n := range 8 {
				if w.Register(ctx, []client.Tensor{{Name: fmt.Sprint("w", n), Shape: []uint64{1 << 31}}}) != nil {
					break // as the quota is spent
				}
			}
			w.Close()
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// EmptyTensors registers, as a member, bodies that are small and would be large in memory.
func EmptyTensors(ctx context.Context, a *Aggregator) error {
	w := a.newTenant("")
	if err := w.join(ctx, newName("empty"), 1); err != nil {
		return err
	}
	head := map[string]string{api.SessionHeader: w.session}
	for name, body := range map[string][]byte{
		"proto": emptyTensors(16 << 20),
		"json":  []byte(`{"tensors":[` + strings.Repeat("{},", 8<<20) + `{}]}`),
	} {
		for _, encoding := range []string{"", "gzip"} {
			sent := body
			if encoding != "" {
				sent = squeezed(bytes.NewReader(body))
			}
			status, text, err := a.post(ctx, call{path: apiconnect.JobServiceRegisterProcedure, content: "application/" + name,
				encoding: encoding, header: head, body: bytes.NewReader(sent)})
			if err == nil && status == http.StatusOK {
				return fmt.Errorf("%s %s: the answer is %d %s", name, encoding, status, text)
			}
		}
	}
	return nil
}

// GuessSessions makes calls with made-up sessions.
func GuessSessions(ctx context.Context, a *Aggregator) error {
	for i := range 200 {
		n := a.newTenant("")
		n.session = fmt.Sprintf("%032x", i)
		_, err := n.rpc.Leave(ctx, &api.LeaveRequest{Failure: "from a stranger"})
		if connect.CodeOf(err) == connect.CodeUnavailable || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
			break // its address is kept out
		}
		if connect.CodeOf(err) != connect.CodeUnauthenticated {
			return fmt.Errorf("a guessed session: %w", err)
		}
	}
	return nil
}

// OthersToken joins the victim's job, and changes it, without its token.
func OthersToken(ctx context.Context, a *Aggregator) error {
	for _, token := range []string{"", "Victim's", "victim's "} {
		n := a.newTenant(token)
		if err := n.join(ctx, "victim", 2); connect.CodeOf(err) != connect.CodePermissionDenied {
			return fmt.Errorf("join with token %q: %w", token, err)
		}
		_, err := n.rpc.SetPolicy(ctx, &api.SetPolicyRequest{Job: "victim", Policy: "asp"})
		if connect.CodeOf(err) != connect.CodePermissionDenied {
			return fmt.Errorf("set policy with token %q: %w", token, err)
		}
		s, err := n.rpc.Status(ctx, &api.StatusRequest{})
		if text, _ := json.Marshal(s); err != nil || strings.Contains(string(text), "victim") {
			return fmt.Errorf("status with token %q: %s, %w", token, text, err)
		}
	}
	return nil
}

// BarrierFlood lets one worker wait in more barriers than it may, and ask for its status without pause.
func BarrierFlood(ctx context.Context, a *Aggregator) error {
	w, err := a.worker(ctx, newName("flood"))
	if err != nil {
		return err
	}
	defer w.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	n := a.newTenant("")
	if err := n.join(ctx, newName("barriers"), 1); err != nil {
		return err
	}
	var all sync.WaitGroup
	for i := range 500 {
		all.Go(func() {
			n.rpc.Barrier(ctx, &api.BarrierRequest{Name: fmt.Sprint("b", i), TimeoutMs: 1000})
			n.rpc.Status(ctx, &api.StatusRequest{})
		})
	}
	all.Wait()
	return nil
}

// HalfClosed sends requests, and ends its half of the connection, or all of it, before the answer.
func HalfClosed(ctx context.Context, a *Aggregator) error {
	for i := range 200 {
		c, err := dialer.DialContext(ctx, "tcp", a.Addr())
		if err != nil {
			break // its address is kept out
		}
		body := fmt.Sprintf(`{"job": "gone%d", "workers": 2, "rank": -1, "mode": "aggregate", "providers": ["tcp"]}`, i)
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			apiconnect.JobServiceJoinProcedure, len(body), body)
		if i%2 == 0 {
			c.(*net.TCPConn).CloseWrite()
		}
		c.Close()
	}
	return nil
}
