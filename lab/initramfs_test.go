package lab

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestArchiveIsNewc(t *testing.T) {
	var c cpio
	c.add("dir", 0o40755, nil)
	c.add("file", 0o100644, []byte("hello"))
	field := func(s string) string { return s }
	const zero = "00000000"
	want := "070701" + field("00000001") + "000041ed" + zero + zero + "00000001" + zero + zero + zero + zero + zero + zero +
		"00000004" + zero + "dir\x00" + "\x00\x00" +
		"070701" + "00000002" + "000081a4" + zero + zero + "00000001" + zero + "00000005" + zero + zero + zero + zero +
		"00000005" + zero + "file\x00" + "\x00" + "hello" + "\x00\x00\x00" +
		"070701" + "00000003" + zero + zero + zero + "00000001" + zero + zero + zero + zero + zero + zero +
		"0000000b" + zero + "TRAILER!!!\x00" + "\x00\x00\x00"
	if diff := cmp.Diff(want, string(c.finish())); diff != "" {
		t.Error(diff)
	}
}
