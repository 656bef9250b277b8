package attacks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/rackweave/rackweave/client"
)

// onShm joins a job of one worker over shared memory, which exchanges one tensor once.
func (a *Aggregator) onShm(ctx context.Context, mode string, elems int, buf []float32) (*client.Worker, error) {
	w, err := client.Join(ctx, client.Config{Server: a.URL, Job: newName("shm"), Workers: 1, Provider: "shm", Mode: mode,
		Optimizer: map[string]string{"eager": "adam_torch"}[mode], Timeout: 20 * time.Second})
	if err != nil {
		return nil, err
	}
	err = w.Register(ctx, []client.Tensor{{Name: "w", Shape: []uint64{uint64(elems)}}})
	if err == nil && mode == "eager" {
		var h client.Handle
		if h, err = w.Broadcast(0, client.Bytes(buf)); err == nil {
			err = h.Wait(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// exchange sums buf once.
func exchange(ctx context.Context, w *client.Worker, buf []byte) error {
	h, err := w.PushPull(0, buf, buf, 0)
	if err == nil {
		err = h.Wait(ctx)
	}
	return err
}

// mapping is a part of an address space that is a file in memory.
type mapping struct {
	start, end      uint64
	writable        bool
	inode, fileName string
}

// mappings lists the files in memory that a process has mapped.
func mappings(process string) (all []mapping, err error) {
	text, err := os.ReadFile("/proc/" + process + "/maps")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 6 || !strings.HasPrefix(f[5], "/memfd:") {
			continue
		}
		from, to, _ := strings.Cut(f[0], "-")
		m := mapping{writable: f[1][1] == 'w', inode: f[4], fileName: strings.Join(f[5:], " ")}
		if m.start, err = strconv.ParseUint(from, 16, 64); err == nil {
			m.end, err = strconv.ParseUint(to, 16, 64)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// WriteParameters looks, as a worker on shared memory, for memory of the aggregator that it may write: only slots and rings are.
func WriteParameters(ctx context.Context, a *Aggregator) error {
	x := make([]float32, 100_000)
	w, err := a.onShm(ctx, "eager", len(x), x)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := exchange(ctx, w, client.Bytes(x)); err != nil {
		return err
	}
	theirs, err := mappings(strconv.Itoa(a.pid))
	if err != nil {
		return err
	}
	ours, err := mappings("self")
	if err != nil {
		return err
	}
	secret := map[string]string{} // inodes of what no worker may write
	for _, m := range theirs {
		if !strings.Contains(m.fileName, "slots") && !strings.Contains(m.fileName, "rings") && !strings.Contains(m.fileName, "staging") {
			secret[m.inode] = m.fileName
		}
	}
	if len(secret) == 0 {
		return errors.New("the aggregator keeps no parameters in files: what is it that should be protected?")
	}
	for _, m := range ours {
		if secret[m.inode] == "" {
			continue
		}
		if m.writable {
			return fmt.Errorf("%s is mapped writable", m.fileName)
		}
		// The address is the kernel's, of a mapping that only the worker unmaps.
		part := unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&m.start))), m.end-m.start)
		if err := syscall.Mprotect(part, syscall.PROT_READ|syscall.PROT_WRITE); err == nil {
			return fmt.Errorf("%s can be made writable", m.fileName)
		}
	}
	return nil
}

// ownFiles lists the descriptors of this process's files in memory.
func ownFiles() (fds []int, err error) {
	entries, err := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		to, _ := os.Readlink("/proc/self/fd/" + e.Name())
		if fd, err := strconv.Atoi(e.Name()); err == nil && strings.HasPrefix(to, "/memfd:rackweave") {
			fds = append(fds, fd)
		}
	}
	return fds, err
}

// pages returns how many bytes of files are not holes.
func pages(fds []int) (n int64) {
	for _, fd := range fds {
		var st syscall.Stat_t
		if syscall.Fstat(fd, &st) == nil {
			n += 512 * st.Blocks
		}
	}
	return n
}

// HolesInMemory sends from memory that was never written, and takes pages back while the aggregator reads them.
func HolesInMemory(ctx context.Context, a *Aggregator) error {
	const elems = 32 << 20
	w, err := a.onShm(ctx, "aggregate", elems, nil)
	if err != nil {
		return err
	}
	defer w.Close()
	sparse, err := w.Alloc(4 * elems)
	if err != nil {
		return err
	}
	files, err := ownFiles()
	if err != nil {
		return err
	}
	before := pages(files)
	h, err := w.Push(0, sparse, 0)
	if err == nil {
		err = h.Wait(ctx)
	}
	if err != nil {
		return err
	}
	if filled := pages(files) - before; filled > int64(len(sparse))/8 {
		return fmt.Errorf("reading %d MiB of holes filled %d MiB of them", len(sparse)>>20, filled>>20)
	}
	const punch, keepSize = 2, 1 // FALLOC_FL_PUNCH_HOLE, FALLOC_FL_KEEP_SIZE
	punching := make(chan struct{})
	go func() {
		defer close(punching)
		for end := time.Now().Add(time.Second); time.Now().Before(end); {
			for _, fd := range files {
				syscall.Fallocate(fd, punch|keepSize, 0, 4*elems)
			}
		}
	}()
	for i := 0; i < 3; i++ {
		if err := exchange(ctx, w, sparse); err != nil {
			break // its own job may fail for it
		}
	}
	<-punching
	return nil
}
