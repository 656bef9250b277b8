package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// applyConfig sets the flags that the command line did not, from the file that --config names.
func applyConfig(cmd *cobra.Command) error {
	path, err := cmd.Flags().GetString("config")
	if err != nil || path == "" {
		return err
	}
	text, err := readConfig(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	var values map[string]any
	if err := decodeYAML(text, &values); err != nil && !errors.Is(err, io.EOF) {
		// The error leaves out the lines around it, which may be anything.
		return fmt.Errorf("read configuration %s: %s", path, yaml.FormatError(err, false, false))
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "config" && f.Name != "help" {
			known = append(known, f.Name)
		}
	})
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(known, name) {
			return fmt.Errorf("configuration %s: unknown key %q: did you mean %q?", path, name, nearest(name, known))
		}
		if cmd.Flags().Changed(name) {
			continue
		}
		f := cmd.Flags().Lookup(name)
		if err := setFlag(f, values[name]); err != nil {
			return fmt.Errorf("configuration %s: %s, of type %s: %w", path, name, f.Value.Type(), err)
		}
	}
	return nil
}

// decodeYAML decodes a file's only document. It returns [io.EOF] if the file has none.
func decodeYAML(text []byte, into any, options ...yaml.DecodeOption) error {
	d := yaml.NewDecoder(bytes.NewReader(text), options...)
	err := d.Decode(into)
	if err == nil && !errors.Is(d.Decode(new(any)), io.EOF) {
		return errors.New("it holds several documents: write one, without lines of ---")
	}
	return err
}

// maxConfigBytes bounds a configuration file: the YAML library's time grows with the square of some files' size.
const maxConfigBytes = 64 << 10

func readConfig(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err == nil && len(text) > maxConfigBytes {
		err = fmt.Errorf("%s is larger than %d bytes: give a file of keys and values", path, maxConfigBytes)
	}
	return text, err
}

var errNoValue = errors.New("no value: give one, or remove the key")

// setFlag sets a flag to a value of the file. A flag of several values takes a list, and one of NAME=VALUE a mapping.
func setFlag(f *pflag.Flag, v any) error {
	var items []string
	switch v := v.(type) {
	case nil:
		return errNoValue
	case []any:
		for _, item := range v {
			if item == nil {
				return errNoValue
			}
			items = append(items, fmt.Sprint(item))
		}
	case map[string]any:
		for name, value := range v {
			if value == nil { // a job without a token would have the token "<nil>"
				return fmt.Errorf("%s: %w", name, errNoValue)
			}
			items = append(items, fmt.Sprintf("%s=%v", name, value))
		}
		slices.Sort(items)
	default:
		return f.Value.Set(fmt.Sprint(v))
	}
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return list.Replace(items)
	}
	return f.Value.Set(strings.Join(items, ","))
}

func nearest(name string, known []string) string {
	return slices.MinFunc(known, func(a, b string) int {
		return levenshtein.ComputeDistance(name, a) - levenshtein.ComputeDistance(name, b)
	})
}
