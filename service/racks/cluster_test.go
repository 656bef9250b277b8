package racks

import (
	"context"
	"fmt"
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
		{"twice", func(c *Cluster) { c.Racks[1].Name = "r0" }, `rack "r0" is listed twice`},
		{"url", func(c *Cluster) { c.Racks[1].URL = "h1:7077" }, `rack "r1" has URL "h1:7077": use one such as`},
		{"own", func(c *Cluster) { c.Own = "x" }, `of rack "x", which is not among [r0 r1 r2 r3]`},
		{"shape", func(c *Cluster) { c.Shape = "star" }, `unknown shape "star"`},
		{"a shape of the planner only", func(c *Cluster) { c.Shape = "tree" }, "aggregators do not reduce in shape tree"},
		{"no pods", func(c *Cluster) { c.Shape = "pods" }, "shape pods and no pods declared"},
		{"pods apart", func(c *Cluster) { c.Racks[0].Pod, c.Racks[3].Pod = "a", "a" }, "stand apart"},
		{"uneven pods", func(c *Cluster) { c.Racks[0].Pod = "a" }, "pods of different sizes"},
		{"chain over pods", func(c *Cluster) {
			c.Shape = "chain"
			c.Racks[0].Pod, c.Racks[1].Pod = "a", "a"
		}, "whose sums come first"},
		{"size", func(c *Cluster) { c.Racks[2].Size = -1 }, "size -1"},
	} {
		c := cluster("", "", "", "")
		tc.spoil(c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want it to say %q", tc.name, err, tc.want)
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
		payload, ok, gone := b.Take(ctx, from, "job", run, "stage", nonce)
		return fmt.Sprintf("%s %v %v", payload, ok, gone)
	}
	b.Post("job", "run1", "stage", []byte("first"), 2)
	for _, step := range []struct{ from, run, nonce, want string }{
		{"a", "", "n1", "first true false"}, {"a", "run1", "n1", "first true false"}, {"b", "run1", "n2", "first true false"},
		{"a", "run1", "n3", " false false"}, {"a", "run0", "n4", " false true"},
	} {
		if got := take(step.from, step.run, step.nonce); got != step.want {
			t.Errorf("rack %s, run %q, nonce %s: %q, want %q", step.from, step.run, step.nonce, got, step.want)
		}
	}
	b.Post("job", "run1", "stage", []byte("second"), 2)
	if got := take("a", "run1", "n3"); got != "second true false" {
		t.Errorf("the second post: %q", got)
	}
	b.End("job", "run1")
	if got := take("b", "", "n5"); got != " false false" {
		t.Errorf("after the end: %q", got)
	}
	for i := range 10 * mostPosts {
		b.Post("job", "run2", fmt.Sprint(i), nil, 0)
	}
	if n := len(b.posts); n > mostPosts {
		t.Errorf("%d posts are kept that all have taken", n)
	}
}
