package codec

import (
	"strings"
	"testing"
)

func TestPairsNameTheAnswersCodecOrTakeAFittingOne(t *testing.T) {
	for _, tc := range []struct {
		text    string
		answers bool
		want    string // the pair, or part of the error
	}{
		{"", true, "none"}, {"none", true, "none"}, {"none", false, "none"}, {"none/none", true, "none"},
		{"int8", true, "int8/int8"}, {"int4:stochastic", true, "int4:stochastic/int4:stochastic"},
		{"fp8-e5m2", true, "fp8-e5m2/fp8-e5m2"},
		{"sign", true, "sign/int8"}, {"topk:1%", true, "topk:0.01/int8"}, {"2bit:0.5", true, "2bit:0.5/int8"},
		{"2bit:0.5/none", true, "2bit:0.5/none"}, {"int4", false, "int4/none"}, {"sign/int4", true, "sign/int4"},
		{"none/int8", true, "none/int8"},
		{"int8/sign", true, "use none, int8, int4"}, {"int8/topk", true, "second large loss"}, {"int8/int8", false, "use int8/none"},
		{"auto", true, "auto"}, {"auto:budget=50Mb/s", true, "auto:budget=50Mb/s"},
		{"auto:codecs=sign+int4,answers=none", false, "auto:codecs=sign+int4,answers=none"},
		{"auto: codecs = int3", true, "unknown codec"}, {"auto:law=ace, answers= sign ", true, "use none, int8, int4"},
		{"auto:answers=sign", true, "use none, int8, int4"}, {"auto:codecs=int3", true, "unknown codec"},
		{"int3", true, "unknown codec"}, {"int8/", true, `"int8/": a codec is missing: use CODEC or CODEC/ANSWERS`},
		{"/int8", true, `"/int8": a codec is missing`}, {"/", true, "a codec is missing"},
		{"auto:answers=,codecs=", true, "auto:answers=,codecs="},
		{"int8/int8/int8", true, "unknown codec"},
	} {
		p, err := ParsePair(tc.text, tc.answers)
		if err == nil && p.String() != tc.want || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q, answers %v: %v, %v; want %s", tc.text, tc.answers, p, err, tc.want)
		}
		if again, err2 := ParsePair(p.String(), tc.answers); err == nil && (err2 != nil || again != p) {
			t.Errorf("%v is parsed as %v, %v", p, again, err2)
		}
	}
}
