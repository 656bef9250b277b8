package service

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"

	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/door"
	"github.com/rackweave/rackweave/service/keys"
	"github.com/rackweave/rackweave/service/quota"
	"github.com/rackweave/rackweave/verbs"
)

// Service is a running aggregator.
type Service struct {
	opts      Options
	log       *slog.Logger
	listener  net.Listener
	socket    net.Listener // Unix; nil: none
	mux       *http.ServeMux
	guarded   http.Handler // mux, behind the guard
	door      *door.Door
	cluster   *cluster // nil: the rack is alone
	probing   probing
	ledger    *quota.Ledger
	keys      *keys.Keys // nil: open to whoever reaches it
	tls       *tls.Config
	adminFile string
	refusals  *refusals
	http      *http.Server
	local     *http.Server // of the Unix socket
	health    *grpchealth.StaticChecker
	engines   map[string]*engine
	served    []string // providers, fastest first
	hostID    string
	uid       uint32
	start     time.Time

	closing     chan struct{} // closed when the service ends
	drained     chan struct{} // closed when a drain is complete
	closeOnce   sync.Once
	closeErr    error
	jobsRunning sync.WaitGroup
	jobsStarted atomic.Uint64
	jobsFailed  atomic.Uint64
	background  sync.WaitGroup

	mu       sync.Mutex
	jobs     map[string]*job // forming and running
	retired  map[*job]bool   // failed or ended, with memory to free
	kept     map[tenant]*kept
	sessions map[string]*member
	members  int // of jobs and retired
	draining bool
	closed   bool

	calls sync.RWMutex // read-locked by every call, locked to end the service
	gone  bool         // guarded by calls
}

// New opens the devices, starts the engines and listens; [Service.Serve] then serves.
func New(o Options) (s *Service, err error) {
	if err := o.complete(); err != nil {
		return nil, fmt.Errorf("start service: %w", err)
	}
	s = &Service{
		opts: o, log: o.Log, mux: http.NewServeMux(), engines: map[string]*engine{}, hostID: api.HostID(), uid: uint32(os.Geteuid()),
		start: time.Now(), closing: make(chan struct{}), drained: make(chan struct{}), jobs: map[string]*job{}, retired: map[*job]bool{},
		kept: map[tenant]*kept{}, sessions: map[string]*member{}, refusals: newRefusals(o.Log), ledger: openLedger(),
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("start service: %w", errors.Join(err, s.Close()))
			s = nil
		}
	}()
	if o.Cluster != nil {
		if s.cluster, err = newCluster(o.Cluster, s.URL); err != nil {
			return s, err
		}
	}
	// Listening comes first: it reports a taken port before memory is allocated.
	if s.listener = o.Listener; s.listener == nil {
		if s.listener, err = listen(o.Listen); err != nil {
			return s, err
		}
	}
	if err = s.lock(); err != nil {
		return s, err
	}
	if k := s.cluster; k != nil && k.Members == nil && s.tls != nil && strings.HasPrefix(k.Racks[k.own].URL, "http://") {
		return s, fmt.Errorf("rack %q is at %s in the cluster's file, and its aggregator serves TLS: write https:// there, and its fingerprint as ca",
			k.Own, k.Racks[k.own].URL)
	}
	s.guarded, s.door = s.guard(s.mux), door.New(door.Default(), s.refusals.count)
	s.serveBy()
	if s.socket, err = s.listenSocket(); err != nil {
		s.log.Warn("no Unix socket: drain, profiles and the status of all jobs need the admin's token", "err", err)
	}
	if err = s.openEngines(); err != nil {
		return s, err
	}
	s.background.Go(s.tend)
	if s.cluster != nil && s.cluster.Members != nil {
		s.background.Go(s.followPlan)
	}
	s.log.Info("serving", "address", s.Addr(), "providers", list(s.served), "tls", s.tls != nil, "closed", s.keys != nil)
	return s, nil
}

// openEngines starts the transports that are served.
func (s *Service) openEngines() error {
	topo, err := numa.Discover("")
	if err != nil {
		return err
	}
	providers := s.opts.Providers
	if len(providers) == 0 {
		if providers = verbs.ProvidersHere(); len(providers) == 0 {
			return errors.New("no provider has a device here: see rackweave doctor")
		}
	}
	if len(s.opts.NICs) > 0 && !slices.Contains(providers, verbs.ProviderIBV) && !slices.Contains(providers, verbs.ProviderSim) {
		return fmt.Errorf("RDMA devices %s need provider %s, and only %s can be served: see rackweave doctor", list(s.opts.NICs),
			verbs.ProviderIBV, list(providers))
	}
	for _, p := range verbs.Providers() {
		if !slices.Contains(providers, p) {
			continue
		}
		if s.engines[p], err = openEngine(p, &s.opts, topo, s.Addr()); err != nil {
			delete(s.engines, p)
			return err
		}
		s.ledger.Add(s.engines[p].has())
		s.log.Info("transport ready", "provider", p, "lanes", s.engines[p].String())
		s.served = append(s.served, p)
	}
	return nil
}

func listen(address string) (net.Listener, error) {
	l, err := door.Listen(context.Background(), address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w: give another address as HOST:PORT or :PORT, port 0 being any", address, err)
	}
	return l, nil
}

// serveBy makes the HTTP servers. They bound requests in size and in the time they take to arrive, and find silent peers by pings.
func (s *Service) serveBy() {
	options := append([]connect.HandlerOption{connect.WithReadMaxBytes(maxMessageBytes), connect.WithRecover(s.recovered)}, codecs...)
	s.health = grpchealth.NewStaticChecker(apiconnect.JobServiceName)
	if s.cluster != nil { // so that who names several aggregators can tell those of racks
		s.health.SetStatus(apiconnect.RackServiceName, grpchealth.StatusServing)
	}
	reflector := grpcreflect.NewStaticReflector(apiconnect.JobServiceName, grpchealth.HealthV1ServiceName)
	s.mux.Handle(apiconnect.NewJobServiceHandler(s, options...))
	s.mux.Handle(apiconnect.NewRackServiceHandler(s, options...))
	s.mux.Handle("/metrics", s.hostOnly(s.metricsPage()))
	s.mux.Handle(grpchealth.NewHandler(s.health, options...))
	s.mux.Handle(grpcreflect.NewHandlerV1(reflector, options...))
	s.mux.Handle(grpcreflect.NewHandlerV1Alpha(reflector, options...))

	s.local, s.http = s.server(true), s.server(s.tls == nil)
	s.http.TLSConfig = s.tls
}

func (s *Service) server(plain bool) *http.Server {
	h := &http.Server{
		Handler:           door.InTime(door.BodyWithin, door.AnswerWithin, http.HandlerFunc(s.handle)),
		ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 8 << 10,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		Protocols:   new(http.Protocols), ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{SendPingTimeout: 2 * time.Second, PingTimeout: pingTimeout,
			MaxConcurrentStreams: 32, MaxReceiveBufferPerConnection: 64 << 10, MaxReceiveBufferPerStream: 64 << 10,
			WriteByteTimeout: door.AnswerWithin},
	}
	h.Protocols.SetHTTP1(true)
	h.Protocols.SetHTTP2(true)
	h.Protocols.SetUnencryptedHTTP2(plain)
	return h
}

func (s *Service) handle(w http.ResponseWriter, r *http.Request) {
	s.calls.RLock()
	defer s.calls.RUnlock()
	if s.gone {
		http.Error(w, errShutdown.Error(), http.StatusServiceUnavailable)
		return
	}
	s.guarded.ServeHTTP(w, r)
}

// begin counts a job as running. It returns false if the service is closing.
func (s *Service) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.jobsRunning.Add(1)
	return true
}

// HandleAdmin mounts another handler on the service's port, for the admin. Call it before Serve.
func (s *Service) HandleAdmin(pattern string, h http.Handler) { s.mux.Handle(pattern, s.adminOnly(h)) }

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

func (s *Service) uptime() time.Duration { return time.Since(s.start) }

// Providers lists the providers that are served, fastest first.
func (s *Service) Providers() []string { return s.served }

// Serve serves until ctx ends, a drain is complete or Close is called, and closes the service.
func (s *Service) Serve(ctx context.Context) error {
	served := make(chan error, 1)
	go func() {
		if s.http.TLSConfig != nil {
			served <- s.http.ServeTLS(s.door.Listen(s.listener), "", "")
		} else {
			served <- s.http.Serve(s.door.Listen(s.listener))
		}
	}()
	if s.socket != nil {
		go s.local.Serve(s.socket) // until Close
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
func (s *Service) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Service) close() error {
	s.mu.Lock()
	s.draining, s.closed = true, true
	s.mu.Unlock()
	close(s.closing) // jobs fail, and their Watch streams notify the workers
	var errs []error
	if s.http != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		for _, h := range []*http.Server{s.http, s.local} {
			if h.Shutdown(ctx) != nil {
				errs = append(errs, h.Close())
			}
		}
		cancel()
	}
	if s.socket != nil {
		s.socket.Close()
	}
	if s.listener != nil {
		s.listener.Close() // the server has closed it if it served
	}
	s.calls.Lock() // until every handler has returned: none uses an engine after this
	s.gone = true
	s.calls.Unlock()
	s.jobsRunning.Wait()
	for s.dropOldest(tenant{}) {
	}
	s.background.Wait()
	s.probing.end("")
	if s.cluster != nil {
		s.cluster.hangUp()
	}
	for _, p := range s.served {
		errs = append(errs, s.engines[p].close())
	}
	return errors.Join(errs...)
}

// retire frees a job's name and keeps its memory.
func (s *Service) retire(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.jobs[j.name] == j {
		delete(s.jobs, j.name)
		s.retired[j] = true
	}
}

// forget drops all that is left of a job.
func (s *Service) forget(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.retired, j)
	s.members -= len(j.members)
	for _, m := range j.members {
		delete(s.sessions, m.session)
		s.door.Dismiss(m)
	}
}

// session returns the member that calls.
func (s *Service) session(ctx context.Context) (*member, error) {
	if m := callerOf(ctx).member; m != nil {
		return m, nil
	}
	return nil, connect.NewError(connect.CodeUnauthenticated, errNoSession)
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
			s.sample(now.Sub(last).Seconds())
			last = now
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		for _, j := range s.running() {
			j.failIfDeserted(ctx)
		}
		cancel()
	}
}

// running lists the jobs that run.
func (s *Service) running() []*job {
	s.mu.Lock()
	defer s.mu.Unlock()
	var jobs []*job
	for _, j := range s.jobs {
		if j.state() == "running" && j.agg != nil {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

func (s *Service) sample(seconds float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.engines {
		for i, l := range e.agg.Lanes() {
			r, c := &e.rates[i], l.Counters()
			r.received = float64(c.RecvBytes-r.last.RecvBytes) / seconds
			r.sent = float64(c.SentBytes-r.last.SentBytes) / seconds
			r.last = c
		}
	}
}

// bounded gives a call the deadline it asks for, within limits.
func bounded(ctx context.Context, ms uint32) (context.Context, context.CancelFunc) {
	d := defaultWait
	if ms > 0 {
		d = min(time.Duration(ms)*time.Millisecond, maxWait)
	}
	return context.WithTimeout(ctx, d)
}
