package view

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

	// Revision created the key, and is the claim's token. The view sets it. It is not part of the value.
	Revision int64 `json:"-"`
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

func decode(secret, key string, value []byte, v any) error {
	if len(value) < 2*sealBytes || len(value) > maxRecord+2*sealBytes {
		return fmt.Errorf("%w: %d bytes", ErrRecord, len(value))
	}
	seal, err := hex.DecodeString(string(value[:2*sealBytes]))
	body := value[2*sealBytes:]
	if err != nil || !racks.Sealed(seal, secret, key, string(body)) {
		return fmt.Errorf("%w: it is not sealed with this cluster's secret", ErrRecord)
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w: %w", ErrRecord, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: more follows", ErrRecord)
	}
	return nil
}

func decodeClaim(secret, key string, value []byte) (*Claim, error) {
	c := new(Claim)
	if err := decode(secret, key, value, c); err != nil {
		return nil, err
	}
	if c.Rack == "" || c.Aggregator == "" || c.URL == "" || max(len(c.Rack), len(c.Aggregator), len(c.URL)) > maxText {
		return nil, fmt.Errorf("%w: a claim of rack %.64q by %.64q at %.64q", ErrRecord, c.Rack, c.Aggregator, c.URL)
	}
	return c, nil
}

func decodeDecision(secret, key string, value []byte) (*Decision, error) {
	d := new(Decision)
	if err := decode(secret, key, value, d); err != nil {
		return nil, err
	}
	if len(d.Holders) == 0 || len(d.Holders) > hierarchy.MaxRacks {
		return nil, fmt.Errorf("%w: a plan of %d racks", ErrRecord, len(d.Holders))
	}
	for i, h := range d.Holders {
		if (h.Aggregator == "") != (h.URL == "") || h.Aggregator != "" && h.Out || max(len(h.Aggregator), len(h.URL)) > maxText {
			return nil, fmt.Errorf("%w: rack %d is served by %.64q at %.64q", ErrRecord, i, h.Aggregator, h.URL)
		}
	}
	return d, nil
}

// Keys names the keys of a cluster's membership.
type Keys struct {
	Prefix string // of all of them
}

// NewKeys returns the keys of the cluster of a name.
func NewKeys(cluster string) Keys { return Keys{"/rackweave/" + url.PathEscape(cluster) + "/"} }

// Leader returns the key of the claim on deciding.
func (k Keys) Leader() string { return k.Prefix + "leader" }

// Plan returns the key of the decision.
func (k Keys) Plan() string { return k.Prefix + "plan" }

// Rack returns the key of the claim on a rack.
func (k Keys) Rack(name string) string { return k.racks() + url.PathEscape(name) }

func (k Keys) racks() string { return k.Prefix + "racks/" }
