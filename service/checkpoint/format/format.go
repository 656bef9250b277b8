// Package format reads and writes the file that holds a job's parameters and optimizer state.
//
//	"RWCKPT2\n"
//	u32 length, protobuf CheckpointHeader
//	for each tensor of the header, for each array (CheckpointHeader has their order): f32[elems]
//	u32 CRC-32C of all that
//
// Integers and floats are little-endian. Arrays are whole, whatever the chunks and lanes of the job that wrote them, so that a job
// with other chunks and lanes can read them.
package format

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/service/api"
)

// Limits of a file that is read.
const (
	maxHeaderBytes = 256 << 20
	maxArrays      = 8 // of each rack that trains on its own, and of the optimizer of all
	maxElems       = 1 << 50
	// maxManifestBytes limits a manifest.
	maxManifestBytes = 1 << 20
)

var (
	magic         = []byte("RWCKPT2\n")
	manifestMagic = []byte("RWCKMAN1\n")
	byteOrder     = binary.LittleEndian
)

// ErrCorrupt is wrapped by errors of reading a file that is damaged or not a checkpoint.
var ErrCorrupt = errors.New("corrupt checkpoint")

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

func newSum() hash.Hash32 { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) }

// check validates a header and returns the number of elements that follow it.
func check(h *api.CheckpointHeader) (elems uint64, err error) {
	if len(h.Racks) > hierarchy.MaxRacks {
		return 0, fmt.Errorf("%d racks: there can be up to %d", len(h.Racks), hierarchy.MaxRacks)
	}
	for i, name := range h.Racks {
		if name == "" || len(name) > hierarchy.MaxRackName {
			return 0, fmt.Errorf("rack %d has a name of %d bytes: it can have 1 to %d", i, len(name), hierarchy.MaxRackName)
		}
	}
	if most := maxArrays * (1 + len(h.Racks)); h.Arrays < 1 || int(h.Arrays) > most {
		return 0, fmt.Errorf("%d arrays for each tensor: there can be 1 to %d", h.Arrays, most)
	}
	seen := make(map[string]bool, len(h.Tensors))
	for i, t := range h.Tensors {
		if t.Name == "" || seen[t.Name] {
			return 0, fmt.Errorf("tensor %d has the name %q, which is empty or there twice", i, t.Name)
		}
		seen[t.Name] = true
		if elems += t.Elems * uint64(h.Arrays); t.Elems == 0 || t.Elems > maxElems || elems > maxElems {
			return 0, fmt.Errorf("tensor %q has %d elements", t.Name, t.Elems)
		}
	}
	return elems, nil
}

// blockElems is the number of elements that are converted at once.
const blockElems = 16 << 10

// Writer writes a checkpoint.
type Writer struct {
	to   io.Writer // the file and the sum
	sum  hash.Hash32
	left uint64 // elements
}

// NewWriter writes the header. The arrays of its tensors follow by Write.
func NewWriter(file io.Writer, h *api.CheckpointHeader) (*Writer, error) {
	elems, err := check(h)
	if err != nil {
		return nil, err
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(h)
	if err != nil {
		return nil, err
	}
	if len(raw) > maxHeaderBytes {
		return nil, fmt.Errorf("a header of %d bytes: at most %d", len(raw), maxHeaderBytes)
	}
	w := &Writer{sum: newSum(), left: elems}
	w.to = io.MultiWriter(file, w.sum)
	_, err = w.to.Write(append(byteOrder.AppendUint32(bytes.Clone(magic), uint32(len(raw))), raw...))
	return w, err
}

// Write writes the next elements, in the order of the file. They may span arrays. Write panics on more elements than the header
// has.
func (w *Writer) Write(x []float32) error {
	if w.left -= uint64(len(x)); int64(w.left) < 0 {
		panic("format: more elements than the header has")
	}
	for block := range slices.Chunk(x, blockElems) {
		if err := binary.Write(w.to, byteOrder, block); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the file with its checksum, and returns that. It leaves the underlying writer open.
func (w *Writer) Close() (sum []byte, err error) {
	if w.left != 0 {
		return nil, fmt.Errorf("%d elements were not written", w.left)
	}
	sum = byteOrder.AppendUint32(nil, w.sum.Sum32())
	_, err = w.to.Write(sum)
	return sum, err
}

// Reader reads a checkpoint.
type Reader struct {
	// Header describes what follows.
	Header *api.CheckpointHeader
	file   io.Reader
	from   io.Reader // the file, whose bytes are added to the sum
	sum    hash.Hash32
	left   uint64 // elements
}

// NewReader reads the header.
func NewReader(file io.Reader) (*Reader, error) {
	r := &Reader{Header: &api.CheckpointHeader{}, file: file, sum: newSum()}
	r.from = io.TeeReader(file, r.sum)
	var head [12]byte
	got, err := io.ReadFull(r.from, head[:])
	if err == nil && bytes.HasPrefix(manifestMagic, head[:8]) {
		return nil, corrupt("it is the manifest of parts: restore it in a job that is spread over as many aggregators")
	}
	if err != nil || !bytes.Equal(head[:8], magic) {
		return nil, corrupt("it starts with %q, and checkpoints of this version with %q", head[:min(got, 8)], magic)
	}
	n := byteOrder.Uint32(head[8:])
	if n > maxHeaderBytes {
		return nil, corrupt("a header of %d bytes: at most %d", n, maxHeaderBytes)
	}
	// The buffer grows as data comes: a wrong length does not claim memory.
	raw, err := io.ReadAll(io.LimitReader(r.from, int64(n)))
	if err != nil {
		return nil, err
	}
	if len(raw) != int(n) {
		return nil, corrupt("it ends within its header")
	}
	if err := proto.Unmarshal(raw, r.Header); err != nil {
		return nil, corrupt("header: %v", err)
	}
	if r.left, err = check(r.Header); err != nil {
		return nil, corrupt("header: %v", err)
	}
	return r, r.Read(nil)
}

// Read fills x with the next elements. They may span arrays. The elements are right only once the last were read without an error,
// because then Read compares the checksum. Read panics on more elements than the header has.
func (r *Reader) Read(x []float32) error {
	if r.left -= uint64(len(x)); int64(r.left) < 0 {
		panic("format: more elements than the header has")
	}
	for block := range slices.Chunk(x, blockElems) {
		switch err := binary.Read(r.from, byteOrder, block); {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return corrupt("it ends within its arrays")
		case err != nil:
			return err
		}
	}
	if r.left > 0 {
		return nil
	}
	rest, err := io.ReadAll(io.LimitReader(r.file, 5))
	if got := byteOrder.AppendUint32(nil, r.sum.Sum32()); err == nil && !bytes.Equal(got, rest) {
		return corrupt("its checksum is %x, and it ends with %x", got, rest)
	}
	return err
}

// Verify reads a checkpoint to its end, and returns its header and its checksum.
func Verify(file io.Reader) (h *api.CheckpointHeader, sum []byte, err error) {
	r, err := NewReader(file)
	var block [blockElems]float32
	for err == nil && r.left > 0 {
		err = r.Read(block[:min(r.left, blockElems)])
	}
	if err != nil {
		return nil, nil, err
	}
	return r.Header, byteOrder.AppendUint32(nil, r.sum.Sum32()), nil
}

// EncodeManifest returns a manifest as its file has it: a line and JSON.
func EncodeManifest(m *api.CheckpointManifest) ([]byte, error) {
	text, err := protojson.MarshalOptions{Multiline: true}.Marshal(m)
	return slices.Concat(manifestMagic, text, []byte("\n")), err
}

// ReadManifest reads a manifest. It returns one without parts if the file is a checkpoint of this or another version, which a save
// replaces.
func ReadManifest(file io.Reader) (*api.CheckpointManifest, error) {
	m := &api.CheckpointManifest{}
	b, err := io.ReadAll(io.LimitReader(file, maxManifestBytes))
	text, is := bytes.CutPrefix(b, manifestMagic)
	switch {
	case err != nil || bytes.HasPrefix(b, magic[:len("RWCKPT")]):
		return m, err
	case !is:
		return nil, corrupt("it starts with neither %q nor %q", magic, manifestMagic)
	}
	if err := protojson.Unmarshal(text, m); err != nil {
		return nil, corrupt("manifest: %v", err)
	}
	return m, nil
}
