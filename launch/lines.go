package launch

import "bytes"

// Lines is a writer that calls Line with every line, without its end. A carriage return also ends a line, because progress bars use
// it. A Lines is not safe for concurrent use.
type Lines struct {
	Line func(line []byte) error
	Max  int // longest line in bytes; longer lines are split; if 0, the length is not limited
	rest []byte
}

// Write implements [io.Writer].
func (l *Lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	begin := 0
	for {
		line := l.rest[begin:]
		i := bytes.IndexAny(line, "\r\n")
		next := i + 1
		if tooLong := l.Max > 0 && len(line) > l.Max && (i < 0 || i > l.Max); tooLong {
			i, next = l.Max, l.Max
		}
		// A carriage return at the end waits for the next byte, which may be its line feed.
		if i < 0 || next == len(line) && line[next-1] == '\r' {
			l.rest = append(l.rest[:0], line...)
			return len(p), nil
		}
		if i < next && line[i] == '\r' && line[next] == '\n' {
			next++
		}
		if err := l.Line(line[:i]); err != nil {
			return 0, err
		}
		begin += next
	}
}

// Close passes on a last line without an end.
func (l *Lines) Close() error {
	if line := bytes.TrimRight(l.rest, "\r"); len(line) > 0 {
		l.rest = nil
		return l.Line(line)
	}
	return nil
}
