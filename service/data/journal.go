package data

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/rackweave/rackweave/service/api"
)

// The events of a journal.
const (
	opOpen = "open" // a worker opened a set
	opNext = "next" // got a batch, or settled batches
	opLose = "lose" // was lost
	opDrop = "drop" // a job gave way to another
)

// event is a line of a journal, in JSON.
type event struct {
	Op      string               `json:"op"`
	Session string               `json:"session,omitempty"`
	Job     string               `json:"job,omitempty"`
	Open    *api.OpenDataRequest `json:"open,omitempty"`
	Seq     uint64               `json:"seq,omitempty"`
	Epoch   uint64               `json:"epoch,omitempty"`
	Rows    uint64               `json:"rows,omitempty"`
	Done    uint64               `json:"done,omitempty"`
	Seconds float64              `json:"seconds,omitempty"`
}

// maxLine bounds a line. The longest has a state to go on from.
const maxLine = 8 << 20

// journal is a file to which events are appended. It outlives the process. The machine may lose what was appended since sync.
type journal struct {
	file *os.File
	most int64

	mu     sync.Mutex // of what follows
	size   int64
	synced int64
	broken error // why it cannot be written to
}

// openJournal opens or makes a journal, which no other process may have open, and calls redo with its events. A last line that a
// killed process has left torn is cut off: nobody has got the answer to it.
func openJournal(path string, most int64, redo func(*event) error) (*journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NONBLOCK, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errors.New("its folder is missing: make it first")
	} else if err != nil {
		return nil, err
	}
	j := &journal{file: f, most: most}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errors.New("not a regular file: name another")
	default:
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			if errors.Is(err, syscall.EWOULDBLOCK) {
				err = errors.New("another service writes it: end that one, or name another file")
			}
			break
		}
		if j.size, err = redoAll(f, redo); err == nil {
			err = f.Truncate(j.size)
		}
		if err == nil {
			_, err = f.Seek(j.size, io.SeekStart)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return j, nil
}

// redoAll calls redo with the events of a journal, and returns the length of its whole lines.
func redoAll(in io.Reader, redo func(*event) error) (size int64, err error) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	lines.Split(func(text []byte, _ bool) (int, []byte, error) { // leaves a torn line
		if n := bytes.IndexByte(text, '\n') + 1; n > 0 {
			return n, text[:n], nil
		}
		return 0, nil, nil
	})
	n := 1
	for ; lines.Scan(); n++ {
		var e event
		d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		d.DisallowUnknownFields()
		if err := d.Decode(&e); err != nil {
			return size, fmt.Errorf("line %d: %w: it is damaged, or not a journal", n, err)
		}
		if err := redo(&e); err != nil {
			return size, fmt.Errorf("line %d: %w", n, err)
		}
		size += int64(len(lines.Bytes()))
	}
	if err := lines.Err(); err != nil {
		return size, fmt.Errorf("line %d, of at most %d bytes: %w: it is damaged, or not a journal", n, maxLine, err)
	}
	return size, nil
}

// room refuses calls if the journal cannot be written, or is full.
func (j *journal) room() error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.broken != nil:
		return j.broken
	case j.size >= j.most:
		return fmt.Errorf("%w bytes: journal %s has %d of at most %d: begin another with the sets' states, or raise --journal-bytes", ErrFull,
			j.file.Name(), j.size, j.most)
	}
	return nil
}

// append writes an event. After an error nothing is written: what was done is not in the journal.
func (j *journal) append(e *event) error {
	if j == nil {
		return nil
	}
	text, err := json.Marshal(e)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.broken != nil {
		return j.broken
	}
	if err == nil {
		text = append(text, '\n')
		j.size += int64(len(text))
		_, err = j.file.Write(text)
	}
	if err != nil {
		j.fail(err)
	}
	return j.broken
}

// sync flushes to the disk what was appended.
func (j *journal) sync() {
	if j == nil {
		return
	}
	j.mu.Lock()
	size, due := j.size, j.size > j.synced
	j.mu.Unlock()
	if !due {
		return
	}
	err := j.file.Sync() // events are appended meanwhile
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.synced = size; err != nil && j.broken == nil {
		j.fail(err)
	}
}

// fail refuses all later calls. j is locked.
func (j *journal) fail(err error) {
	j.broken = fmt.Errorf("%w: %w: correct that, and restart the service", ErrJournal, err)
}

func (j *journal) close() error {
	if j == nil {
		return nil
	}
	return j.file.Close()
}
