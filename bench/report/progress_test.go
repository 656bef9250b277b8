package report

import (
	"strings"
	"testing"
)

func TestProgressIsALinePerTenth(t *testing.T) {
	for _, c := range []struct {
		name  string
		total int
		adds  []int
		want  string
	}{
		{"few steps", 4, []int{1, 1, 1, 1}, "x: 20% (1/4)\nx: 50% (2/4)\nx: 70% (3/4)\nx: 100% (4/4)\n"},
		{"a jump is one line", 100, []int{35, 4, 61}, "x: 30% (35/100)\nx: 100% (100/100)\n"},
		{"beyond the total", 2, []int{5, 5}, "x: 100% (2/2)\n"},
		{"nothing to do", 0, []int{1}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			p := NewProgress(&out, "x", c.total)
			for _, n := range c.adds {
				p.Add(n)
			}
			if out.String() != c.want {
				t.Errorf("printed %q, want %q", out.String(), c.want)
			}
		})
	}
}

func TestManyStepsPrintTenLines(t *testing.T) {
	var out strings.Builder
	p := NewProgress(&out, "x", 12345)
	for range 12345 {
		p.Add(1)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 10 {
		t.Errorf("%d lines, want 10", lines)
	}
}

func TestNilProgressIsSilent(t *testing.T) {
	var p *Progress
	p.Add(1)
}
