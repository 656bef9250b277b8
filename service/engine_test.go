package service

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/rackweave/rackweave/verbs"
)

func TestDevicesWithoutALinkAreLeftOutUnlessTheyWereNamed(t *testing.T) {
	for _, tc := range []struct {
		name        string
		nics, found []string
		down        string
		want        []string // nil: an error
	}{
		{"one of two", nil, []string{"a", "b"}, "a", []string{"b"}},
		{"all", nil, []string{"a"}, "a", nil},
		{"a named one", []string{"a", "b"}, []string{"a", "b"}, "b", nil},
		{"none", nil, []string{"a", "b"}, "", []string{"a", "b"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := Options{NICs: tc.nics}
			if err := o.complete(); err != nil {
				t.Fatal(err)
			}
			e := &engine{provider: verbs.ProviderSim}
			defer e.close()
			got, err := e.openDevices(tc.found, &o, func(provider, name, options string) (*verbs.Device, error) {
				if name == tc.down {
					return nil, &verbs.Error{Op: "open", Errno: syscall.ENETDOWN, Text: "no active port"}
				}
				return verbs.Open(provider, t.Name()[:20]+name, options)
			})
			if tc.want == nil && !errors.Is(err, syscall.ENETDOWN) || tc.want != nil && err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, tc.want) || tc.want != nil && len(e.devices) != len(tc.want) {
				t.Errorf("%v, %d devices opened, want %v", got, len(e.devices), tc.want)
			}
		})
	}
}
