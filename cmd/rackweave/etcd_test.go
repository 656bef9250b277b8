package main

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestFlagsAboutEtcdThatCannotBeAreRefusedBeforeItIsReached(t *testing.T) {
	path := file(t, "cluster.yaml", "secret: a secret of the racks\nracks: [{name: a}, {name: b}]\n")
	// Nothing listens at the port of etcd that these name.
	const gone = "http://127.0.0.1:1"
	dir := t.TempDir()
	for _, tc := range []struct{ args, wants []string }{
		{[]string{"--etcd", "not a url"}, []string{`etcd cannot be at "not a url"`, "http://127.0.0.1:2379"}},
		{[]string{"--etcd", gone + ",,"}, []string{`etcd cannot be at ""`}},
		{[]string{"--etcd", "ftp://h:1"}, []string{`etcd cannot be at "ftp://h:1"`}},
		{[]string{"--etcd", "127.0.0.1:2379"}, []string{`etcd cannot be at "127.0.0.1:2379"`}},
		{[]string{"--etcd", gone, "--go-on-after", "-3s"}, []string{"--go-on-after -3s: use a time above 0"}},
		{[]string{"--etcd", gone, "--go-on-after", "0s"}, []string{"--go-on-after 0s: use a time above 0"}},
		{[]string{"--etcd", "embed", "--etcd-dir", dir, "--go-on-after", "-3s"}, []string{"after -3s"}},
		{[]string{"--etcd", gone, "--etcd-ttl", "1s"}, []string{"a lease of 1s"}},
		{[]string{"--etcd", gone, "--etcd-cert", path}, []string{"a certificate needs its key"}},
		{[]string{"--etcd", "embed"}, []string{"no directory", "--etcd-dir"}},
		{[]string{"--etcd", "embed", "--etcd-dir", dir, "--etcd-listen", "h"}, []string{`cannot listen at "h"`}},
		{[]string{"--etcd", "embed", "--etcd-dir", dir, "--etcd-members", "a=http://127.0.0.1:2380,b=x"},
			[]string{`member "b=x"`, "use RACK=PEER", "a=http://127.0.0.1:2380"}},
		{[]string{"--etcd", "embed", "--etcd-dir", dir, "--etcd-members", "a=http://127.0.0.1:2380,"}, []string{`member "" of`}},
		{[]string{"--etcd", "embed", "--etcd-dir", dir, "--etcd-members", "b=http://127.0.0.1:2380"}, []string{"lack this rack: add a="}},
	} {
		fails(t, append([]string{"serve", "--cluster", path, "--rack", "a"}, tc.args...), tc.wants...)
	}
}

// Aggregators of one host need no port of etcd's, and the program ends with the aggregator that started it, however that ends.
func TestAnEmbeddedEtcdIsReachedByItsSocketAndEndsWithItsAggregator(t *testing.T) {
	path := file(t, "cluster.yaml", "secret: a secret of the racks\nracks: [{name: a}, {name: b}]\n")
	dir := t.TempDir()
	args := []string{"serve", "--cluster", path, "--providers", "tcp", "--unpinned", "--cores", "1", "--etcd-ttl", "2s", "--listen",
		"127.0.0.1:0", "--rack", "a", "--etcd", "embed", "--etcd-dir", dir}
	first := exec.Command(os.Args[0], args...)
	first.Stderr = t.Output()
	out, err := first.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "listening on ") {
		t.Errorf("the first says %q, %v", line, err)
	}
	socket := filepath.Join(dir, "client")
	if line := serving(t, "--cluster", path, "--providers", "tcp", "--unpinned", "--cores", "1", "--rack", "b", "--etcd-ttl", "2s",
		"--etcd", "unix://"+socket); !strings.HasPrefix(line, "listening on ") {
		t.Errorf("the second says %q", line)
	}
	_ = first.Process.Kill()
	_ = first.Wait() // it was killed
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("unix", socket)
		if err != nil {
			break
		}
		c.Close()
		if time.Now().After(end) {
			t.Fatal("etcd outlived the aggregator that started it")
		}
	}
}

func TestAnEtcdThatCannotBeStartedIsNamed(t *testing.T) {
	path := file(t, "cluster.yaml", "secret: a secret of the racks\nracks: [{name: a}, {name: b}]\n")
	t.Setenv("PATH", t.TempDir())
	fails(t, []string{"serve", "--cluster", path, "--rack", "a", "--etcd", "embed", "--etcd-dir", t.TempDir()},
		`"rackweave-etcd": executable file not found`, "make build puts it beside rackweave", "--etcd URL")
}

// An aggregator whose rack is another's ends without having said that it listens.
func TestAnAggregatorSaysThatItListensOnceTheRackIsIts(t *testing.T) {
	path := file(t, "cluster.yaml", "secret: a secret of the racks\nracks: [{name: a}, {name: b}]\n")
	var etcd []string
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		etcd = append(etcd, "http://"+l.Addr().String())
		l.Close()
	}
	args := []string{"--cluster", path, "--providers", "tcp", "--unpinned", "--cores", "1", "--etcd-ttl", "2s"}
	own := append(args, "--rack", "a", "--etcd", "embed", "--etcd-dir", t.TempDir(), "--etcd-listen", etcd[0], "--etcd-peer", etcd[1])
	if line := serving(t, own...); !strings.HasPrefix(line, "listening on ") {
		t.Fatalf("the first says %q", line)
	}
	args = append(args, "--etcd", etcd[0], "--listen", "127.0.0.1:0")
	out, err := run(t, append(append([]string{"serve"}, args...), "--rack", "a")...)
	if err == nil || !strings.Contains(err.Error(), "served by another aggregator") {
		t.Errorf("the second of one rack: %v", err)
	}
	if out != "" {
		t.Errorf("it says %q before it is refused", out)
	}
	if line := serving(t, append(args, "--rack", "a", "--standby")...); !strings.HasPrefix(line, "listening on ") {
		t.Errorf("one that stands by says %q", line)
	}
	if line := serving(t, append(args, "--rack", "b")...); !strings.HasPrefix(line, "listening on ") {
		t.Errorf("the other rack's says %q", line)
	}
}
