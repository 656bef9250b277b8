package lab

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
)

//go:embed init.sh
var initScript []byte

// initramfs builds the archive that the kernel unpacks as its first root: busybox, the modules, and init.
func initramfs(k *kernel, busybox string) ([]byte, error) {
	var c cpio
	for _, dir := range []string{"bin", "modules", "proc", "sys", "dev", "host"} {
		c.add(dir, 0o40755, nil)
	}
	c.add("init", 0o100755, initScript)
	files := map[string]string{"bin/busybox": busybox}
	for _, m := range k.modules {
		files["modules/"+filepath.Base(m)] = m
	}
	for name, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("initramfs: %w", err)
		}
		c.add(name, 0o100755, data)
	}
	return c.finish(), nil
}

// cpio writes the "newc" archive format (Documentation/driver-api/early-userspace/buffer-format.rst): a header of hexadecimal
// fields, the name, the data, each padded to four bytes.
type cpio struct {
	buf   bytes.Buffer
	inode int
}

func (c *cpio) add(name string, mode int, data []byte) {
	c.inode++
	const links, absent = 1, 0
	fmt.Fprintf(&c.buf, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", c.inode, mode, absent, absent, links,
		absent, len(data), absent, absent, absent, absent, len(name)+1, absent)
	c.buf.WriteString(name + "\x00")
	c.pad()
	c.buf.Write(data)
	c.pad()
}

func (c *cpio) pad() {
	for c.buf.Len()%4 != 0 {
		c.buf.WriteByte(0)
	}
}

func (c *cpio) finish() []byte {
	c.add("TRAILER!!!", 0, nil)
	return c.buf.Bytes()
}
