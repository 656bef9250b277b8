// Command rackweave-etcd is a member of etcd beside an aggregator, which starts it: see rackweave serve --etcd embed.
package main

import (
	"os"

	"github.com/rackweave/rackweave/service/etcd/server"
)

func main() { os.Exit(server.Main(os.Stdin, os.Stdout)) }
