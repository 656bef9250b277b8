// Package doctor examines a machine and reports the settings that help or hinder, each with its remedy.
package doctor

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

// Level is the importance of a finding.
type Level string

// These are the levels: as it should be; good to know; works, but slower or not for long; does not work.
const (
	LevelOK   Level = "ok"
	LevelInfo Level = "info"
	LevelWarn Level = "warn"
	LevelFail Level = "fail"
)

// Finding is the result of one examination. Remedy is the text of a remedy, as a command if one exists.
type Finding struct {
	Check  string `json:"check"`
	Level  Level  `json:"level"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

// Examine examines this machine: its settings, and its transports.
func Examine() ([]Finding, error) {
	top, err := numa.Discover("")
	if err != nil {
		return nil, err
	}
	return append(Findings(top, numa.ReadLimits()), providers()...), nil
}

// providers reports the transports that work on this machine, by opening them.
func providers() []Finding {
	var all []Finding
	for _, p := range []string{verbs.ProviderIBV, verbs.ProviderSHM, verbs.ProviderTCP} {
		f := Finding{Check: "provider " + p, Level: LevelOK}
		d, err := verbs.Open(p, "", "")
		if err != nil {
			f.Level, f.Detail = LevelInfo, err.Error()
		} else {
			a := d.Attr()
			f.Detail = fmt.Sprintf("device %s: queue pairs of %d work requests, completion queues of %d", a.Name, a.MaxQPWR, a.MaxCQE)
			if err := d.Close(); err != nil {
				f.Level, f.Detail = LevelWarn, err.Error()
			}
		}
		all = append(all, f)
	}
	return all
}

// Write writes findings for a person to read, each remedy on a line of its own.
func Write(w io.Writer, all []Finding) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range all {
		fmt.Fprintf(table, "%s\t%s\t%s\n", f.Level, f.Check, f.Detail)
		if f.Remedy != "" {
			fmt.Fprintf(table, "\t\t→ %s\n", f.Remedy)
		}
	}
	table.Flush()
}
