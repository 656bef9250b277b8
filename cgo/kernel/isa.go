package kernel

// #include "kernel.h"
import "C"

import (
	"fmt"
	"os"
	"strings"

	"github.com/klauspost/cpuid/v2"
)

// ISA is an instruction set the kernels are built for. The bits are the same in all.
type ISA int

// The instruction sets.
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

// ParseISA reads what [ISA.String] writes.
func ParseISA(s string) (ISA, error) {
	for isa, name := range isaNames {
		if s == name {
			return ISA(isa), nil
		}
	}
	return Scalar, fmt.Errorf("unknown instruction set %q: use one of %s", s, strings.Join(isaNames[:], ", "))
}

// ISAs lists the instruction sets that this build has, narrowest first.
func ISAs() []ISA {
	var built []ISA
	for isa := range ISA(len(isaNames)) {
		if C.rwk_built(C.int(isa)) != 0 {
			built = append(built, isa)
		}
	}
	return built
}

// needs are the features of the CPU that the code of an instruction set uses.
var needs = [...][]cpuid.FeatureID{
	Scalar: {},
	AVX2:   {cpuid.AVX2, cpuid.F16C},
	AVX512: {cpuid.AVX2, cpuid.F16C, cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512VL, cpuid.AVX512DQ},
	NEON:   {}, // part of arm64
}

// Supported reports whether this CPU and build have isa.
func Supported(isa ISA) bool {
	return C.rwk_built(C.int(isa)) != 0 && cpuid.CPU.Supports(needs[isa]...)
}

// Best returns the fastest instruction set on this CPU.
func Best() ISA {
	best := Scalar
	for _, isa := range ISAs() {
		if Supported(isa) && !slower(isa) {
			best = isa
		}
	}
	return best
}

// slower reports whether a narrower instruction set is faster. Zen 4 splits 512-bit operations: from memory AVX2 is 20% faster
// (kernel.c says why).
func slower(isa ISA) bool {
	return isa == AVX512 && cpuid.CPU.VendorID == cpuid.AMD && cpuid.CPU.Family == 0x19
}

// detectedByC returns what the C code detects for itself, where there is no Go: the fastest instruction set, and whether it
// has isa. Tests hold it to [Best] and [Supported].
func detectedByC(isa ISA) (best ISA, supported bool) {
	return ISA(C.rwk_best()), C.rwk_supported(C.int(isa)) != 0
}

// Env names the environment variable that forces an instruction set.
const Env = "RACKWEAVE_ISA"

// Default returns the instruction set to use: what the environment variable [Env] names, else [Best]. The error tells that
// the variable is wrong or asks for more than the CPU has; the ISA returned with it works.
func Default() (ISA, error) {
	name := os.Getenv(Env)
	if name == "" {
		return Best(), nil
	}
	isa, err := ParseISA(name)
	if err != nil {
		return Best(), fmt.Errorf("%s: %w; using %v", Env, err, Best())
	}
	if !Supported(isa) {
		return Best(), fmt.Errorf("%s: this CPU lacks %v: unset it or use %v; using that", Env, isa, Best())
	}
	return isa, nil
}
