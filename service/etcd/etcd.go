// Package etcd runs a member of etcd beside an aggregator. The member is a program of its own, rackweave-etcd, because etcd's
// server has more code than all of the aggregator, and most clusters never run it.
package etcd

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
		return "", fmt.Errorf("embedded etcd: %w: it is a program of its own: make build puts it beside rackweave; copy it there or into PATH, or name an etcd that runs elsewhere by --etcd URL",
			err)
	}
	return path, nil
}

// startWithin bounds the time until the program serves, beyond its wait for a majority of the members.
const startWithin = 2 * time.Minute

// Start starts a member, which ends with this process, and returns when it serves. The program reads its configuration as JSON.
func Start(c Config) (*launch.Server, error) {
	path, err := find()
	if err != nil {
		return nil, err
	}
	orders, err := json.Marshal(&c)
	if err != nil {
		return nil, err
	}
	return launch.StartServer("embedded etcd", exec.Command(path), orders, startWithin, os.Stderr)
}
