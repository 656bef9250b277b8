package client

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/api"
)

// lasting are the codes of refusals that a later try would meet, too.
var lasting = []connect.Code{connect.CodeInvalidArgument, connect.CodePermissionDenied, connect.CodeUnauthenticated,
	connect.CodeUnimplemented}

// final is an error that a later try would meet, too.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

func lasts(err error) bool {
	return errors.As(err, new(final)) || slices.Contains(lasting, connect.CodeOf(err))
}

// place is a worker's place in its job, as long as no rack is left out.
type place struct {
	rank    int
	all     int // workers
	rack    string
	racks   []*api.Aggregator
	workers []uint32 // by rack
}

// follow changes a configuration to what the plan says.
func (p *place) follow(cfg *Config, m *api.Membership) error {
	own, sizes := p.own(), make([]uint32, len(p.racks)) // 0: the rack is out
	for _, h := range m.Racks {
		i := slices.IndexFunc(p.racks, func(r *api.Aggregator) bool { return r.Rack == h.Name })
		if i >= 0 && !h.Out {
			sizes[i] = max(h.Size, 1)
		}
		switch {
		case i < 0:
		case i == own && h.Url == "":
			return fmt.Errorf("%w: none serves rack %q by the plan of epoch %d: start it with --rack %s", ErrServerLost, h.Name, m.Epoch, h.Name)
		case i == own && h.Url != p.racks[own].Url:
			cfg.Server, cfg.CA = h.Url, cmp.Or(p.racks[own].Ca, cfg.CA)
		case h.Out:
			cfg.Workers -= int(p.workers[i])
			if i < own {
				cfg.Rank -= int(p.workers[i])
			}
		}
	}
	if cfg.Workers < p.all {
		return p.evenly(sizes)
	}
	return nil
}

// evenly returns an error if a rack has more workers for its size than another, because with fewer racks the service would divide
// the workers differently.
func (p *place) evenly(sizes []uint32) error {
	first := slices.IndexFunc(sizes, func(n uint32) bool { return n > 0 })
	for i, n := range sizes {
		if n > 0 && p.workers[i]*sizes[first] != p.workers[first]*n {
			return final{fmt.Errorf("racks %q and %q have %d and %d workers, by sizes %d and %d: to go on without another, "+
				"declare as a rack's size how many workers it has, and join again", p.racks[first].Rack, p.racks[i].Rack,
				p.workers[first], p.workers[i], sizes[first], n)}
		}
	}
	return nil
}

// own is the number of the worker's rack.
func (p *place) own() int {
	return slices.IndexFunc(p.racks, func(r *api.Aggregator) bool { return r.Rack == p.rack })
}

// keep makes the place the one of a run before, with what is known of aggregators now.
func (p *place) keep(before *place) {
	now := p.racks
	*p = *before
	p.racks = slices.Clone(p.racks)
	for i, r := range p.racks {
		for _, n := range now {
			if n.Rack == r.Rack && n.Url != "" {
				p.racks[i] = n
			}
		}
	}
}
