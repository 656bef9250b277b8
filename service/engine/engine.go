package engine

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/lane"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/quota"
	"github.com/rackweave/rackweave/service/rpc"
	"github.com/rackweave/rackweave/verbs"
)

// Engine is one provider's devices and the aggregating engine on them.
type Engine struct {
	Provider string
	Devices  []*verbs.Device
	Agg      *aggregate.Engine
	Lanes    []chunk.Lane // in the plan's form
	Names    []string     // of each lane's device
	Depths   lane.Depths
	stopping atomic.Bool
	pumps    sync.WaitGroup
	rates    atomic.Pointer[[]laneRate]
	Links    links
	// How long a link may be down; 0 where no link can be.
	LinkTimeout time.Duration
}

// Config configures the engines of an aggregator.
type Config struct {
	Log             *slog.Logger
	Providers       []string          // If empty, every provider with a device here is served.
	ProviderOptions map[string]string // of verbs.Open, by provider
	NICs            []string          // to serve, of providers with NICs. If empty, all are.
	Cores           int               // see numa.Topology.Lanes
	Unpinned        bool              // lanes float over the CPUs
	Window          int               // messages in flight per worker and lane. If 0, what suits the provider.
	LinkTimeout     time.Duration     // how long a link may be down
}

// Set are the providers that an aggregator serves.
type Set struct {
	By      map[string]*Engine
	Served  []string // providers, fastest first
	HostID  string
	UID     uint32
	AnyUser bool // provider shm takes workers of other users
}

// laneRate is the traffic of a lane in the last second.
type laneRate struct {
	last           aggregate.Counters
	received, sent float64 // bytes per second
}

// Open opens the devices of the providers that are served and starts an engine for each. On an error it closes none: the
// caller closes the engines.
func Open(o *Config, at net.Addr) (*Set, error) {
	all := &Set{By: map[string]*Engine{}, HostID: api.HostID(), UID: uint32(os.Geteuid()),
		AnyUser: slices.Contains(strings.Split(o.ProviderOptions[verbs.ProviderSHM], ","), "users=any")}
	topo, err := numa.Discover("")
	if err != nil {
		return all, err
	}
	providers := o.Providers
	if len(providers) == 0 {
		if providers = verbs.ProvidersHere(); len(providers) == 0 {
			return all, errors.New("no provider has a device here: see rackweave doctor")
		}
	}
	if len(o.NICs) > 0 && !slices.ContainsFunc(providers, verbs.HasNICs) {
		return all, fmt.Errorf("RDMA devices %s need provider %s, and only %s can be served: see rackweave doctor", rpc.List(o.NICs),
			verbs.ProviderIBV, rpc.List(providers))
	}
	for _, p := range verbs.Providers() {
		if !slices.Contains(providers, p) {
			continue
		}
		e, err := openEngine(p, o, topo, at)
		if err != nil {
			return all, err
		}
		o.Log.Info("transport ready", "provider", p, "lanes", e.String())
		all.By[p], all.Served = e, append(all.Served, p)
	}
	return all, nil
}

// Farthest returns the fastest provider that leads to other hosts, or "shm" where that is served alone.
func (all *Set) Farthest() string {
	if len(all.Served) > 1 && all.Served[0] == verbs.ProviderSHM {
		return all.Served[1]
	}
	return all.Served[0]
}

// Has returns what the providers add to the machine.
func (all *Set) Has() quota.Amounts {
	sum := quota.Amounts{}
	for _, e := range all.By {
		sum.Add(e.Amounts(aggregate.Need{Connections: e.Agg.MaxConns(), Regions: int(e.Devices[0].Attr().MaxMR)}))
	}
	return sum
}

// Sample measures the lanes' rates over the last seconds.
func (all *Set) Sample(seconds float64) {
	for _, e := range all.By {
		last := *e.rates.Load()
		now := make([]laneRate, len(last))
		for i, l := range e.Agg.Lanes() {
			c := l.Counters()
			now[i] = laneRate{c, float64(c.RecvBytes-last[i].last.RecvBytes) / seconds,
				float64(c.SentBytes-last[i].last.SentBytes) / seconds}
		}
		e.rates.Store(&now)
	}
}

// Close closes all engines.
func (all *Set) Close() error {
	var errs []error
	for _, p := range all.Served {
		errs = append(errs, all.By[p].close())
	}
	return errors.Join(errs...)
}

// openEngine opens a provider. The service listens at at. On an error it closes what it opened.
func openEngine(provider string, o *Config, topo *numa.Topology, at net.Addr) (e *Engine, err error) {
	e = &Engine{Provider: provider}
	defer func() {
		if err != nil {
			err = fmt.Errorf("serve %s: %w", provider, errors.Join(err, e.close()))
			e = nil
		}
	}()
	names, err := e.deviceNames(o, at)
	if err == nil {
		names, err = e.openDevices(names, o, verbs.Open)
	}
	if err != nil {
		return e, err
	}
	var nics []string
	if provider == verbs.ProviderIBV {
		nics = names
	}
	lanes, notes, err := topo.Lanes(nics, o.Cores)
	if err != nil {
		return e, err
	}
	if nics == nil { // devices that are in no topology share the cores
		for i := range lanes {
			lanes[i].NICIndex = i % len(names)
		}
	}
	for _, note := range notes {
		o.Log.Debug("lanes", "provider", provider, "note", note)
	}
	var placed []aggregate.LaneConfig
	for _, l := range lanes {
		lc := aggregate.LaneConfig{Device: e.Devices[l.NICIndex], NIC: l.NICIndex, CPU: l.CPU, Node: l.Node}
		if o.Unpinned {
			lc.CPU = -1
		}
		placed = append(placed, lc)
		e.Lanes = append(e.Lanes, chunk.Lane{NIC: l.NICIndex, Core: l.CPU, Weight: uint32(l.Mbps)})
		e.Names = append(e.Names, e.Devices[l.NICIndex].Attr().Name)
	}
	if e.Agg, err = aggregate.Start(aggregate.Config{Lanes: placed, Window: o.Window, LinkTimeout: o.LinkTimeout}); err != nil {
		return e, err
	}
	rates := make([]laneRate, len(lanes))
	e.rates.Store(&rates)
	attr := e.Devices[0].Attr()
	if attr.Has(verbs.DevLink) {
		e.LinkTimeout = o.LinkTimeout
	}
	if e.Depths, err = lane.QueueDepths(e.Agg.Window(), 1, attr.MaxQPWR, attr.MaxCQE); err != nil {
		return e, err
	}
	e.Links.open(e.Devices, o.Log)
	for nic, d := range e.Devices {
		e.pumps.Go(func() { e.pump(nic, d, o.Log) })
	}
	return e, nil
}

// deviceNames chooses the devices to open: NICs by the options, one device of a software provider. That of tcp listens where the
// service does, because workers can reach that address.
func (e *Engine) deviceNames(o *Config, at net.Addr) (names []string, err error) {
	if a, ok := at.(*net.TCPAddr); ok && a.Zone == "" && e.Provider == verbs.ProviderTCP {
		return []string{a.IP.String()}, nil
	}
	if verbs.HasNICs(e.Provider) {
		if len(o.NICs) > 0 {
			return o.NICs, nil
		}
		names, err = verbs.Devices(e.Provider)
	}
	if len(names) == 0 {
		names = []string{""} // the first, or an error that names the remedy
	}
	return names, err
}

// openDevices opens devices and returns the names of those it opened. It leaves out devices without a link that nobody named,
// unless none has a link.
func (e *Engine) openDevices(names []string, o *Config,
	open func(provider, name, options string) (*verbs.Device, error)) (opened []string, err error) {
	var without error
	for _, name := range names {
		d, err := open(e.Provider, name, o.ProviderOptions[e.Provider])
		switch {
		case err == nil:
			e.Devices, opened = append(e.Devices, d), append(opened, name)
		case len(o.NICs) == 0 && errors.Is(err, syscall.ENETDOWN):
			without = err
			o.Log.Warn("device left out until the aggregator is restarted", "device", name, "err", err)
		default:
			return nil, err
		}
	}
	if len(opened) == 0 {
		return nil, without
	}
	return opened, nil
}

// Loaded are the lanes with what other jobs have there.
func (e *Engine) Loaded() []chunk.Lane {
	lanes := slices.Clone(e.Lanes)
	for i, bytes := range e.Agg.Placed() {
		lanes[i].Load = bytes
	}
	return lanes
}

// String describes the lanes' places: "mlx5_0 and node 0: cpus 0, 1; mlx5_1 and node 1: cpus 8, 9".
func (e *Engine) String() string {
	var places []string
	cpus := map[string][]string{}
	for i, l := range e.Agg.Lanes() {
		c := l.Config
		place := fmt.Sprintf("%s and node %d", e.Names[i], c.Node)
		if cpus[place] == nil {
			places = append(places, place)
		}
		cpu := strconv.Itoa(c.CPU)
		if c.CPU < 0 {
			cpu = "any"
		}
		cpus[place] = append(cpus[place], cpu)
	}
	for i, place := range places {
		places[i] = place + ": cpus " + rpc.List(cpus[place])
	}
	return strings.Join(places, "; ")
}

// pumpSlice limits the time that a pump takes to end.
const pumpSlice = 100 * time.Millisecond

// pump takes a device's events. Doing so also accepts peers.
func (e *Engine) pump(nic int, d *verbs.Device, log *slog.Logger) {
	for !e.stopping.Load() {
		ev, ok, err := d.AsyncEvent(pumpSlice)
		switch {
		case err != nil:
			e.Links.down(nic)
			log.Error("device reports no more link events: it is not used until the aggregator is restarted", "device", d.Attr().Name,
				"err", err)
			return
		case ok && (ev.Type == verbs.EventQPEstablished || ev.Type == verbs.EventQPFatal):
			// jobs log what it means
			log.Debug("event of a device", "device", d.Attr().Name, "event", ev.Type.String(), "qp", fmt.Sprintf("0x%x", ev.QPNum))
		case ok && (ev.Type == verbs.EventDeviceFatal || ev.Type == verbs.EventCQErr):
			log.Error("device failed", "device", d.Attr().Name, "event", ev.Type.String())
			e.Links.down(nic)
		case ok && ev.Type == verbs.EventPortErr:
			e.Links.down(nic)
		case ok && ev.Type == verbs.EventPortActive:
			e.Links.up(nic)
		case ok:
			log.Warn("event of a device", "device", d.Attr().Name, "event", ev.Type.String())
		}
	}
}

// AckTimeout returns how long the aggregator sends a message again: what the worker asks for, but no longer than a link may be
// down.
func (e *Engine) AckTimeout(ms uint32) time.Duration {
	return min(cmp.Or(time.Duration(ms)*time.Millisecond, e.LinkTimeout), e.LinkTimeout)
}

func (e *Engine) ByReference() bool { return e.Devices[0].Attr().Has(verbs.DevByReference) }

// close stops the lanes and closes the devices. All jobs are closed by then.
func (e *Engine) close() error {
	var errs []error
	if e.Agg != nil {
		errs = append(errs, e.Agg.Close())
	}
	e.stopping.Store(true)
	e.pumps.Wait()
	e.Links.close()
	for _, d := range e.Devices {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// Amounts returns the resources of a need, of which the provider has its own connections and regions.
func (e *Engine) Amounts(n aggregate.Need) quota.Amounts {
	return quota.Amounts{quota.Memory: n.Bytes, "connections of " + e.Provider: int64(n.Connections),
		"regions of " + e.Provider: int64(n.Regions)}
}

// Status returns an engine's part of the status, without what it did for all if that is asked by one tenant.
func (e *Engine) Status(all bool) *api.EngineStatus {
	rates := *e.rates.Load()
	out := &api.EngineStatus{Provider: e.Provider, Window: uint32(e.Agg.Window())}
	for i, l := range e.Agg.Lanes() {
		cfg, c := l.Config, l.Counters()
		lane := &api.LaneStatus{Device: e.Names[i], Nic: uint32(cfg.NIC), Cpu: int32(cfg.CPU), Node: int32(cfg.Node)}
		out.Lanes = append(out.Lanes, lane)
		if !all {
			continue
		}
		lane.ReceivedBytes, lane.SentBytes, lane.Chunks, lane.FoldsOpen = c.RecvBytes, c.SentBytes, c.Chunks, c.FoldsOpen
		lane.ReceivedBytesPerSecond, lane.SentBytesPerSecond = rates[i].received, rates[i].sent
		lane.Sleeps, lane.Dropped, lane.Failovers = c.Sleeps, c.Dropped, c.Failovers
	}
	if !all {
		return out
	}
	for nic, d := range e.Devices {
		all, failedOver := e.Agg.Connections(d)
		out.Nics = append(out.Nics,
			&api.NicStatus{Device: d.Attr().Name, Up: e.Links.IsUp(nic), Connections: uint32(all), FailedOver: uint32(failedOver)})
	}
	return out
}
