package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// study says where the results of a study go.
type study struct{ svgDir, jsonFile string }

// flags adds the study's flags. Its figures have names of the form.
func (s *study) flags(f *pflag.FlagSet, form string) {
	f.StringVar(&s.svgDir, "svg", "", "write a figure for each into this directory, as "+form)
	f.StringVar(&s.jsonFile, "json", "", "write the numbers as JSON to this file (-: standard output)")
}

// check reports what would keep the results from being written, before they are measured.
func (s *study) check() error { return errors.Join(checkOutput(s.jsonFile), checkDir(s.svgDir)) }

// results are what a study found.
type results interface {
	WriteTable(io.Writer) error
	WriteSVGs(dir string) ([]string, error)
}

// write writes the results as JSON, as a table unless JSON goes where the table would, and as figures.
func (s *study) write(cmd *cobra.Command, all results) error {
	if s.jsonFile != "" {
		if err := output(cmd, s.jsonFile, func(w io.Writer) error { return writeJSON(w, all) }); err != nil {
			return err
		}
	}
	if s.jsonFile != "-" {
		if err := all.WriteTable(cmd.OutOrStdout()); err != nil {
			return err
		}
	}
	if s.svgDir == "" {
		return nil
	}
	files, err := all.WriteSVGs(s.svgDir)
	if len(files) > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "figures: %s\n", strings.Join(files, " "))
	}
	return err
}
