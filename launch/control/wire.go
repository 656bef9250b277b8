package control

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/rackweave/rackweave/service/api"
)

// The kinds of messages and their structs mirror cgo/library/control.h.
type kind uint32

const (
	kindError kind = iota
	kindJoin
	kindConnect
	kindRegister
	kindBarrier
	kindLeave
	kindPolicy
	kindLoss
	kindCodecs
)

const (
	maxBytes      = 64 << 20
	maxLanes      = 256
	endpointBytes = 256
)

type head struct {
	Kind  kind
	Bytes uint32
}

type hyperValue struct {
	Name  [16]byte
	Value float64
}

type joinRequest struct {
	Mode                  [16]byte
	Optimizer             [32]byte
	Policy                [96]byte
	Compress              [64]byte
	Provider              [16]byte
	Providers             [64]byte
	ChunkBytes, TimeoutMS uint32
	PID, UID, NHyper, _   uint32
	Hyper                 [16]hyperValue
}

type joinAnswer struct {
	Provider                                 [16]byte
	Rank, Workers, LocalWorkers              uint32
	ChunkBytes, Window, SendDepth, RecvDepth uint32
	LinkTimeoutMS                            uint32
	ByReference, LiveHyper, Steps, Answers   uint32
	Gradients                                gradientCodec
	Record                                   [8]float32
	NLanes, Decides                          uint32
	LaneNICs                                 [maxLanes]uint32
}

// gradientCodec mirrors struct rw_codec.
type gradientCodec struct {
	Size           uint32
	ID, Stochastic uint8
	_              [2]byte
	Param          float64
}

type codecsRequest struct{ Accepted, _ uint32 }

type codecsAnswer struct{ From, _ uint32 }

func gradientsOf(c *api.Codec) gradientCodec {
	if c == nil {
		return gradientCodec{}
	}
	return gradientCodec{
		Size: uint32(binary.Size(gradientCodec{})), ID: uint8(c.Id), Stochastic: uint8(number(c.Stochastic)), Param: c.Param,
	}
}

func number(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

type connectRequest struct{ AckTimeoutMS, TimeoutMS uint32 }

type endpoint struct {
	Size, Length  uint32
	Bytes         [endpointBytes]byte
	Addr          uint64
	RKey, Staging uint32
}

type registerRequest struct{ NTensors, TimeoutMS uint32 }

type tensor struct {
	Name           [128]byte
	Shape          [8]uint64
	NDim, WireType uint32
	Rows, _        uint32 // as in enum rw_rows
	LRMult, WDMult float64
}

type tellRequest struct {
	Text         [256]byte
	Value        float64
	TimeoutMS, _ uint32
}

var (
	order        = binary.NativeEndian // both ends are on one host
	endpointSize = binary.Size(endpoint{})
)

// receive reads a message.
func receive(r io.Reader) (kind, []byte, error) {
	var h head
	if err := binary.Read(r, order, &h); err != nil {
		return 0, nil, err
	}
	if h.Bytes > maxBytes {
		return 0, nil, fmt.Errorf("message of %d bytes: use at most %d", h.Bytes, maxBytes)
	}
	payload := make([]byte, h.Bytes)
	_, err := io.ReadFull(r, payload)
	return h.Kind, payload, err
}

// send writes a message whose payload is parts, one after another.
func send(w io.Writer, k kind, parts ...any) error {
	var payload bytes.Buffer
	for _, p := range parts {
		if err := binary.Write(&payload, order, p); err != nil {
			return err
		}
	}
	var message bytes.Buffer
	_ = binary.Write(&message, order, head{k, uint32(payload.Len())}) // writing to a buffer cannot fail
	message.Write(payload.Bytes())
	_, err := w.Write(message.Bytes())
	return err
}

// decode decodes a struct at the front of a payload and returns the rest.
func decode(payload []byte, v any) ([]byte, error) {
	n, err := binary.Decode(payload, order, v)
	if err != nil {
		return nil, fmt.Errorf("message of %d bytes is too short: the program's librackweave is of another version", len(payload))
	}
	return payload[n:], nil
}

// list decodes n structs that fill the payload.
func list[T any](payload []byte, n int) ([]T, error) {
	var one T
	if size := binary.Size(one); len(payload) != n*size {
		return nil, fmt.Errorf("%d bytes for %d records of %d: the program's librackweave is of another version", len(payload), n, size)
	}
	all := make([]T, n)
	if _, err := decode(payload, all); err != nil {
		return nil, err
	}
	return all, nil
}

// text returns the bytes before the first zero.
func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
