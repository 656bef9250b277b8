package engine

import (
	"errors"
	"log/slog"
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
			o := Config{NICs: tc.nics, Log: slog.New(slog.DiscardHandler)}
			e := &Engine{Provider: verbs.ProviderSHM}
			defer e.close()
			got, err := e.openDevices(tc.found, &o, func(provider, name, options string) (*verbs.Device, error) {
				if name == tc.down {
					return nil, &verbs.Error{Op: "open", Errno: syscall.ENETDOWN, Text: "no active port"}
				}
				return verbs.Open(provider, "", options)
			})
			if tc.want == nil && !errors.Is(err, syscall.ENETDOWN) || tc.want != nil && err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, tc.want) || tc.want != nil && len(e.Devices) != len(tc.want) {
				t.Errorf("%v, %d devices opened, want %v", got, len(e.Devices), tc.want)
			}
		})
	}
}
