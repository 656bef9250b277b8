package racks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// StatusCommand returns the command line that prints the status of a rack's aggregator.
func (c *Config) StatusCommand(program string, rack int, flags ...string) []string {
	argv := append(asAdmin(program, "status", "--server", c.URL(rack), "--insecure"), flags...)
	return c.Aggregator(rack).Command(argv...)
}

// Status is the part of an aggregator's status that describes jobs.
type Status struct {
	Jobs []struct {
		State       string
		Shape       string
		ShapeReason string `json:"shape_reason"`
		Racks       []struct {
			Name    string
			Awaited int    `json:"awaited_chunks,string"` // that wait for the rack
			Sent    uint64 `json:"sent_bytes,string"`     // to it
		}
	}
}

// Status asks a rack's aggregator for its status.
func (l *Lab) Status(ctx context.Context, rack int) (s Status, err error) {
	argv := l.StatusCommand(l.Program, rack, "--json")
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(failed.Stderr)))
	}
	if err == nil {
		err = json.Unmarshal(out, &s)
	}
	if err != nil {
		return s, fmt.Errorf("ask for the status of %s in racks %q: %w", RackName(rack), l.Name, err)
	}
	return s, nil
}

// ProbeCommand returns the command line by which a rack's first worker has its aggregator measure the links between racks.
func (c *Config) ProbeCommand(program string, rack int, flags ...string) []string {
	argv := append(asAdmin(program, "probe", "--server", c.URL(rack), "--insecure"), flags...)
	return c.Worker(rack, 0).Command(argv...)
}

// Reduces waits until a job's sums have left a rack.
func (l *Lab) Reduces(ctx context.Context, rack int) error {
	return l.until(ctx, func(ctx context.Context) error {
		s, err := l.Status(ctx, rack)
		if err != nil {
			return err
		}
		for _, j := range s.Jobs {
			for _, r := range j.Racks {
				if r.Sent > 0 {
					return nil
				}
			}
		}
		return fmt.Errorf("no job in racks %q sends anything to another rack", l.Name)
	})
}

// Answers waits until the aggregators of all racks answer.
func (l *Lab) Answers(ctx context.Context) error {
	return l.until(ctx, func(ctx context.Context) error {
		for rack := range l.Racks {
			if _, err := l.Status(ctx, rack); err != nil {
				return fmt.Errorf("racks named %q are not up: %w", l.Name, err)
			}
		}
		return nil
	})
}

// patience limits the time that an aggregator may take to answer.
const patience = 10 * time.Second

// until tries something, at least once, until it succeeds or ctx ends. Then it returns the last failure.
func (l *Lab) until(ctx context.Context, try func(context.Context) error) error {
	for {
		attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		err := try(attempt)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}
