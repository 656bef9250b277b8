// Package format reads and writes the file that holds a job's parameters and optimizer state.
//
//	"RWCKPT1\n"
//	header: u32 length, protobuf CheckpointHeader, u32 CRC-32C of the protobuf
//	for each tensor of the header, for each array (CheckpointHeader has their order):
//	        f32[elems], u32 CRC-32C of them
//	"RWCKEND\n"
//
// Integers and floats are little-endian. Arrays are whole, whatever the chunks and lanes of the job that wrote them, so that a job
// with other chunks and lanes can read them.
package format

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"

	"google.golang.org/protobuf/proto"

	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/service/api"
)

// Limits of a file that is read.
const (
	maxHeaderBytes = 256 << 20
	maxArrays      = 8 // of each rack that trains on its own, and of the optimizer of all
	maxElems       = 1 << 50
)

var (
	magic     = []byte("RWCKPT1\n")
	endMark   = []byte("RWCKEND\n")
	crcTable  = crc32.MakeTable(crc32.Castagnoli)
	byteOrder = binary.LittleEndian
)

// ErrCorrupt is wrapped by errors of reading a file that is damaged or not a checkpoint.
var ErrCorrupt = errors.New("corrupt checkpoint")

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

// check validates a header.
func check(h *api.CheckpointHeader) error {
	if len(h.Racks) > hierarchy.MaxRacks {
		return fmt.Errorf("%d racks: there can be up to %d", len(h.Racks), hierarchy.MaxRacks)
	}
	for i, name := range h.Racks {
		if name == "" || len(name) > hierarchy.MaxRackName {
			return fmt.Errorf("rack %d has a name of %d bytes: it can have 1 to %d", i, len(name), hierarchy.MaxRackName)
		}
	}
	if most := maxArrays * (1 + len(h.Racks)); h.Arrays < 1 || int(h.Arrays) > most {
		return fmt.Errorf("%d arrays for each tensor: there can be 1 to %d", h.Arrays, most)
	}
	seen := make(map[string]bool, len(h.Tensors))
	for i, t := range h.Tensors {
		if t.Name == "" || seen[t.Name] {
			return fmt.Errorf("tensor %d has the name %q, which is empty or there twice", i, t.Name)
		}
		seen[t.Name] = true
		if t.Elems == 0 || t.Elems > maxElems {
			return fmt.Errorf("tensor %q has %d elements", t.Name, t.Elems)
		}
	}
	return nil
}

// sections walks through a file's arrays in order.
type sections struct {
	header *api.CheckpointHeader
	tensor int
	array  uint32
	done   uint64 // elements of the section
	sum    uint32
}

// left returns the number of elements that the section still has, or 0 after the last section.
func (s *sections) left() uint64 {
	if s.tensor == len(s.header.Tensors) {
		return 0
	}
	return s.header.Tensors[s.tensor].Elems - s.done
}

// take counts elements of the section, whose bytes are b. It reports whether they end the section.
func (s *sections) take(n uint64, b []byte) bool {
	s.sum = crc32.Update(s.sum, crcTable, b)
	s.done += n
	return s.left() == 0
}

func (s *sections) next() {
	s.done, s.sum = 0, 0
	if s.array++; s.array == s.header.Arrays {
		s.array = 0
		s.tensor++
	}
}

func (s *sections) String() string {
	name := s.header.Tensors[s.tensor].Name
	switch {
	case len(s.header.Racks) > 0:
		return fmt.Sprintf("values in array %d of tensor %q", s.array, name)
	case s.array == 0:
		return fmt.Sprintf("parameters of tensor %q", name)
	}
	return fmt.Sprintf("optimizer state %d of tensor %q", s.array, name)
}

const blockElems = 16 << 10

// Writer writes a checkpoint.
type Writer struct {
	w   io.Writer
	at  sections
	buf [4 * blockElems]byte
}

// NewWriter writes the header. The arrays of its tensors follow by Write.
func NewWriter(w io.Writer, h *api.CheckpointHeader) (*Writer, error) {
	if err := check(h); err != nil {
		return nil, err
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(h)
	if err != nil {
		return nil, err
	}
	if len(raw) > maxHeaderBytes {
		return nil, fmt.Errorf("a header of %d bytes: at most %d", len(raw), maxHeaderBytes)
	}
	head := byteOrder.AppendUint32(bytes.Clone(magic), uint32(len(raw)))
	head = append(head, raw...)
	head = byteOrder.AppendUint32(head, crc32.Checksum(raw, crcTable))
	if _, err := w.Write(head); err != nil {
		return nil, err
	}
	return &Writer{w: w, at: sections{header: h}}, nil
}

// Write writes the next elements, in the order of the file. They may span arrays. Write panics on more elements than the header
// has.
func (w *Writer) Write(x []float32) error {
	for len(x) > 0 {
		n := min(uint64(len(x)), w.at.left(), blockElems)
		if n == 0 {
			panic("format: more elements than the header has")
		}
		for i, v := range x[:n] {
			byteOrder.PutUint32(w.buf[4*i:], math.Float32bits(v))
		}
		b := w.buf[:4*n]
		if _, err := w.w.Write(b); err != nil {
			return err
		}
		x = x[n:]
		if w.at.take(n, b) {
			if err := binary.Write(w.w, byteOrder, w.at.sum); err != nil {
				return err
			}
			w.at.next()
		}
	}
	return nil
}

// Close ends the file. It leaves the underlying writer open.
func (w *Writer) Close() error {
	if w.at.left() != 0 {
		return fmt.Errorf("the %v end %d elements early", &w.at, w.at.left())
	}
	_, err := w.w.Write(endMark)
	return err
}

// Reader reads a checkpoint.
type Reader struct {
	// Header describes what follows.
	Header *api.CheckpointHeader
	r      io.Reader
	at     sections
	buf    [4 * blockElems]byte
}

// NewReader reads the header.
func NewReader(r io.Reader) (*Reader, error) {
	var head [12]byte
	_, err := io.ReadFull(r, head[:])
	if err == nil && bytes.HasPrefix(manifestMagic, head[:8]) {
		return nil, corrupt("it is the manifest of parts: restore it in a job that is spread over as many aggregators")
	}
	if err != nil || !bytes.Equal(head[:8], magic) {
		return nil, corrupt("it does not start with %q", magic)
	}
	n := byteOrder.Uint32(head[8:])
	if n > maxHeaderBytes {
		return nil, corrupt("a header of %d bytes: at most %d", n, maxHeaderBytes)
	}
	// The buffer grows as data comes: a wrong length does not claim memory.
	raw, err := io.ReadAll(io.LimitReader(r, int64(n)+4))
	if err != nil {
		return nil, err
	}
	if len(raw) != int(n)+4 {
		return nil, corrupt("it ends within its header")
	}
	if got, want := crc32.Checksum(raw[:n], crcTable), byteOrder.Uint32(raw[n:]); got != want {
		return nil, corrupt("the header's checksum is %08x, and the file has %08x", got, want)
	}
	h := &api.CheckpointHeader{}
	if err := proto.Unmarshal(raw[:n], h); err != nil {
		return nil, corrupt("header: %v", err)
	}
	if err := check(h); err != nil {
		return nil, corrupt("header: %v", err)
	}
	return &Reader{Header: h, r: r, at: sections{header: h}}, nil
}

// Read fills x with the next elements. They may span arrays. Elements of an array are right only once the array's end was read
// without an error. Read panics on more elements than the header has.
func (r *Reader) Read(x []float32) error {
	for len(x) > 0 {
		n := min(uint64(len(x)), r.at.left(), blockElems)
		if n == 0 {
			panic("format: more elements than the header has")
		}
		b := r.buf[:4*n]
		if err := r.full(b); err != nil {
			return err
		}
		for i := range n {
			x[i] = math.Float32frombits(byteOrder.Uint32(b[4*i:]))
		}
		x = x[n:]
		if r.at.take(n, b) {
			if err := r.full(b[:4]); err != nil {
				return err
			}
			if want := byteOrder.Uint32(b); r.at.sum != want {
				return corrupt("the %v have checksum %08x, and the file has %08x", &r.at, r.at.sum, want)
			}
			r.at.next()
		}
	}
	return nil
}

func (r *Reader) full(b []byte) error {
	_, err := io.ReadFull(r.r, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return corrupt("it ends within the %v", &r.at)
	}
	return err
}

// Close checks that the file ends where it should.
func (r *Reader) Close() error {
	if r.at.left() != 0 {
		return fmt.Errorf("%d elements of the %v were not read", r.at.left(), &r.at)
	}
	rest, err := io.ReadAll(io.LimitReader(r.r, int64(len(endMark))+1))
	if err != nil {
		return err
	}
	if !bytes.Equal(rest, endMark) {
		return corrupt("it does not end with %q", endMark)
	}
	return nil
}

// Verify reads a checkpoint to its end and returns its header.
func Verify(r io.Reader) (*api.CheckpointHeader, error) {
	c, err := NewReader(r)
	if err != nil {
		return nil, err
	}
	var block [blockElems]float32
	for c.at.left() > 0 {
		if err := c.Read(block[:min(c.at.left(), blockElems)]); err != nil {
			return nil, err
		}
	}
	return c.Header, c.Close()
}
