package racks

import (
	"fmt"
	"slices"

	"github.com/rackweave/rackweave/bench/report"
)

// Row is one exchange of a study.
type Row struct {
	Fabric Config `json:"fabric"`
	Model  string `json:"model"`
	// Bytes are the model's.
	Bytes float64 `json:"bytes"`
	// Shape is the shape in which racks reduce among themselves. If empty, another library was measured.
	Shape string `json:"shape,omitempty"`
	Measured
	// Predicted is the time by a model of the exchange, in seconds. If 0, there is not one.
	Predicted float64 `json:"predicted_seconds,omitempty"`
	// Others is the share of the machine's cores that was busy before the exchange began.
	Others float64 `json:"others_cpu"`
	// Error is why the exchange could not be measured.
	Error string `json:"error,omitempty"`
}

// Key tells a row from the others of a study.
func (r *Row) Key() string { return fmt.Sprintf("%s, %s: %s", r.Fabric.Links(), r.Model, r.Name) }

// Links names the fabric.
func (c *Config) Links() string {
	if c.Racks == 1 {
		return fmt.Sprintf("1 rack of %d", c.Workers)
	}
	return fmt.Sprintf("%d racks of %d, core %g:1", c.Racks, c.Workers, c.Core)
}

// mostOthers is the share of the cores that other programs may keep busy.
const mostOthers = 0.2

// Void reports why a row shows the machine rather than its links; "": it does not.
func (r *Row) Void() string {
	switch {
	case r.Others > mostOthers:
		return fmt.Sprintf("other programs kept %.0f%% of the cores busy", 100*r.Others)
	case r.CPU > 0.7:
		return fmt.Sprintf("cores %.0f%% busy", 100*r.CPU)
	case r.Losses > 1000:
		return fmt.Sprintf("%d segments lost", r.Losses)
	}
	return ""
}

// summary returns a row for whoever watches.
func (r *Row) summary() string {
	if r.Error != "" {
		return r.Error
	}
	text := fmt.Sprintf("%.2f s, %.2f of the bound", r.Seconds, r.Seconds/r.Bound)
	if why := r.Void(); why != "" {
		text += ", void: " + why
	}
	return text
}

// Record holds the measurements of a study, and where it made them.
type Record struct {
	Machine report.Machine `json:"machine"`
	Settings
	Rows []Row `json:"rows"`
}

// has reports whether a row need not be measured again.
func (rec *Record) has(key string) bool {
	return slices.ContainsFunc(rec.Rows, func(r Row) bool { return r.Key() == key && r.Error == "" && r.Void() == "" })
}

// put adds a row, in place of an earlier one.
func (rec *Record) put(row Row) {
	if i := slices.IndexFunc(rec.Rows, func(r Row) bool { return r.Key() == row.Key() }); i >= 0 {
		rec.Rows[i] = row
		return
	}
	rec.Rows = append(rec.Rows, row)
}
