package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/rackweave/rackweave/service/racks"
)

// readCluster reads the file that lists the racks, for the aggregator of one of them; without a file it returns nil. A dynamic
// cluster's file need not list the aggregators' addresses.
func readCluster(path, rack string, dynamic bool) (*racks.Cluster, error) {
	if path == "" {
		if rack != "" {
			return nil, fmt.Errorf("rack %q is named without a cluster: give its file by --cluster", rack)
		}
		return nil, nil
	}
	c, err := parseCluster(path)
	if err != nil {
		return nil, err
	}
	c.Own, c.Dynamic = rack, dynamic
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("read cluster %s: %w", path, err)
	}
	return c, nil
}

// parseCluster reads the file without looking at what it says.
func parseCluster(path string) (*racks.Cluster, error) {
	text, err := readConfig(path)
	if err != nil {
		return nil, fmt.Errorf("read cluster: %w", err)
	}
	c := &racks.Cluster{}
	err = decodeYAML(text, c, yaml.Strict())
	if errors.Is(err, io.EOF) || err == nil && len(c.Racks) == 0 && c.Secret == "" {
		return nil, fmt.Errorf("read cluster %s: it lists no racks: list them under racks, each with its name and url, and give their secret",
			path)
	}
	if err != nil {
		return nil, fmt.Errorf("read cluster %s: %s", path, explainYAML(err))
	}
	if c.Secret != "" {
		if err := private(path); err != nil {
			return nil, fmt.Errorf("read cluster %s: %w", path, err)
		}
	}
	return c, nil
}

// explainYAML returns what in a cluster's file cannot be read, with the fields or the type that can. It repeats no value.
func explainYAML(err error) string {
	text := yaml.FormatError(err, false, false)
	if is := new(yaml.UnknownFieldError); errors.As(err, &is) {
		return fmt.Sprintf("%s: the fields are %s; of a rack %s", text, fields[racks.Cluster](), fields[racks.Rack]())
	}
	if is := new(yaml.TypeError); errors.As(err, &is) {
		wants := map[reflect.Kind]string{reflect.String: "text", reflect.Int: "a whole number", reflect.Bool: "true or false"}
		return fmt.Sprintf("[%d:%d] the field takes %s", is.Token.Position.Line, is.Token.Position.Column,
			cmp.Or(wants[is.DstType.Kind()], "something else"))
	}
	return text
}

// fields lists the fields of a type as a file names them.
func fields[T any]() string {
	var names []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		if name := f.Tag.Get("yaml"); name != "-" {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// firstAggregator returns the first rack of a cluster's file, by whose aggregator's measurements shapes are chosen.
func firstAggregator(path string) (racks.Rack, error) {
	c, err := parseCluster(path)
	if err != nil {
		return racks.Rack{}, err
	}
	c.Dynamic = true // urls may stand in etcd instead
	if len(c.Racks) > 0 {
		c.Own = c.Racks[0].Name
	}
	if err := c.Check(); err != nil {
		return racks.Rack{}, fmt.Errorf("read cluster %s: %w", path, err)
	}
	if c.Racks[0].URL == "" {
		return racks.Rack{}, fmt.Errorf("cluster %s: rack %q, the first, has no url: give that of its aggregator by --server instead", path, c.Own)
	}
	return c.Racks[0], nil
}
