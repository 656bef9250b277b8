package racks

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/launch"
	"github.com/rackweave/rackweave/verbs"
)

// tcpPort is the port at which the lab's aggregators listen.
const tcpPort = 7077

// adminToken lets anybody see all jobs of the lab's aggregators, which serve nobody else's hosts: it need not be a secret.
const adminToken = "lab"

// asAdmin returns the command line of the program by the admin.
func asAdmin(argv ...string) []string {
	return append([]string{"env", "RACKWEAVE_ADMIN_TOKEN=" + adminToken}, argv...)
}

// window is the number of messages of a worker that may be under way. On a link as slow as the
// lab's this is 40 ms of traffic, for which what is more urgent waits; the window that suits a fast link is four times that.
const window = 16

// URL returns the address at which a rack's aggregator listens.
func (c *Config) URL(rack int) string {
	return fmt.Sprintf("http://%s:%d", c.Aggregator(rack).Addr, tcpPort)
}

// Servers are the URLs of all aggregators, as a benchmark takes them.
func (c *Config) Servers() string {
	urls := make([]string, c.Racks)
	for rack := range urls {
		urls[rack] = c.URL(rack)
	}
	return strings.Join(urls, ",")
}

// serve starts an aggregator on a host.
func (l *Lab) serve(ctx context.Context, h Host, window int, flags ...string) (*launch.Server, error) {
	argv := append(h.Command(asAdmin(l.Program, "serve", "--listen", fmt.Sprintf("%s:%d", h.Addr, tcpPort), "--providers",
		verbs.ProviderTCP, "--unpinned", "--window", fmt.Sprint(window), "--until-eof", "--log-level", "warn", "--insecure")...),
		flags...)
	return launch.StartAggregator(ctx, argv, l.Log)
}

// Cluster is the aggregators of all racks, that reduce among themselves.
type Cluster struct {
	lab         *Lab
	window      int
	Aggregators []*launch.Server // by rack
	folder      string
}

// RackName is a rack's name in the cluster's file.
func RackName(rack int) string { return fmt.Sprintf("rack%d", rack) }

// file is the cluster's file. core is the type of sums between racks, or their codecs.
func (c *Config) file(shape, core, secret string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "shape: %s\ncore: %s\nsecret: %s\nracks:\n", shape, core, secret)
	for rack := range c.Racks {
		pod := ""
		if c.Pods > 0 {
			pod = fmt.Sprintf(", pod: pod%d", c.pod(rack))
		}
		fmt.Fprintf(&b, "  - {name: %s, url: %q, size: %d%s}\n", RackName(rack), c.URL(rack), c.Workers, pod)
	}
	return b.String()
}

// Serve starts an aggregator in each rack, that reduce among themselves in a shape.
func (l *Lab) Serve(ctx context.Context, shape string) (*Cluster, error) {
	file := l.file(shape, cmp.Or(l.Between, "f32"), rand.Text())
	w := window
	if shape == hierarchy.Flat.String() {
		w = max(window/l.Racks, 1) // workers have one at each rack's aggregator
	}
	return l.serveEach(ctx, w, func(int) string { return file })
}

// serveEach starts an aggregator in each rack, with a cluster's file of its own.
func (l *Lab) serveEach(ctx context.Context, window int, file func(rack int) string) (*Cluster, error) {
	folder, err := os.MkdirTemp("", "rackweave-racks-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{lab: l, window: window, Aggregators: make([]*launch.Server, l.Racks), folder: folder}
	for rack := range l.Racks {
		err := os.WriteFile(c.file(rack), []byte(file(rack)), 0o600)
		if err == nil {
			err = c.start(ctx, rack)
		}
		if err != nil {
			return nil, errors.Join(err, c.Stop())
		}
	}
	return c, nil
}

func (c *Cluster) file(rack int) string { return filepath.Join(c.folder, RackName(rack)+".yaml") }

// start starts a rack's aggregator, at first or again.
func (c *Cluster) start(ctx context.Context, rack int) (err error) {
	c.Aggregators[rack], err = c.lab.serve(ctx, c.lab.Aggregator(rack), c.window, "--cluster", c.file(rack), "--rack",
		RackName(rack))
	if err != nil {
		return fmt.Errorf("%s: %w", RackName(rack), err)
	}
	return nil
}

// Wait returns when ctx ends, or with what ended an aggregator.
func (c *Cluster) Wait(ctx context.Context) error {
	ended := make(chan int, len(c.Aggregators))
	for rack, a := range c.Aggregators {
		go func() {
			<-a.Ended()
			ended <- rack
		}()
	}
	select {
	case <-ctx.Done():
		return nil
	case rack := <-ended:
		return fmt.Errorf("%s: its aggregator ended: %w", RackName(rack), c.Aggregators[rack].Err())
	}
}

// Stop ends all aggregators and their jobs.
func (c *Cluster) Stop() error {
	var errs []error
	for _, a := range c.Aggregators {
		if a != nil {
			errs = append(errs, a.Stop())
		}
	}
	return errors.Join(append(errs, os.RemoveAll(c.folder))...)
}
