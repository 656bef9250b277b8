// Package etcd runs a member of etcd beside an aggregator. The member is a program of its own, rackweave-etcd, because etcd's
// server has more code than all of the aggregator, and most clusters never run it.
package etcd

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/rackweave/rackweave/launch"
)

// Config describes a member of etcd.
type Config struct {
	Name string // of the member: the rack's
	Dir  string // of its data
	// URL is the address for clients. If it is empty, a lone member serves at a Unix socket in Dir, and others at DefaultURL.
	URL string
	// Peer is the address for the other members. If it is empty, a lone member uses a Unix socket in Dir, and others DefaultPeer.
	Peer string
	// Members lists all members of etcd, as NAME=PEER,…. If it is empty, this one is alone. Two members are worse than one, because
	// the loss of either stops both.
	Members string
	Cluster string // keeps the members of different clusters apart
	// Files. With a CA, clients and members must show a certificate signed by it.
	CA, Cert, Key string
	Insecure      bool // serve other hosts without certificates
}

// These are the URLs of a member that is one of several, if its configuration names none.
const (
	DefaultURL  = "http://127.0.0.1:2379"
	DefaultPeer = "http://127.0.0.1:2380"
)

// ErrServer is wrapped by every error about the member.
var ErrServer = errors.New("embedded etcd")

// Answer is the line of JSON that the program prints when it serves or cannot.
type Answer struct {
	URL   string `json:"url,omitempty"` // for clients
	Error string `json:"error,omitempty"`
}

// Program is the name of the program.
const Program = "rackweave-etcd"

// find returns the program's path: beside this program, or in PATH.
func find() (string, error) {
	self, err := os.Executable()
	if err == nil {
		beside := filepath.Join(filepath.Dir(self), Program)
		if _, err := exec.LookPath(beside); err == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath(Program)
	if err != nil {
		return "", fmt.Errorf("%w: %w: it is a program of its own: make build puts it beside rackweave; copy it there or into PATH, or name an etcd that runs elsewhere by --etcd URL",
			ErrServer, err)
	}
	return path, nil
}

// These bound the time until the program serves, beyond its wait for a majority of the members, and until it ends.
const (
	startWithin = 2 * time.Minute
	endWithin   = 10 * time.Second
)

// Member is a running member, which ends with this process.
type Member struct {
	url    string
	orders io.Closer // the program's standard input: it ends when that does
	p      *launch.Process
}

// Start starts a member, and returns when it serves.
func Start(c Config) (*Member, error) {
	path, err := find()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(&c)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path)
	errs := new(launch.Tail)
	cmd.Stderr = errs
	orders, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	answers := make(chan Answer, 1)
	cmd.Stdout = &launch.Lines{Line: func(line []byte) error {
		var a Answer
		if err := json.Unmarshal(line, &a); err != nil {
			a.Error = fmt.Sprintf("%s printed %q: run one version of it and of rackweave", path, line)
		}
		select {
		case answers <- a:
		default: // it has answered
		}
		return nil
	}}
	p, err := launch.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrServer, err)
	}
	m := &Member{orders: orders, p: p}
	if _, err := io.Copy(orders, bytes.NewReader(append(text, '\n'))); err != nil {
		m.Close()
		return nil, fmt.Errorf("%w: %w", ErrServer, errs.Error(err))
	}
	select {
	case a := <-answers:
		if a.Error == "" {
			m.url = a.URL
			errs.Forward(os.Stderr)
			return m, nil
		}
		m.Close()
		return nil, fmt.Errorf("%w: %s", ErrServer, a.Error)
	case <-p.Ended():
		return nil, fmt.Errorf("%w: %s: %w", ErrServer, path, errs.Error(p.Wait()))
	case <-time.After(startWithin):
		m.Close()
		return nil, fmt.Errorf("%w: %s does not serve within %v", ErrServer, path, startWithin)
	}
}

// URL returns the address for clients.
func (m *Member) URL() string { return m.url }

// Ended returns a channel that is closed when the member has ended.
func (m *Member) Ended() <-chan struct{} { return m.p.Ended() }

// Close ends the member. Close its clients first.
func (m *Member) Close() {
	m.orders.Close()
	select {
	case <-m.p.Ended():
	case <-time.After(endWithin):
		_ = m.p.Signal(syscall.SIGKILL)
		<-m.p.Ended()
	}
}

// ReadOrders reads the configuration that the program is given.
func ReadOrders(r *bufio.Reader) (c Config, err error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return c, fmt.Errorf("read the configuration: %w: rackweave serve --etcd embed starts this program and writes it", err)
	}
	return c, json.Unmarshal(line, &c)
}
