package main

import "testing"

func TestFlagsAboutEtcdThatCannotBeAreRefusedBeforeItIsReached(t *testing.T) {
	path := file(t, "cluster.yaml", "secret: a secret of the racks\nracks: [{name: a}, {name: b}]\n")
	// Nothing listens at the port of etcd that these name.
	const gone = "http://127.0.0.1:1"
	password := file(t, "password", "secret\n")
	empty := file(t, "empty", "\n")
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
		{[]string{"--etcd", gone, "--etcd-user", "u"}, []string{`user "u" without a password`, "--etcd-password-file"}},
		{[]string{"--etcd", gone, "--etcd-user", "u", "--etcd-password-file", empty}, []string{`user "u" without a password`}},
		{[]string{"--etcd", gone, "--etcd-password-file", password}, []string{"a password without its user", "--etcd-user"}},
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
