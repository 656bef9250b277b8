package racks

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/hierarchy"
)

func cluster(pods ...string) *Cluster {
	c := &Cluster{Secret: "0123456789abcdef", Own: "r0"}
	for i, p := range pods {
		c.Racks = append(c.Racks, Rack{Name: fmt.Sprintf("r%d", i), URL: fmt.Sprintf("http://h%d:7077", i), Pod: p})
	}
	return c
}

func TestBadClustersAreRefusedByName(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(*Cluster)
		want  string
	}{
		{"no racks", func(c *Cluster) { c.Racks = nil }, "0 racks: list 1 to 64"},
		{"secret", func(c *Cluster) { c.Secret = "short" }, "a secret of 5 characters"},
		{"name", func(c *Cluster) { c.Racks[1].Name = "" }, "rack 1 has no name"},
		{"long name", func(c *Cluster) { c.Racks[1].Name = strings.Repeat("r", 256) }, "a name of 256 bytes: use at most 255"},
		{"twice", func(c *Cluster) { c.Racks[1].Name = "r0" }, `rack "r0" is listed twice`},
		{"url", func(c *Cluster) { c.Racks[1].URL = "h1:7077" }, `rack "r1" has URL "h1:7077": use one such as`},
		{"own", func(c *Cluster) { c.Own = "x" }, `of rack "x", which is not among [r0 r1 r2 r3]: name one of them by --rack`},
		{"a secret of NULs", func(c *Cluster) { c.Secret = strings.Repeat("\x00", 64) }, "a secret of 1 different characters"},
		{"a secret of 7 bytes", func(c *Cluster) { c.Secret = strings.Repeat("abcdefg", 9) }, "a secret of 7 different characters"},
		{"one url", func(c *Cluster) { c.Racks[2].URL = c.Racks[0].URL }, `racks "r0" and "r2" both have URL http://h0:7077: give each`},
		{"one place", func(c *Cluster) { c.Racks[2].URL = "https://H0:7077/" }, `racks "r0" and "r2" both have URL https://H0:7077/`},
		{"shape", func(c *Cluster) { c.Shape = "star" }, `shape "star": use one of [auto sharded ring chain root pods flat]`},
		{"outer of shape flat", func(c *Cluster) { c.Outer, c.Shape = "every=4", "flat" }, `outer "every=4" and shape flat`},
		{"no pods", func(c *Cluster) { c.Shape = "pods" }, "shape pods and no pods declared"},
		{"pods apart", func(c *Cluster) { c.Racks[0].Pod, c.Racks[3].Pod = "a", "a" }, "listed before another pod"},
		{"uneven pods", func(c *Cluster) { c.Racks[0].Pod = "a" }, "pods of different sizes"},
		{"chain over pods", func(c *Cluster) {
			c.Shape = "chain"
			c.Racks[0].Pod, c.Racks[1].Pod = "a", "a"
		}, "whose sums come first"},
		{"outer", func(c *Cluster) { c.Outer = "every=0" }, "an outer step every 0 steps"},
		{"core", func(c *Cluster) { c.Core = "f16" }, `core "f16": use f32, bf16 or codecs such as int8`},
		{"core over pods", func(c *Cluster) {
			c.Core = "bf16"
			for i := range c.Racks {
				c.Racks[i].Pod = fmt.Sprint(i / 2)
			}
		}, "whose sums would be rounded again"},
		{"core along a chain", func(c *Cluster) { c.Core, c.Shape = "bf16", "chain" }, "shape chain would round them at every rack"},
		{"core around a ring", func(c *Cluster) { c.Core, c.Shape = "bf16", "ring" }, "shape ring would round them at every rack"},
		{"core of shape flat", func(c *Cluster) { c.Core, c.Shape = "bf16", "flat" }, "in which no sums cross"},
		{"core of differences", func(c *Cluster) { c.Core, c.Outer = "bf16", "every=4" }, "cross in f32 only"},
		{"size", func(c *Cluster) { c.Racks[2].Size = -1 }, "size -1"},
		{"large size", func(c *Cluster) { c.Racks[2].Size = maxSize + 1 }, `rack "r2" has size 1025: use a number of workers from 1 to 1024`},
		{"size that overflows", func(c *Cluster) { c.Racks[0].Size = math.MaxInt }, `rack "r0" has size 9223372036854775807`},
		{"size without a url", func(c *Cluster) { c.Dynamic, c.Racks[2].URL, c.Racks[2].Size = true, "", -1 }, "size -1"},
		{"many racks", func(c *Cluster) { c.Racks = make([]Rack, 65) }, "65 racks: list 1 to 64"},
	} {
		c := cluster("", "", "", "")
		tc.spoil(c)
		err := c.Check()
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want it to say %q", tc.name, err, tc.want)
		} else if strings.Count(err.Error(), "bad cluster") != 1 || !errors.Is(err, ErrCluster) {
			t.Errorf("%s: %v, want it to say once that the cluster is bad", tc.name, err)
		}
	}
}

func TestTheShapesThatAreListedAreThoseThatWork(t *testing.T) {
	tried := []string{"auto"}
	for _, s := range hierarchy.Shapes() {
		tried = append(tried, s.String())
	}
	for _, s := range tried {
		c := cluster("", "", "", "")
		if s == "pods" {
			c = cluster("a", "a", "b", "b")
		}
		c.Shape = s
		if err := c.Check(); (err == nil) != slices.Contains(Shapes, s) {
			t.Errorf("shape %s of %v: %v", s, Shapes, err)
		}
	}
	for _, s := range Shapes {
		if !slices.Contains(tried, s) {
			t.Errorf("shape %s is listed, and there is none", s)
		}
	}
}

func TestAutoShardsAlsoOverPods(t *testing.T) {
	for _, tc := range []struct {
		c    *Cluster
		want hierarchy.Topology
	}{
		{cluster("", ""), hierarchy.Topology{Shape: hierarchy.Sharded, Racks: 2, Pods: 1}},
		{cluster("a", "a", "b", "b"), hierarchy.Topology{Shape: hierarchy.Sharded, Racks: 4, Pods: 2}},
	} {
		if got, err := tc.c.Topology(); err != nil || got != tc.want {
			t.Errorf("%+v, %v; want %+v", got, err, tc.want)
		}
	}
}

func TestEveryRackGetsWorkersByItsSize(t *testing.T) {
	for _, tc := range []struct {
		total int
		sizes []int
		want  string
	}{
		{4, []int{0, 0}, "[2 2]"}, {5, []int{0, 0}, "[2 3]"}, {12, []int{8, 4}, "[8 4]"}, {6, []int{8, 4}, "[4 2]"},
		{1024, []int{maxSize, maxSize, 0}, "[511 512 1]"},
		{3, []int{100, 1, 1}, "[1 1 1]"}, {4, []int{100, 1, 1}, "[2 1 1]"}, {4, []int{1, 1, 100}, "[1 1 2]"},
	} {
		c := cluster(make([]string, len(tc.sizes))...)
		for i, n := range tc.sizes {
			c.Racks[i].Size = n
		}
		got, err := c.Workers(tc.total)
		if err != nil || fmt.Sprint(got) != tc.want {
			t.Errorf("%d workers over %v: %v, %v; want %s", tc.total, tc.sizes, got, err, tc.want)
		}
	}
	if _, err := cluster("", "", "").Workers(2); err == nil {
		t.Error("2 workers in 3 racks: accepted")
	}
}

func TestEachRackTakesAPostOnce(t *testing.T) {
	b := NewBoard()
	b.Begin("job", "run1")
	take := func(from, run, nonce string) string {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		payload, err := b.Take(ctx, Question{From: from, Job: "job", Run: run, Stage: "stage", Nonce: nonce})
		return fmt.Sprintf("%s %v", payload, err)
	}
	const late = " context deadline exceeded"
	b.Post("run1", "stage", []byte("first"), []string{"a", "b"})
	for _, step := range []struct{ from, run, nonce, want string }{
		{"a", "", "n1", "first <nil>"}, {"a", "run1", "n1", "first <nil>"}, {"b", "run1", "n2", "first <nil>"},
		{"a", "run1", "n3", late}, {"a", "run0", "n4", " the run has ended"}, {"c", "", "n6", late},
	} {
		if got := take(step.from, step.run, step.nonce); got != step.want {
			t.Errorf("rack %s, run %q, nonce %s: %q, want %q", step.from, step.run, step.nonce, got, step.want)
		}
	}
	b.Post("run1", "stage", []byte("second"), []string{"a", "b"})
	if got := take("a", "run1", "n3"); got != "second <nil>" {
		t.Errorf("the second post: %q", got)
	}
	b.End("run1")
	b.Begin("job", "run2")
	if got := take("b", "", "n5"); got != late {
		t.Errorf("after the end: %q", got)
	}
	for i := range 10 * mostPosts {
		b.Post("run2", fmt.Sprint(i), nil, nil)
	}
	if n := len(b.runs["run2"].posts); n > mostPosts {
		t.Errorf("%d posts are kept that all have taken", n)
	}
}

func TestARackIsExposedThatIsElsewhereWithoutTLS(t *testing.T) {
	for url, want := range map[string]bool{
		"http://far:7077": true, "HTTP://10.0.0.1:7077": true, "http://[2001:db8::1]:7077": true, "http://localhost.far:7077": true,
		"https://far:7077": false, "http://localhost:7077": false, "http://127.0.0.2:7077": false, "http://[::1]:7077": false, "": false,
	} {
		c := Cluster{Own: "own", Racks: []Rack{{Name: "own", URL: "http://own:7077"}, {Name: "other", URL: url}}}
		if r, is := c.Exposed(); is != want || is && r.Name != "other" {
			t.Errorf("%q: rack %q is exposed: %t, want %t", url, r.Name, is, want)
		}
	}
}
