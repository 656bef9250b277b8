package client

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/verbs"
)

// openDevices opens the devices that the configuration names, or those that suit the provider.
func (w *Worker) openDevices() error {
	names, provider := w.cfg.Devices, w.info.Provider
	chosen := len(names) > 0
	switch {
	case chosen:
	case provider == verbs.ProviderSim:
		names = []string{fmt.Sprintf("%s.%d", w.cfg.Job, w.info.Rank)}
	case provider == verbs.ProviderIBV:
		var err error
		if names, err = verbs.Devices(provider); err != nil {
			return err
		}
		if len(names) == 0 {
			names = []string{""} // opening it says what is missing
		}
	default:
		names = []string{""}
	}
	if chosen && len(names) > cworker.MaxNICs {
		return fmt.Errorf("%d devices: a worker uses at most %d", len(names), cworker.MaxNICs)
	}
	for i, a := range w.aggregators {
		same := slices.IndexFunc(w.aggregators[:i], func(b *aggregator) bool { return b.options() == a.options() })
		if same >= 0 {
			a.device = w.aggregators[same].device
			continue
		}
		if a.device = len(w.devices); a.device == cworker.MaxNICs {
			return fmt.Errorf("aggregators at more than %d addresses: a worker uses at most as many devices, and %s needs one for each",
				cworker.MaxNICs, provider)
		}
		if err := w.openEach(names, chosen, a.options()); err != nil {
			return err
		}
	}
	return nil
}

// openEach opens devices, of those that were not chosen only such as have a link, as far as a worker may have them.
func (w *Worker) openEach(names []string, chosen bool, options string) error {
	before := len(w.devices)
	var without error // the first of those without a link
	for _, name := range names {
		if len(w.devices) == cworker.MaxNICs {
			break
		}
		d, err := verbs.Open(w.info.Provider, name, options)
		switch {
		case err == nil:
			w.devices = append(w.devices, d)
		case errors.Is(err, syscall.ENETDOWN) && !chosen:
			without = cmp.Or(without, err)
		default:
			return err
		}
	}
	if len(w.devices) == before {
		return without
	}
	return nil
}

// options returns the configuration's, with the address where calls reach the aggregator: it may listen on all of its addresses.
func (a *aggregator) options() string { return a.optionsOf(a.info.Provider) }

func (a *aggregator) optionsOf(provider string) string {
	at := a.at.Load()
	if provider != verbs.ProviderTCP || at.Zone != "" {
		return a.cfg.ProviderOptions
	}
	return strings.TrimPrefix(a.cfg.ProviderOptions+",peer="+at.IP.String(), ",")
}

// primaries says on which device each lane begins, where aggregators are reached over devices of their own; else nil.
func (w *Worker) primaries(nics []int) (devices []int) {
	last := w.aggregators[len(w.aggregators)-1]
	if last.device == 0 {
		return nil
	}
	for lane, nic := range nics {
		a := w.of(lane)
		end := len(w.devices)
		for _, b := range w.aggregators {
			if b.device > a.device {
				end = min(end, b.device)
			}
		}
		devices = append(devices, a.device+(nic-a.nic)%(end-a.device))
	}
	return devices
}
