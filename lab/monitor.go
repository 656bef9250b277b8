package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// monitor speaks QMP, QEMU's control protocol: JSON objects both ways, events between the answers.
type monitor struct {
	mu    sync.Mutex
	conn  net.Conn
	dec   *json.Decoder
	ready bool
}

const monitorTimeout = 10 * time.Second

func newMonitor(conn net.Conn) *monitor {
	return &monitor{conn: conn, dec: json.NewDecoder(conn)}
}

func (m *monitor) close() { m.conn.Close() }

func (m *monitor) setLink(id string, up bool) error {
	return m.execute("set_link", map[string]any{"name": id, "up": up})
}

func (m *monitor) execute(name string, arguments map[string]any) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ready {
		if err := m.call("qmp_capabilities", nil); err != nil {
			return err
		}
		m.ready = true
	}
	return m.call(name, arguments)
}

func (m *monitor) call(name string, arguments map[string]any) error {
	m.conn.SetDeadline(time.Now().Add(monitorTimeout))
	request := map[string]any{"execute": name}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := json.NewEncoder(m.conn).Encode(request); err != nil {
		return fmt.Errorf("monitor %s: %w", name, err)
	}
	for {
		var answer struct {
			Return json.RawMessage
			Error  *struct{ Desc string }
		}
		if err := m.dec.Decode(&answer); err != nil {
			return fmt.Errorf("monitor %s: %w", name, err)
		}
		if answer.Error != nil {
			return errors.New("monitor " + name + ": " + answer.Error.Desc)
		}
		if answer.Return != nil { // otherwise it is the greeting, or an event
			return nil
		}
	}
}
