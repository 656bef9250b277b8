package service

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

// engine is one provider's devices and the aggregating engine on them.
type engine struct {
	provider string
	devices  []*verbs.Device
	agg      *aggregate.Engine
	lanes    []chunk.Lane // in the plan's form
	names    []string     // of each lane's device
	depths   aggregate.Depths
	stopping atomic.Bool
	pumps    sync.WaitGroup
	rates    []laneRate
	links    links
	// How long a link may be down; 0 where no link can be.
	linkTimeout time.Duration
}

// laneRate is what a lane moved in the last second; guarded by Service.mu.
type laneRate struct {
	last           aggregate.Counters
	received, sent float64 // bytes per second
}

// openEngine opens a provider. The service listens at at. On an error it closes what it opened.
func openEngine(provider string, o *Options, topo *numa.Topology, at net.Addr) (e *engine, err error) {
	e = &engine{provider: provider}
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
	cfg := numa.LaneConfig{Cores: o.Cores}
	if provider == verbs.ProviderIBV {
		cfg.NICs = names
	}
	lanes, notes, err := topo.Lanes(cfg)
	if err != nil {
		return e, err
	}
	if provider == verbs.ProviderSim {
		for i := range lanes { // its NICs are in no topology
			lanes[i].NICIndex = i % len(names)
		}
	}
	for _, note := range notes {
		o.Log.Debug("lanes", "provider", provider, "note", note)
	}
	var placed []aggregate.LaneConfig
	for _, l := range lanes {
		lc := aggregate.LaneConfig{Device: e.devices[l.NICIndex], NIC: l.NICIndex, CPU: l.CPU, Node: l.Node}
		if o.Unpinned {
			lc.CPU = -1
		}
		placed = append(placed, lc)
		e.lanes = append(e.lanes, chunk.Lane{NIC: l.NICIndex, Core: l.CPU, Weight: uint32(l.Mbps)})
		e.names = append(e.names, e.devices[l.NICIndex].Attr().Name)
	}
	if e.agg, err = aggregate.Start(aggregate.Config{Lanes: placed, Window: o.Window, Spin: o.Spin,
		LinkTimeout: o.LinkTimeout}); err != nil {
		return e, err
	}
	e.rates = make([]laneRate, len(lanes))
	attr := e.devices[0].Attr()
	if attr.Has(verbs.DevLink) {
		e.linkTimeout = o.LinkTimeout
	}
	if e.depths, err = aggregate.QueueDepths(e.agg.Window(), 1, attr.MaxQPWR, attr.MaxCQE); err != nil {
		return e, err
	}
	e.links.open(e.devices, o.Log)
	for nic, d := range e.devices {
		e.pumps.Go(func() { e.pump(nic, d, o.Log) })
	}
	return e, nil
}

// deviceNames chooses the devices to open: RDMA devices by the options, one device of a software provider. That of tcp listens
// where the service does, because workers can reach that address.
func (e *engine) deviceNames(o *Options, at net.Addr) ([]string, error) {
	if e.provider == verbs.ProviderSim {
		if len(o.NICs) > 0 {
			return o.NICs, nil
		}
		return []string{"aggregator"}, nil
	}
	names, err := verbs.Devices(e.provider)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		d, err := verbs.Open(e.provider, "", "") // it says what to do about it
		if err == nil {
			err = errors.Join(errors.New("no device here"), d.Close())
		}
		return nil, err
	}
	if a, ok := at.(*net.TCPAddr); ok && a.Zone == "" && e.provider == verbs.ProviderTCP {
		return []string{a.IP.String()}, nil
	}
	if e.provider != verbs.ProviderIBV {
		return names[:1], nil
	}
	for _, nic := range o.NICs {
		if !slices.Contains(names, nic) {
			return nil, fmt.Errorf("no RDMA device %q: there are %s", nic, list(names))
		}
	}
	if len(o.NICs) > 0 {
		return o.NICs, nil
	}
	return names, nil
}

// openDevices opens devices and returns the names of those it opened. It leaves out devices without a link that nobody named,
// unless none has a link.
func (e *engine) openDevices(names []string, o *Options,
	open func(provider, name, options string) (*verbs.Device, error)) (opened []string, err error) {
	var without error
	for _, name := range names {
		d, err := open(e.provider, name, o.ProviderOptions[e.provider])
		switch {
		case err == nil:
			e.devices, opened = append(e.devices, d), append(opened, name)
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

// loaded are the lanes with what other jobs have there.
func (e *engine) loaded() []chunk.Lane {
	lanes := slices.Clone(e.lanes)
	for i, bytes := range e.agg.Placed() {
		lanes[i].Load = bytes
	}
	return lanes
}

// String describes the lanes' places: "mlx5_0 and node 0: cpus 0, 1; mlx5_1 and node 1: cpus 8, 9".
func (e *engine) String() string {
	var places []string
	cpus := map[string][]string{}
	for i, l := range e.agg.Lanes() {
		c := l.Config()
		place := fmt.Sprintf("%s and node %d", e.names[i], c.Node)
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
		places[i] = place + ": cpus " + list(cpus[place])
	}
	return strings.Join(places, "; ")
}

// pumpSlice is how long a pump can take to see that it should end.
const pumpSlice = 100 * time.Millisecond

// pump takes a device's events. Doing so also accepts peers.
func (e *engine) pump(nic int, d *verbs.Device, log *slog.Logger) {
	for !e.stopping.Load() {
		ev, ok, err := d.AsyncEvent(pumpSlice)
		switch {
		case err != nil:
			e.links.down(nic)
			log.Error("device reports no more link events: it is not used until the aggregator is restarted", "device", d.Attr().Name,
				"err", err)
			return
		case ok && (ev.Type == verbs.EventQPEstablished || ev.Type == verbs.EventQPFatal):
			// jobs log what it means
			log.Debug("event of a device", "device", d.Attr().Name, "event", ev.Type.String(), "qp", fmt.Sprintf("0x%x", ev.QPNum))
		case ok && (ev.Type == verbs.EventDeviceFatal || ev.Type == verbs.EventCQErr):
			log.Error("device failed", "device", d.Attr().Name, "event", ev.Type.String())
			e.links.down(nic)
		case ok && ev.Type == verbs.EventPortErr:
			e.links.down(nic)
		case ok && ev.Type == verbs.EventPortActive:
			e.links.up(nic)
		case ok:
			log.Warn("event of a device", "device", d.Attr().Name, "event", ev.Type.String())
		}
	}
}

// ackTimeout returns how long the aggregator sends a message again: what the worker asks for, but no longer than a link may be
// down.
func (e *engine) ackTimeout(ms uint32) time.Duration {
	if d := time.Duration(ms) * time.Millisecond; d > 0 {
		return min(d, e.linkTimeout)
	}
	return e.linkTimeout
}

func (e *engine) byReference() bool { return e.devices[0].Attr().Has(verbs.DevByReference) }

// close stops the lanes and closes the devices. All jobs are closed by then.
func (e *engine) close() error {
	var errs []error
	if e.agg != nil {
		errs = append(errs, e.agg.Close())
	}
	e.stopping.Store(true)
	e.pumps.Wait()
	e.links.close()
	for _, d := range e.devices {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}
