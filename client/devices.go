package client

import (
	"errors"
	"fmt"
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
	var without error // the first of those without a link
	for _, name := range names {
		err := w.openDevice(name)
		switch {
		case err == nil:
		case errors.Is(err, syscall.ENETDOWN) && !chosen:
			without = err
		default:
			return err
		}
		if len(w.devices) == cworker.MaxNICs {
			break
		}
	}
	if len(w.devices) == 0 {
		return without
	}
	return nil
}

func (w *Worker) openDevice(name string) error {
	d, err := verbs.Open(w.info.Provider, name, w.options())
	if err == nil {
		w.devices = append(w.devices, d)
	}
	return err
}

// options returns the configuration's, with the address where calls reach the aggregator: it may listen on all of its addresses.
func (w *Worker) options() string {
	at := w.server.Load()
	if w.info.Provider != verbs.ProviderTCP || at.Zone != "" {
		return w.cfg.ProviderOptions
	}
	return strings.TrimPrefix(w.cfg.ProviderOptions+",peer="+at.IP.String(), ",")
}
