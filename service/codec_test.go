package service

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/rpc"
)

var decoders = map[string]codec{
	"proto": {"proto", proto.MarshalOptions{}.MarshalAppend, proto.Unmarshal, protoCost},
	"json":  {"json", protojson.MarshalOptions{}.MarshalAppend, fromJSON, jsonCost},
}

func TestAModelOfManyTensorsIsDecoded(t *testing.T) {
	var r api.RegisterRequest
	for i := range 20_000 {
		r.Tensors = append(r.Tensors, &api.Tensor{Name: fmt.Sprint("w", i), Shape: []uint64{64, 3}, Dtype: "f32"})
	}
	for name, c := range decoders {
		b, err := c.Marshal(&r)
		if err != nil {
			t.Fatal(err)
		}
		var back api.RegisterRequest
		if err := c.Unmarshal(b, &back); err != nil || !proto.Equal(&r, &back) {
			t.Errorf("%s: %d tensors, %v", name, len(back.Tensors), err)
		}
	}
}

func TestABodyThatWouldGrowIsNotDecoded(t *testing.T) {
	for name, body := range map[string][]byte{
		"proto": bytes.Repeat([]byte{0x12, 0}, 1<<20),
		"json":  []byte(`{"tensors":[` + strings.Repeat("{},", 1<<20) + `{}]}`),
	} {
		var r api.RegisterRequest
		err := decoders[name].Unmarshal(body, &r)
		if connect.CodeOf(err) != connect.CodeResourceExhausted || len(r.Tensors) != 0 {
			t.Errorf("%s: %d tensors, %v", name, len(r.Tensors), err)
		}
	}
}

// FuzzDecoders also checks that what is decoded costs about what was counted.
func FuzzDecoders(f *testing.F) {
	r := &api.RegisterRequest{Tensors: []*api.Tensor{{Name: "a", Shape: []uint64{1, 2}, Dtype: "f32"}, {}}}
	for _, c := range decoders {
		b, err := c.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, c.name == "json")
	}
	f.Fuzz(func(t *testing.T, b []byte, isJSON bool) {
		c := decoders["proto"]
		if isJSON {
			c = decoders["json"]
		}
		var r api.RegisterRequest
		if c.Unmarshal(b, &r) != nil {
			return
		}
		cost, err := c.cost(b, r.ProtoReflect().Descriptor())
		least := rpc.MessageCost * len(r.Tensors)
		for _, t := range r.Tensors {
			least += len(t.Name) + len(t.Dtype) + scalarCost*len(t.Shape)
		}
		if err != nil || cost < least {
			t.Errorf("%d tensors of %d bytes at least cost %d, %v", len(r.Tensors), least, cost, err)
		}
	})
}
