package launch

import (
	"fmt"
	"net"
	"strconv"
)

// Place is the job of workers, as their environment describes it.
type Place struct {
	Server     string // URL of the aggregator
	CA         string // file with the certificates to trust, for https; may be empty
	Job        string
	Run        string // tells these workers from those of another launch under the same job's name
	Token      string
	Workers    int
	MasterPort int // where PyTorch's worker 0 listens
}

// Env returns the variables of a worker, as NAME=VALUE: RackWeave's own, and those of PyTorch's launcher.
func (p *Place) Env(rank int) []string {
	r, n := strconv.Itoa(rank), strconv.Itoa(p.Workers)
	return []string{
		"RACKWEAVE_ADDR=" + p.Server, "RACKWEAVE_CA=" + p.CA, "RACKWEAVE_JOB=" + p.Job, "RACKWEAVE_TOKEN=" + p.Token,
		"RACKWEAVE_RUN=" + p.Run,
		"RACKWEAVE_RANK=" + r, "RACKWEAVE_WORLD_SIZE=" + n,
		"RANK=" + r, "WORLD_SIZE=" + n, "LOCAL_RANK=" + r, "LOCAL_WORLD_SIZE=" + n,
		"MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + strconv.Itoa(p.MasterPort),
	}
}

// FreePort returns a TCP port of the loopback address that nobody listens on.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
