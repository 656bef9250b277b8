package kernel

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/chunk"
)

var isas = [...]ISA{Scalar, AVX2, AVX512, NEON}

// eachISA runs a test for every instruction set, or for the one the environment forces.
func eachISA(t *testing.T, run func(t *testing.T, isa ISA)) {
	forced := os.Getenv(Env)
	for _, isa := range isas {
		if forced != "" && forced != isa.String() {
			continue
		}
		t.Run(isa.String(), func(t *testing.T) {
			if !Supported(isa) {
				t.Skipf("this CPU lacks %v: its best is %v", isa, Best())
			}
			run(t, isa)
		})
	}
}

// arena is memory outside the Go heap, with an inaccessible page behind it: a kernel that reads or writes one element too far
// faults.
type arena struct {
	mem  []byte
	free int
}

func newArena(t testing.TB, size int) *arena {
	t.Helper()
	page := os.Getpagesize()
	size = (size + page - 1) / page * page
	mem, err := unix.Mmap(-1, 0, size+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatalf("map %d bytes: %v", size+page, err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	if err := unix.Mprotect(mem[size:], unix.PROT_NONE); err != nil {
		t.Fatalf("protect the guard page: %v", err)
	}
	return &arena{mem[:size:size], size}
}

func address(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }

func (a *arena) reset() { a.free = len(a.mem) }

// take returns n elements of type d that end where the last taken begin, the first at the guard page.
func (a *arena) take(n int, d chunk.DType) []byte {
	size := n * d.Size()
	a.free = (a.free - size) / d.Size() * d.Size()
	return a.mem[a.free : a.free+size : a.free+size]
}

// place copies x to the arena as elements of type d.
func (a *arena) place(x []float32, d chunk.DType) []byte {
	mem := a.take(len(x), d)
	optim.Encode(mem, x, d)
	return mem
}

func decoded(mem []byte, d chunk.DType) []float32 {
	x := make([]float32, len(mem)/d.Size())
	optim.Decode(x, mem, d)
	return x
}

// sameBits tells where got and want differ; any NaN equals any other.
func sameBits(got, want []float32) error {
	for i, w := range want {
		if g := got[i]; math.Float32bits(g) != math.Float32bits(w) && !(g != g && w != w) {
			return fmt.Errorf("element %d of %d is %v (%#08x), want %v (%#08x)",
				i, len(want), g, math.Float32bits(g), w, math.Float32bits(w))
		}
	}
	return nil
}

// draw makes n numbers: gradients of ordinary size, or wild ones, with every special case of f32 among them.
func draw(rnd *rand.Rand, n int, wild bool) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rnd.NormFloat64())
		if wild && rnd.IntN(6) == 0 {
			x[i] = specials[rnd.IntN(len(specials))]
		} else if wild {
			x[i] = float32(math.Ldexp(float64(x[i]), rnd.IntN(260)-140))
		}
	}
	return x
}

var specials = []float32{
	0, float32(math.Copysign(0, -1)), float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()),
	math.Float32frombits(0xff800001), math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32, math.MaxFloat32,
	-math.MaxFloat32, math.Float32frombits(0x00800000), math.Float32frombits(0x007fffff), 65504, 65519.996, 65520, 0x1p-24, 0x1p-25,
}

func TestMain(m *testing.M) {
	isa, err := Default()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("kernels: best %v, default %v\n", Best(), isa)
	os.Exit(m.Run())
}

var dtypes = []chunk.DType{chunk.F32, chunk.BF16, chunk.F16}

// lengths are around every width and group the kernels have.
var lengths = []int{0, 1, 2, 7, 8, 15, 17, 31, 63, 64, 65, 127, 128, 191, 257}

var sourceCounts = []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 35}

func equalBytes(got, want []byte) error {
	if i := firstDifference(got, want); i >= 0 {
		return fmt.Errorf("byte %d of %d is %#02x, want %#02x", i, len(want), got[i], want[i])
	}
	return nil
}

func firstDifference(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

func rndFor(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }
