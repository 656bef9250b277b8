package engine

import (
	"errors"
	"log/slog"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

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

func TestALinkThatIsBackIsUsedOnceItHasLasted(t *testing.T) {
	d, err := verbs.Open(verbs.ProviderSHM, "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	synctest.Test(t, func(t *testing.T) {
		var l links
		l.open([]*verbs.Device{d}, slog.New(slog.DiscardHandler))
		_, changed := l.State()
		l.down(0)
		<-changed
		holds := func(what string, want bool, after time.Duration) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got := l.IsUp(0); got != want {
				t.Errorf("%s: up is %v, want %v", what, got, want)
			}
		}
		l.up(0)
		holds("back", false, verbs.LinkSettles-1)
		l.down(0)
		holds("down again", false, time.Minute)
		l.up(0)
		holds("back", false, verbs.LinkSettles/2)
		l.up(0)
		holds("up twice", false, verbs.LinkSettles-1)
		holds("it lasted", true, 1)
		l.down(0)
		l.up(0)
		l.close()
		holds("closed", false, time.Minute)
	})
}
