package main

import (
	"bytes"
	"fmt"

	"github.com/goccy/go-yaml"

	"github.com/rackweave/rackweave/service/racks"
)

// readCluster reads the file that lists the racks, for the aggregator of one of them; without a file it returns nil.
func readCluster(path, rack string) (*racks.Cluster, error) {
	if path == "" {
		if rack != "" {
			return nil, fmt.Errorf("rack %q is named without a cluster: give its file by --cluster", rack)
		}
		return nil, nil
	}
	text, err := readConfig(path)
	if err != nil {
		return nil, fmt.Errorf("read cluster: %w", err)
	}
	c := &racks.Cluster{Own: rack}
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(c); err != nil {
		return nil, fmt.Errorf("read cluster %s: %s", path, yaml.FormatError(err, false, false))
	}
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("read cluster %s: %w", path, err)
	}
	return c, nil
}
