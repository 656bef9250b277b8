package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// RowsKind is the kind of a message that holds rows of a sparse tensor.
type RowsKind uint8

// The first four kinds go to the aggregator.
const (
	RowsGradient RowsKind = iota
	RowsWanted            // a gradient whose worker wants the step's results
	RowsFetch             // asks for the next block of results; a header alone
	RowsPull              // asks for the rows whose ids follow, in any order
	RowsBlock             // answers a fetch
)

// RowsHeader is the length in bytes of a header of rows.
const RowsHeader = 16

// rowsBitmap is the byte of a header whose ids are a bitmap.
const rowsBitmap = 1

// ErrRows is wrapped by the error for a message of rows that does not hold what its header says.
var ErrRows = errors.New("invalid message of rows")

// Rows is the header of a message that holds rows of a sparse tensor, in little-endian order: From, To and Count, each u32, the
// kind, whether the ids are a bitmap, and two bytes of 0. Rows are numbered within their lane.
//
// A gradient covers the rows [From, To) and lists Count of them, ascending: u32 numbers, or a bitmap of u32 words whose lowest bit
// is row From. The rows' elements follow. A pull's ids come in any order and may repeat, and no rows follow. A block has room for
// [BlockRows] ids, and holds Count ids and rows; every touched row before To is in it, or in a block before it.
type Rows struct {
	From, To, Count uint32
	Kind            RowsKind
	Bitmap          bool
}

// Append appends the header to p.
func (h Rows) Append(p []byte) []byte {
	for _, v := range [...]uint32{h.From, h.To, h.Count} {
		p = binary.LittleEndian.AppendUint32(p, v)
	}
	form := byte(0)
	if h.Bitmap {
		form = rowsBitmap
	}
	return append(p, byte(h.Kind), form, 0, 0)
}

// ids returns the number of u32 words that hold a message's ids.
func (h Rows) ids() uint64 {
	if h.Bitmap {
		return (uint64(h.To-h.From) + 31) / 32
	}
	return uint64(h.Count)
}

// Offset returns the offset in bytes of the rows in the payload of a gradient.
func (h Rows) Offset() int { return RowsHeader + 4*int(h.ids()) }

// BlockRows returns the largest number of rows in a block of chunkBytes, whose rows have rowBytes each.
func BlockRows(chunkBytes, rowBytes int) int { return (chunkBytes - RowsHeader) / (4 + rowBytes) }

// ReadRows decodes a header without checking it.
func ReadRows(header []byte) Rows {
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(header[4*i:]) }
	return Rows{From: word(0), To: word(1), Count: word(2), Kind: RowsKind(header[12]), Bitmap: header[13] == rowsBitmap}
}

// ParseRows decodes and checks the header of a message to the aggregator. The payload has a length of bytes, and a row of the
// tensor has rowBytes. ParseRows reads the header alone, which must be a copy if another process may write the payload. The error
// wraps [ErrRows].
func ParseRows(header []byte, bytes uint32, rowBytes int) (Rows, error) {
	if bytes < RowsHeader || len(header) < RowsHeader {
		return Rows{}, fmt.Errorf("%w: %d bytes: a header has %d", ErrRows, bytes, RowsHeader)
	}
	h := ReadRows(header)
	invalid := func(what string) (Rows, error) {
		return Rows{}, fmt.Errorf("%w: kind %d of %d rows in [%d, %d), %d bytes: %s", ErrRows, h.Kind, h.Count, h.From, h.To, bytes,
			what)
	}
	length := RowsHeader + 4*h.ids()
	switch h.Kind {
	case RowsGradient, RowsWanted:
		if h.From >= h.To || h.Count > h.To-h.From {
			return invalid("its range is empty, or has fewer rows than it lists")
		}
		length += uint64(h.Count) * uint64(rowBytes)
	case RowsFetch, RowsPull:
		if h.From != 0 || h.To != 0 || h.Bitmap || h.Kind == RowsFetch && h.Count != 0 {
			return invalid("a fetch or a pull has no range and no bitmap, and a fetch has no rows")
		}
	default:
		return invalid("the kind is unknown")
	}
	if header[13] > rowsBitmap || header[14] != 0 || header[15] != 0 {
		return invalid("unknown flags")
	}
	if length != uint64(bytes) {
		return invalid(fmt.Sprintf("its rows take %d", length))
	}
	return h, nil
}

// AppendRows appends a gradient that covers the rows [from, to). ids ascend strictly, and values holds their rows as they travel.
func AppendRows(p []byte, kind RowsKind, from, to uint32, ids []uint32, values []byte) []byte {
	h := Rows{From: from, To: to, Count: uint32(len(ids)), Kind: kind, Bitmap: true}
	h.Bitmap = h.ids() < uint64(len(ids))
	p = h.Append(p)
	at := len(p)
	p = append(p, make([]byte, 4*h.ids())...)
	for i, id := range ids {
		if h.Bitmap {
			p[at+int(id-from)/8] |= 1 << ((id - from) % 8)
		} else {
			binary.LittleEndian.PutUint32(p[at+4*i:], id)
		}
	}
	return append(p, values...)
}
