package client

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"

	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/verbs"
)

// openDevices opens the devices that the configuration names, or all that suit the provider, as far as a worker may have them. If
// they were not named, it leaves out those without a link. On an error it returns the devices which it has opened.
func openDevices(c *Config, info *api.JoinResponse) (open []*verbs.Device, err error) {
	names, chosen := c.Devices, len(c.Devices) > 0
	switch {
	case len(names) > cworker.MaxNICs:
		return nil, fmt.Errorf("%d devices: a worker uses at most %d", len(names), cworker.MaxNICs)
	case chosen:
	case verbs.HasNICs(info.Provider):
		if names, err = verbs.Devices(info.Provider); err != nil {
			return nil, err
		}
	}
	if len(names) == 0 {
		names = []string{""} // opening it reports what is missing
	}
	var without error // the first of those without a link
	for _, name := range names[:min(len(names), cworker.MaxNICs)] {
		dev, err := verbs.Open(info.Provider, name, c.ProviderOptions)
		switch {
		case err == nil:
			open = append(open, dev)
		case errors.Is(err, syscall.ENETDOWN) && !chosen:
			without = cmp.Or(without, err)
		default:
			return open, err
		}
	}
	if len(open) == 0 {
		return nil, without
	}
	return open, nil
}
