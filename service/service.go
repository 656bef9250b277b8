package service

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"

	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/checkpoint"
	"github.com/rackweave/rackweave/service/cluster"
	"github.com/rackweave/rackweave/service/data"
	"github.com/rackweave/rackweave/service/door"
	"github.com/rackweave/rackweave/service/engine"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/keys"
	"github.com/rackweave/rackweave/service/rpc"
)

// Service is a running aggregator.
type Service struct {
	opts     Options
	log      *slog.Logger
	listener net.Listener
	socket   net.Listener // Unix. If nil, none
	mux      *http.ServeMux
	rules    map[string]rule // by pattern of mux
	door     *door.Door
	refusals *door.Refusals
	// Who may use the service does not change once it listens.
	keys      *keys.Keys  // If nil, it is open to whoever reaches it.
	tls       *tls.Config // If nil, calls are in clear.
	adminFile string

	http   *http.Server // of both listeners
	health *grpchealth.StaticChecker
	start  time.Time

	engines *engine.Set
	jobs    *job.Table
	states  *checkpoint.Store
	dealing
	cluster *cluster.Cluster // If nil, the aggregator is in none.

	closing    chan struct{} // closed when the service ends
	drained    chan struct{} // closed when a drain is complete
	closeOnce  func() error
	background sync.WaitGroup

	calls sync.RWMutex // read-locked by every call, locked to end the service
	gone  bool         // guarded by calls
}

// dealing deals the rows of training sets.
type dealing struct {
	data   *data.Server // to the workers of jobs, or that of beside
	beside *data.Beside // to others. If nil, the service is an aggregator
}

// New opens the devices, starts the engines and listens; [Service.Serve] then serves.
func New(o Options) (s *Service, err error) {
	if err := o.complete(); err != nil {
		return nil, fmt.Errorf("start service: %w", err)
	}
	refusals := door.NewRefusals(o.Log)
	s = &Service{
		opts: o, log: o.Log, mux: http.NewServeMux(), start: time.Now(), closing: make(chan struct{}), drained: make(chan struct{}),
		refusals: refusals, door: door.New(door.Default(), refusals.Count), rules: map[string]rule{},
		dealing: dealing{data: data.NewServer(data.Config{Dir: o.DataDir})}, engines: &engine.Set{},
	}
	s.states = checkpoint.NewStore(o.CheckpointDir, o.Log, racksOf, progress{s})
	s.http, s.closeOnce = s.server(), sync.OnceValue(s.close)
	defer func() {
		if err != nil {
			err = fmt.Errorf("start service: %w", errors.Join(err, s.Close()))
			s = nil
		}
	}()
	if o.Cluster != nil {
		if s.cluster, err = cluster.New(cluster.Config{
			Cluster: o.Cluster, URL: s.URL, State: s.states.Answer,
		}); err != nil {
			return s, err
		}
	}
	// Listening comes first: it reports a taken port before memory is allocated.
	if s.listener = o.Listener; s.listener == nil {
		if s.listener, err = door.Listen(context.Background(), o.Listen); err != nil {
			return s, fmt.Errorf("listen on %s: %w: give another address as HOST:PORT or :PORT, port 0 being any", o.Listen, err)
		}
	}
	if err = s.openKeys(); err != nil {
		return s, err
	}
	if s.tls != nil {
		if err = s.cluster.CheckTLS(); err != nil {
			return s, err
		}
	}
	s.http.TLSConfig = s.tls
	if s.socket, err = s.listenSocket(); err != nil {
		s.log.Warn("no Unix socket: drain, profiles and the status of all jobs need the admin's token", "err", err)
	}
	if o.Beside != nil {
		if s.beside, err = openBeside(&o); err != nil {
			return s, err
		}
		s.data = s.beside.Server
	} else {
		if s.engines, err = engine.Open(o.engines(), s.Addr()); err != nil {
			return s, err
		}
	}
	s.openJobs()
	s.background.Go(s.tend)
	s.background.Go(func() { s.cluster.FollowPlan(s.jobs.RunningJobs) })
	s.log.Info("serving", "address", s.Addr(), "providers", rpc.List(s.engines.Served), "tls", s.tls != nil, "closed",
		s.keys != nil)
	return s, nil
}

// openJobs makes what serves jobs, once the engines are there.
func (s *Service) openJobs() {
	s.jobs = job.NewTable(job.Config{
		Log: s.log, Engines: s.engines, Refused: s.refusals.Count, Dismiss: s.door.Dismiss, Placer: s.cluster, Retainer: s.states,
		Policy: s.policy, Closing: s.closing, MaxJobs: s.opts.MaxJobs, MaxWorkers: s.opts.MaxWorkers,
		WhyClosing: func() error {
			if now, dynamic := s.cluster.Standing(); dynamic && now.Fenced {
				return now.Refusal
			}
			return job.ErrShutdown
		},
	})
	s.cluster.Open(s.jobs)
	s.servePages()
	if s.beside != nil {
		serveBeside(s)
		return
	}
	s.serveCalls()
	serveData(s)
}

// racksOf returns how the racks of a job are asked about its state.
func racksOf(j *job.Job) checkpoint.Racks {
	if r, several := j.Spec.Racks.(*cluster.Rendezvous); several {
		return r
	}
	return checkpoint.OneRack{}
}

// servePages mounts what is beside the calls of the schema: health, reflection and metrics.
func (s *Service) servePages() {
	options := s.callOptions()
	s.health = grpchealth.NewStaticChecker(apiconnect.JobServiceName)
	if s.opts.Cluster != nil { // lets a client of several aggregators tell whether they are racks'
		s.health.SetStatus(apiconnect.RackServiceName, grpchealth.StatusServing)
	}
	reflector := grpcreflect.NewStaticReflector(apiconnect.JobServiceName, grpchealth.HealthV1ServiceName)
	metrics := rule{}
	if s.keys != nil {
		metrics.of = ofAdmin
	}
	s.handle("/metrics", metrics, s.metricsPage())
	path, health := grpchealth.NewHandler(s.health, options...)
	s.mux.Handle(path, health)
	s.handle(path+"Check", rule{of: ofAnyone}, health)
	s.mux.Handle(grpcreflect.NewHandlerV1(reflector, options...))
	s.mux.Handle(grpcreflect.NewHandlerV1Alpha(reflector, options...))
}

// server returns an HTTP server that bounds requests in size and in the time they take to arrive, and finds silent peers by pings.
func (s *Service) server() *http.Server {
	h := &http.Server{
		Handler:           door.InTime(door.BodyWithin, door.AnswerWithin, http.HandlerFunc(s.guard)),
		ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 8 << 10,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		Protocols:   new(http.Protocols), ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{SendPingTimeout: 2 * time.Second, PingTimeout: job.PingTimeout,
			MaxConcurrentStreams: 32, MaxReceiveBufferPerConnection: 64 << 10, MaxReceiveBufferPerStream: 64 << 10,
			WriteByteTimeout: door.AnswerWithin},
	}
	h.Protocols.SetHTTP1(true)
	h.Protocols.SetHTTP2(true)
	h.Protocols.SetUnencryptedHTTP2(true) // without TLS
	return h
}

// Addr returns the address that the service listens on.
func (s *Service) Addr() net.Addr { return s.listener.Addr() }

// URL returns the URL by which clients on this host reach the service.
func (s *Service) URL() string {
	urls := s.URLs()
	return urls[len(urls)-1]
}

// URLs returns the URLs by which clients reach the service. A service that listens on all addresses has one for each address that
// other hosts can use. The last is that of [Service.URL].
func (s *Service) URLs() []string {
	scheme := "http"
	if s.tls != nil {
		scheme = "https"
	}
	host, port, _ := net.SplitHostPort(s.Addr().String())
	urls := []string{host}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		urls = append(addresses(ip), "127.0.0.1")
	}
	for i, host := range urls {
		urls[i] = scheme + "://" + net.JoinHostPort(host, port)
	}
	return urls
}

// addresses lists the addresses of this host that other hosts can use and that the unspecified address any stands for.
func addresses(any net.IP) []string {
	var all []string
	addrs, _ := net.InterfaceAddrs() // without them the loopback's remains
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && (any.To4() == nil || n.IP.To4() != nil) {
			all = append(all, n.IP.String())
		}
	}
	return all
}

// Providers lists the providers that are served, fastest first.
func (s *Service) Providers() []string { return s.engines.Served }

// Lanes returns the number of lanes, of all providers. Each keeps one of Go's processors in calls to C. Where all processors are in
// calls, the runtime's monitor looks every 20 us, takes one away and starts a thread for it, which finds nothing to do. So a
// program that serves gives Go as many processors more ([runtime.GOMAXPROCS]).
func (s *Service) Lanes() int {
	n := 0
	for _, e := range s.engines.By {
		n += len(e.Lanes)
	}
	return n
}

// Serve serves until ctx ends, a drain is complete or Close is called, and closes the service.
func (s *Service) Serve(ctx context.Context) error {
	served := make(chan error, 1)
	go func() {
		if s.tls != nil { // the server makes a configuration where it has none
			served <- s.http.ServeTLS(s.door.Listen(s.listener), "", "")
		} else {
			served <- s.http.Serve(s.door.Listen(s.listener))
		}
	}()
	if s.socket != nil {
		go s.http.Serve(s.socket) // until Close
	}
	var err error
	select {
	case <-ctx.Done():
	case <-s.drained:
	case <-s.closing:
	case err = <-served:
		served <- http.ErrServerClosed
	}
	s.log.Info("ending")
	closeErr := s.Close()
	if serveErr := <-served; err == nil && !errors.Is(serveErr, http.ErrServerClosed) {
		err = serveErr
	}
	return errors.Join(err, closeErr)
}

// Close ends the service: it fails every job, notifies the workers, and frees all memory and devices.
func (s *Service) Close() error { return s.closeOnce() }

func (s *Service) close() error {
	if s.jobs != nil {
		s.jobs.Close()
	}
	close(s.closing) // jobs fail, and their Watch streams notify the workers
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var err error
	if s.http.Shutdown(ctx) != nil {
		err = s.http.Close()
	}
	for _, l := range []net.Listener{s.socket, s.listener} {
		if l != nil {
			l.Close() // the server has closed it if it served
		}
	}
	s.calls.Lock() // until every handler has returned: none uses an engine after this
	s.gone = true
	s.calls.Unlock()
	if s.jobs != nil {
		s.jobs.Running.Wait()
		s.states.DropAll()
	}
	s.background.Wait()
	s.cluster.Close()
	return errors.Join(err, s.engines.Close(), s.data.Close())
}

// tend does what is due every second: it samples rates and fails jobs that wait for a worker who has left.
func (s *Service) tend() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-s.closing:
			return
		case now := <-tick.C:
			s.engines.Sample(now.Sub(last).Seconds())
			last = now
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		s.jobs.Tend(ctx, last)
		cancel()
		s.data.Tend()
	}
}
