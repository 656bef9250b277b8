package kernel

// #include "kernel.h"
import "C"

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// ISA is an instruction set for which the kernels are built. The bits are equal in all.
type ISA int

// These are the instruction sets.
const (
	Scalar ISA = C.RWK_SCALAR
	AVX2   ISA = C.RWK_AVX2
	AVX512 ISA = C.RWK_AVX512
	NEON   ISA = C.RWK_NEON
)

var isaNames = [...]string{Scalar: "scalar", AVX2: "avx2", AVX512: "avx512", NEON: "neon"}

func (isa ISA) String() string {
	if isa < 0 || int(isa) >= len(isaNames) {
		return fmt.Sprintf("isa(%d)", int(isa))
	}
	return isaNames[isa]
}

// Supported reports whether this CPU and build have isa.
func Supported(isa ISA) bool { return C.rwk_supported(C.int(isa)) != 0 }

// Best returns the fastest instruction set on this CPU.
func Best() ISA { return ISA(C.rwk_best()) }

// Env names the environment variable that forces an instruction set.
const Env = "RACKWEAVE_ISA"

// Default returns the instruction set to use: the one that the environment variable [Env] names, or [Best]. It returns an error if
// the variable is invalid or names an instruction set that the CPU lacks. The ISA returned with the error works.
func Default() (ISA, error) {
	name := os.Getenv(Env)
	if name == "" {
		return Best(), nil
	}
	isa := ISA(slices.Index(isaNames[:], name))
	if isa < 0 {
		return Best(), fmt.Errorf("%s: unknown instruction set %q: use one of %s; using %v", Env, name, strings.Join(isaNames[:], ", "),
			Best())
	}
	if !Supported(isa) {
		return Best(), fmt.Errorf("%s: this CPU lacks %v: unset it or use %v; using that", Env, isa, Best())
	}
	return isa, nil
}
