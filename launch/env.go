package launch

import (
	"cmp"
	"fmt"
	"net"
	"strconv"
)

// Place describes the job of workers, for their environment.
type Place struct {
	Server     string // URL of the aggregator
	CA         string // file with the certificates to trust, for https; may be empty
	Job        string
	Run        string // distinguishes these workers from those of another launch under the same job's name
	Token      string
	Insecure   bool // the token may be sent unencrypted, over http:// to another host
	Workers    int
	MasterAddr string // address at which PyTorch's worker 0 listens; if empty, this host
	MasterPort int
	Compress   string // codecs for programs that name none; may be empty

	// First is the first rank that is started here, and Here the number of these workers. If Here is 0, all are started here.
	First, Here int
	// Local is the first one's number among all workers of this host, and OnHost the number of these. If OnHost is 0, it is Here.
	Local, OnHost int
}

// Started returns the number of workers that are started here.
func (p *Place) Started() int { return cmp.Or(p.Here, p.Workers) }

// Env returns the variables of a worker, as NAME=VALUE: RackWeave's own, and those of PyTorch's launcher.
func (p *Place) Env(rank int) []string {
	r, n := strconv.Itoa(rank), strconv.Itoa(p.Workers)
	insecure := ""
	if p.Insecure {
		insecure = "1"
	}
	env := []string{
		"RACKWEAVE_ADDR=" + p.Server, "RACKWEAVE_CA=" + p.CA, "RACKWEAVE_JOB=" + p.Job, "RACKWEAVE_TOKEN=" + p.Token,
		"RACKWEAVE_INSECURE=" + insecure, "RACKWEAVE_RUN=" + p.Run,
		"RACKWEAVE_RANK=" + r, "RACKWEAVE_WORLD_SIZE=" + n,
		"RANK=" + r, "WORLD_SIZE=" + n, "LOCAL_RANK=" + strconv.Itoa(p.Local+rank-p.First),
		"LOCAL_WORLD_SIZE=" + strconv.Itoa(cmp.Or(p.OnHost, p.Started())),
		"MASTER_ADDR=" + cmp.Or(p.MasterAddr, "127.0.0.1"), "MASTER_PORT=" + strconv.Itoa(p.MasterPort),
	}
	if p.Compress != "" {
		env = append(env, "RACKWEAVE_COMPRESS="+p.Compress)
	}
	return env
}

// FreePort returns a free TCP port of the loopback address.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
