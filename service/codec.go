package service

import (
	"fmt"

	"connectrpc.com/connect"
	"github.com/rackweave/rackweave/service/rpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A request may take this many times its bytes in memory, and always smallMessage. Two bytes make an empty message of a list, so
// that a body could grow a hundredfold.
const (
	growth       = 32
	smallMessage = 64 << 10
)

// What decoding costs in bytes, roughly.
const (
	stringCost = 24
	scalarCost = 8
)

// codecs decode what costs no more than it may. They count before they decode.
var codecs = []connect.HandlerOption{
	connect.WithCodec(codec{"proto", proto.MarshalOptions{}.MarshalAppend, proto.Unmarshal, protoCost}),
	connect.WithCodec(codec{"json", protojson.MarshalOptions{}.MarshalAppend, fromJSON, jsonCost}),
	connect.WithCodec(codec{"json; charset=utf-8", protojson.MarshalOptions{}.MarshalAppend, fromJSON, jsonCost}),
	connect.WithCompression("gzip", nil, nil), // neither inflated nor deflated: requests are small, and payloads do not travel here
}

type codec struct {
	name      string
	marshal   func([]byte, proto.Message) ([]byte, error) // appends
	unmarshal func([]byte, proto.Message) error
	cost      func([]byte, protoreflect.MessageDescriptor) (int, error)
}

// Name implements connect.Codec.
func (c codec) Name() string { return c.name }

// IsBinary says whether the bytes are text, for connect.
func (c codec) IsBinary() bool { return c.name == "proto" }

// Marshal implements connect.Codec.
func (c codec) Marshal(message any) ([]byte, error) { return c.MarshalAppend(nil, message) }

// MarshalAppend lets connect use its buffers again.
func (c codec) MarshalAppend(to []byte, message any) ([]byte, error) {
	return c.marshal(to, message.(proto.Message))
}

// MarshalStable is for the requests that connect takes out of URLs.
func (c codec) MarshalStable(message any) ([]byte, error) { return c.Marshal(message) }

// Unmarshal implements connect.Codec.
func (c codec) Unmarshal(b []byte, message any) error {
	m := message.(proto.Message)
	cost, err := c.cost(b, m.ProtoReflect().Descriptor())
	if err != nil {
		return err
	}
	if most := smallMessage + growth*len(b); cost > most {
		return rpc.Refuse(connect.CodeResourceExhausted, "a request of %d bytes would take %d of memory, at most %d are given: leave out empty parts",
			len(b), cost, most)
	}
	return c.unmarshal(b, m)
}

func fromJSON(b []byte, m proto.Message) error {
	if len(b) == 0 {
		return fmt.Errorf("empty JSON: give {} at least")
	}
	return protojson.UnmarshalOptions{DiscardUnknown: true, RecursionLimit: 32}.Unmarshal(b, m)
}

// protoCost walks through a message in its binary form.
func protoCost(b []byte, m protoreflect.MessageDescriptor) (cost int, err error) {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return 0, protowire.ParseError(n)
		}
		value := b[:n]
		b = b[n:]
		f := m.Fields().ByNumber(number)
		switch {
		case f == nil:
			cost += stringCost + n
		case kind != protowire.BytesType:
			cost += scalarCost
		case f.Message() != nil:
			inner, _ := protowire.ConsumeBytes(value)
			of, err := protoCost(inner, f.Message())
			if err != nil {
				return 0, err
			}
			cost += rpc.MessageCost + of
		case f.Kind() == protoreflect.StringKind || f.Kind() == protoreflect.BytesKind:
			cost += stringCost + n
		default:
			cost += stringCost + scalarCost*n // packed: an element takes a byte at least
		}
	}
	return cost, nil
}

// jsonCost counts the characters that can begin a value. Text that is not JSON is left to the decoder, which stops at the first
// wrong byte.
func jsonCost(b []byte, _ protoreflect.MessageDescriptor) (cost int, err error) {
	inString := false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case inString:
			cost++
			switch c {
			case '\\':
				i++
			case '"':
				inString = false
			}
		case c == '"':
			inString = true
			cost += stringCost
		case c == '{':
			cost += rpc.MessageCost
		case c == ',' || c == '[':
			cost += scalarCost
		}
	}
	return cost, nil
}
