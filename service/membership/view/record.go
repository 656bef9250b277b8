package view

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"

	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/service/racks"
)

// Claim is an aggregator's claim on a rack, or on the leadership.
type Claim struct {
	Rack       string `json:"rack"`
	Aggregator string `json:"aggregator"`
	URL        string `json:"url"`
	Declared   string `json:"declared"` // the cluster as its file has it

	// Revision created the key, and is the claim's token. Lease is the lease that it is under. The view sets them. They are not part
	// of the value.
	Revision, Lease int64 `json:"-"`
}

// Decision is the plan as the leader writes it.
type Decision struct {
	Declared string         `json:"declared"`
	Leader   string         `json:"leader"` // its rack
	Token    int64          `json:"token"`  // of the leader's claim
	Holders  []racks.Holder `json:"holders"`

	// Epoch is the revision that wrote the plan. The view sets it. It is not part of the value.
	Epoch int64 `json:"-"`
}

// Bounds of what is read.
const (
	maxRecord = 256 << 10
	maxText   = 1 << 10
	sealBytes = 32
)

// ErrRecord is wrapped by every error about a value that was read.
var ErrRecord = errors.New("bad record")

// Encode returns a value under a key, sealed with the cluster's secret, because writing to etcd must not
// suffice for joining.
func Encode(secret, key string, v any) (string, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	if len(body) > maxRecord {
		return "", fmt.Errorf("%w: %d bytes, at most %d fit: declare fewer racks", ErrRecord, len(body), maxRecord)
	}
	return hex.EncodeToString(racks.Seal(secret, key, string(body))) + string(body), nil
}

// decode reads the value of a key.
func decode(secret, key string, value []byte, v interface{ check() error }) error {
	if len(value) < 2*sealBytes || len(value) > maxRecord+2*sealBytes {
		return fmt.Errorf("%w: %d bytes", ErrRecord, len(value))
	}
	seal, err := hex.DecodeString(string(value[:2*sealBytes]))
	body := value[2*sealBytes:]
	if err != nil || !racks.Sealed(seal, secret, key, string(body)) {
		return fmt.Errorf("%w: it is not sealed with this cluster's secret", ErrRecord)
	}
	if err = json.Unmarshal(body, v); err == nil {
		err = v.check()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRecord, err)
	}
	return nil
}

func (c *Claim) check() error {
	if c.Rack == "" || c.Aggregator == "" || c.URL == "" || max(len(c.Rack), len(c.Aggregator), len(c.URL)) > maxText {
		return fmt.Errorf("a claim of rack %.64q by %.64q at %.64q", c.Rack, c.Aggregator, c.URL)
	}
	return nil
}

func (d *Decision) check() error {
	if len(d.Holders) == 0 || len(d.Holders) > hierarchy.MaxRacks {
		return fmt.Errorf("a plan of %d racks", len(d.Holders))
	}
	for i, h := range d.Holders {
		if (h.Aggregator == "") != (h.URL == "") || h.Aggregator != "" && h.Out || max(len(h.Aggregator), len(h.URL)) > maxText {
			return fmt.Errorf("rack %d is served by %.64q at %.64q", i, h.Aggregator, h.URL)
		}
	}
	return nil
}

// Keys names the keys of a cluster's membership.
type Keys struct {
	Prefix string // of all of them
	Leader string // the claim on deciding
	Plan   string // the decision
}

// Rack returns the key of the claim on a rack.
func (k *Keys) Rack(name string) string { return k.Prefix + "racks/" + url.PathEscape(name) }
