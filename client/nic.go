package client

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/verbs"
)

// nic is one of the worker's devices, with what is opened there.
type nic struct {
	device *verbs.Device
	pd     *verbs.PD
	cq     *verbs.CQ
}

func (n *nic) close() error {
	var errs []error
	if n.cq != nil {
		errs = append(errs, n.cq.Close())
	}
	if n.pd != nil {
		errs = append(errs, n.pd.Close())
	}
	return errors.Join(append(errs, n.device.Close())...)
}

// openNICs opens the devices that the configuration names, or else those that suit the provider.
func (w *Worker) openNICs() error {
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
		err := w.openNIC(name)
		switch {
		case err == nil:
		case errors.Is(err, syscall.ENETDOWN) && !chosen:
			without = err
		default:
			return err
		}
		if len(w.nics) == cworker.MaxNICs {
			break
		}
	}
	if len(w.nics) == 0 {
		return without
	}
	return nil
}

func (w *Worker) openNIC(name string) error {
	d, err := verbs.Open(w.info.Provider, name, w.options())
	if err != nil {
		return err
	}
	w.nics = append(w.nics, nic{device: d})
	n := &w.nics[len(w.nics)-1]
	if n.pd, err = d.AllocPD(); err != nil {
		return err
	}
	n.cq, err = d.CreateCQ(len(w.info.Lanes) * (int(w.info.SendDepth) + int(w.info.RecvDepth)))
	return err
}

// options are those of the configuration and, for an aggregator that listens on every address, the one where calls reach it.
func (w *Worker) options() string {
	at := w.server.Load()
	if w.info.Provider != verbs.ProviderTCP || at.Zone != "" {
		return w.cfg.ProviderOptions
	}
	return strings.TrimPrefix(w.cfg.ProviderOptions+",peer="+at.IP.String(), ",")
}

func (w *Worker) createQP(nic int) (*verbs.QP, error) {
	n := &w.nics[nic]
	return n.pd.CreateQP(verbs.QPConfig{SendCQ: n.cq, RecvCQ: n.cq, MaxSendWR: int(w.info.SendDepth), MaxRecvWR: int(w.info.RecvDepth)})
}
