package engine

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/rackweave/rackweave/verbs"
)

// links holds which of an engine's NICs have a link.
type links struct {
	log     *slog.Logger
	devices []*verbs.Device

	mu      sync.Mutex
	isDown  []bool
	events  []int         // of each NIC: a link that is back is trusted once it has lasted without another
	changed chan struct{} // closed and replaced when isDown changes
}

func (l *links) open(devices []*verbs.Device, log *slog.Logger) {
	l.devices, l.log = devices, log
	l.isDown, l.events = make([]bool, len(devices)), make([]int, len(devices))
	l.changed = make(chan struct{})
}

// down notes that a NIC has lost its link.
func (l *links) down(nic int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events[nic]++
	l.set(nic, true)
}

// up notes that a NIC has a link again. The link is used once it has lasted.
func (l *links) up(nic int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events[nic]++
	now := l.events[nic]
	time.AfterFunc(verbs.LinkSettles, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.events[nic] == now {
			l.set(nic, false)
		}
	})
}

// set changes a NIC's state. The caller holds mu.
func (l *links) set(nic int, down bool) {
	if l.isDown[nic] == down {
		return
	}
	l.isDown[nic] = down
	close(l.changed)
	l.changed = make(chan struct{})
	if down {
		l.log.Warn("link down", "device", l.devices[nic].Attr().Name)
	} else {
		l.log.Info("link up", "device", l.devices[nic].Attr().Name)
	}
}

// State returns the NICs that are down, and a channel that is closed when that changes.
func (l *links) State() (down []uint32, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for nic, is := range l.isDown {
		if is {
			down = append(down, uint32(nic))
		}
	}
	return down, l.changed
}

func (l *links) IsUp(nic int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.isDown[nic]
}

// close makes links that are back and not trusted yet stay as they are.
func (l *links) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for nic := range l.events {
		l.events[nic]++
	}
}

// UsableNIC returns the engine's number of a NIC that a lane can fail over to.
func (e *Engine) UsableNIC(nic uint32) (int, error) {
	if int64(nic) >= int64(len(e.Devices)) {
		return 0, fmt.Errorf("resume over NIC %d: the aggregator has %d", nic, len(e.Devices))
	}
	d := e.Devices[nic]
	i := slices.Index(e.Agg.NICs(), d)
	switch {
	case i < 0:
		return 0, fmt.Errorf("resume over %s: no lane of the aggregator uses it", d.Attr().Name)
	case !e.Links.IsUp(int(nic)):
		return 0, fmt.Errorf("resume over %s: its link is down", d.Attr().Name)
	}
	return i, nil
}
