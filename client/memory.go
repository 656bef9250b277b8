package client

import (
	"fmt"
	"unsafe"
)

// Bytes views a slice's memory as bytes, without a copy.
func Bytes[T any](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}

// Floats views bytes as f32 elements, without a copy. It panics if b is not aligned to 4 bytes or holds a part of an element.
func Floats(b []byte) []float32 {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if len(b)%4 != 0 || uintptr(p)%4 != 0 {
		panic("client: not a slice of float32")
	}
	return unsafe.Slice((*float32)(p), len(b)/4)
}

// Alloc returns memory that the transport reaches by itself: this process does not copy gradients and results that lie there. It is
// zero, begins at a page and lasts until Close. A few large pieces are better than many small ones.
func (w *Worker) Alloc(bytes int) ([]byte, error) {
	w.using.RLock()
	defer w.using.RUnlock()
	if err := w.Err(); err != nil {
		return nil, fmt.Errorf("allocate: %w", err)
	}
	w.registering.Lock()
	defer w.registering.Unlock()
	m, err := w.session.Allocate("tensors", bytes)
	if err != nil {
		return nil, w.dataError("", err)
	}
	return m.Bytes(), nil
}
