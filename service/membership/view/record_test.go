package view

import (
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/service/racks"
)

func sealed(t testing.TB, key string, v any) []byte {
	t.Helper()
	s, err := Encode(testSecret, key, v)
	if err != nil {
		t.Fatal(err)
	}
	return []byte(s)
}

func TestRecordsAreReadAsTheyWereWritten(t *testing.T) {
	c := Claim{Rack: "a", Aggregator: "0123", URL: "http://a:1", Declared: "rack a"}
	if got, err := decodeClaim("/k", sealed(t, "/k", c)); err != nil || *got != c {
		t.Errorf("%+v, %v", got, err)
	}
	d := Decision{Declared: "rack a", Leader: "a", Token: 7}
	d.Holders = []racks.Holder{{Aggregator: "0", URL: "http://a:1", Token: 6}, {Out: true}}
	if got, err := decodeDecision("/k", sealed(t, "/k", d)); err != nil || !reflect.DeepEqual(*got, d) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestRecordsThatAreNotTheClustersAreRefused(t *testing.T) {
	c := Claim{Rack: "a", Aggregator: "0123", URL: "http://a:1"}
	good := sealed(t, "/k", c)
	for name, value := range map[string][]byte{
		"nothing":        nil,
		"no seal":        []byte(`{"rack":"a","aggregator":"0123","url":"http://a:1","declared":""}`),
		"of another key": sealed(t, "/other", c),
		"cut":            good[:len(good)-1],
		"with a tail":    append(good[:len(good):len(good)], ' ', '1'),
		"no rack":        sealed(t, "/k", Claim{Aggregator: "0123", URL: "http://a:1"}),
		"long":           sealed(t, "/k", Claim{Rack: "a", Aggregator: "0123", URL: strings.Repeat("x", maxText+1)}),
		"of other kind":  sealed(t, "/k", Decision{Holders: make([]racks.Holder, 2)}),
		"two values":     sealedText("/k", `{"rack":"a","aggregator":"0123","url":"http://a:1","declared":""} {}`),
	} {
		if got, err := decodeClaim("/k", value); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for name, d := range map[string]Decision{
		"no racks":         {},
		"served by no URL": {Holders: []racks.Holder{{Aggregator: "0"}}},
		"served and out":   {Holders: []racks.Holder{{Aggregator: "0", URL: "http://a:1", Out: true}}},
		"too many":         {Holders: make([]racks.Holder, 65)},
	} {
		if got, err := decodeDecision("/k", sealed(t, "/k", d)); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func decodeClaim(key string, value []byte) (*Claim, error) {
	c := new(Claim)
	return c, decode(testSecret, key, value, c)
}

func decodeDecision(key string, value []byte) (*Decision, error) {
	d := new(Decision)
	return d, decode(testSecret, key, value, d)
}

// sealedText seals a body that the codec would not write.
func sealedText(key, body string) []byte {
	return []byte(hex.EncodeToString(racks.Seal(testSecret, key, body)) + body)
}

// FuzzRecords reads bodies under a good seal, as one who has the secret and a bug may write them, and bare values.
func FuzzRecords(f *testing.F) {
	f.Add(`{"rack":"a","aggregator":"0","url":"http://a:1","declared":"x"}`)
	f.Add(`{"declared":"x","leader":"a","token":1,"holders":[{"aggregator":"0","url":"u","token":2},{"out":true}]}`)
	f.Add(`{"holders":[{"aggregator":"0"}]}`)
	f.Add("")
	f.Fuzz(func(t *testing.T, body string) {
		for _, value := range [][]byte{[]byte(body), sealedText("/k", body)} {
			if c, err := decodeClaim("/k", value); err == nil {
				again, err := decodeClaim("/k", sealed(t, "/k", c))
				if err != nil || *again != *c {
					t.Fatalf("%+v is read again as %+v, %v", c, again, err)
				}
			} else if !errors.Is(err, ErrRecord) {
				t.Fatal(err)
			}
			if d, err := decodeDecision("/k", value); err == nil {
				again, err := decodeDecision("/k", sealed(t, "/k", d))
				if err != nil || !reflect.DeepEqual(again, d) {
					t.Fatalf("%+v is read again as %+v, %v", d, again, err)
				}
			} else if !errors.Is(err, ErrRecord) {
				t.Fatal(err)
			}
		}
		v := New(testCluster(), 0)
		for _, key := range []string{v.Keys.Rack("a"), v.Keys.Leader, v.Keys.Plan, v.Keys.Prefix + "?"} {
			v.Put(key, sealedText(key, body), 1, 2, 0)
			v.Put(key, []byte(body), 1, 2, 0)
			v.Drop(key)
		}
		if len(v.Claims) > 0 || v.Leader != nil || v.Plan != nil {
			t.Fatalf("keys that are gone leave %+v", v)
		}
	})
}
