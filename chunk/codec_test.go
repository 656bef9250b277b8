package chunk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// The wire's constants and sample bytes, in a file that C can be checked against.
func TestWireFormatIsGolden(t *testing.T) {
	datadriven.RunTest(t, "testdata/wire.txt", func(t *testing.T, d *datadriven.TestData) string {
		var b strings.Builder
		switch d.Cmd {
		case "constants":
			for _, c := range []struct {
				name  string
				value int
			}{
				{"OP_SHIFT", OpShift}, {"EPOCH_SHIFT", EpochShift},
				{"OP_MASK", OpMask}, {"EPOCH_MASK", EpochMask}, {"INDEX_MASK", IndexMask},
			} {
				fmt.Fprintf(&b, "%s = %d\n", c.name, c.value)
			}
			for op := Op(0); op <= OpMask; op++ {
				fmt.Fprintf(&b, "OP_%s = %d\n", strings.ToUpper(op.String()), op)
			}
			fmt.Fprintf(&b, "RECORD_BYTES = %d\nRECORD_SKIP = %d\nRECORD_HAS_DST = %d\nRECORD_PAST_CACHE = %d\n",
				RecordBytes, RecordSkip, RecordHasDst, RecordPastCache)
		case "pack":
			var op, epoch, index int
			d.ScanArgs(t, "op", &op)
			d.ScanArgs(t, "epoch", &epoch)
			d.ScanArgs(t, "index", &index)
			fmt.Fprintf(&b, "%#08x\n", Pack(Op(op), uint8(epoch), uint32(index)))
		case "record":
			r := sampleRecord
			fmt.Fprintf(&b, "%+v\n", r)
			var buf [RecordBytes]byte
			r.Encode(buf[:])
			for i := 0; i < len(buf); i += 16 {
				fmt.Fprintf(&b, "% x\n", buf[i:i+16])
			}
		}
		return b.String()
	})
}

var sampleRecord = TensorRecord{
	LR: 0.1, WD: 1e-4, Scale: 0.25, Clip: 1, Momentum: 0.9, Beta2: 0.999, Eps: 1e-8, Extra: -0.5,
	DstAddr: 0x7f1122334455, DstRKey: 0xa1b2c3d4, Flags: RecordHasDst | RecordPastCache, Step: 70000,
}

func FuzzImmediateSurvivesUnpackAndPack(f *testing.F) {
	f.Add(uint32(0))
	f.Add(uint32(math.MaxUint32))
	f.Add(uint32(0xa5a5a5a5))
	f.Fuzz(func(t *testing.T, imm uint32) {
		op, epoch, index := Unpack(imm)
		if op > OpMask || epoch > EpochMask || index > IndexMask || Pack(op, epoch, index) != imm {
			t.Errorf("%#x unpacks to %v, %d, %d", imm, op, epoch, index)
		}
	})
}

func TestPackTakesEpochsModulo128AndNothingElseOutOfRange(t *testing.T) {
	if Pack(OpPull, 128+5, 9) != Pack(OpPull, 5, 9) {
		t.Error("epoch 133 is not epoch 5")
	}
	for _, f := range []func(){
		func() { Pack(OpMask+1, 0, 0) },
		func() { Pack(0, 0, IndexMask+1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f()
		}()
	}
}

func FuzzRecordSurvivesDecodeAndEncode(f *testing.F) {
	var buf [RecordBytes]byte
	sampleRecord.Encode(buf[:])
	f.Add(buf[:])
	new(TensorRecord).Encode(buf[:])
	f.Add(buf[:])
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, src []byte) {
		if len(src) == RecordBytes { // let the fuzzer past the checksum
			binary.LittleEndian.PutUint32(src[recordSumAt:], crc32.Checksum(src[:recordSumAt], castagnoli))
		}
		var r TensorRecord
		if err := r.Decode(src); err != nil {
			if !errors.Is(err, ErrRecord) || r != (TensorRecord{}) {
				t.Errorf("error %v, record %+v", err, r)
			}
			return
		}
		var again [RecordBytes]byte
		r.Encode(again[:])
		if !bytes.Equal(again[:], src) {
			t.Errorf("% x\nbecame\n% x", src, again)
		}
	})
}

func TestRecordRefusesWhatItDoesNotKnow(t *testing.T) {
	for _, c := range []struct {
		name string
		harm func(b []byte) []byte
		want string
	}{
		{"short", func(b []byte) []byte { return b[:63] }, "63 bytes, not 64"},
		{"long", func(b []byte) []byte { return append(b, 0) }, "65 bytes, not 64"},
		{"flipped bit", func(b []byte) []byte { b[17] ^= 4; return b }, "checksum"},
		{"flipped checksum", func(b []byte) []byte { b[recordSumAt] ^= 1; return b }, "checksum"},
		{"reserved", func(b []byte) []byte { b[63] = 1; return b }, "reserved bytes"},
		{"flag", func(b []byte) []byte {
			b[47] = 0x80
			binary.LittleEndian.PutUint32(b[recordSumAt:], crc32.Checksum(b[:recordSumAt], castagnoli))
			return b
		}, "unknown flags 0x80000000"},
	} {
		buf := make([]byte, RecordBytes)
		sampleRecord.Encode(buf)
		var r TensorRecord
		if err := r.Decode(c.harm(buf)); !errors.Is(err, ErrRecord) || !strings.Contains(err.Error(), c.want) || r != (TensorRecord{}) {
			t.Errorf("%s: error %v, record %+v", c.name, err, r)
		}
	}
}

func TestCodecsDoNotAllocate(t *testing.T) {
	r := sampleRecord
	buf := make([]byte, RecordBytes)
	if n := testing.AllocsPerRun(100, func() {
		op, epoch, index := Unpack(Pack(OpTensor, 3, 7))
		if op != OpTensor || epoch != 3 || index != 7 {
			t.Fatal("wrong immediate")
		}
		r.Encode(buf)
		if err := r.Decode(buf); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
