package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// ofSecret is the annotation of a flag that holds a secret. It lists the environment variables that may hold it, too.
const ofSecret = "rackweave_secret"

// secret marks a flag as a secret, which every user of the host could read in a command line: only a configuration file sets it by
// its own name. It adds the flag NAME-file, which names a file that holds the secret, or one of its values on each line.
func secret(cmd *cobra.Command, name, what string, env ...string) {
	f := cmd.Flags()
	if len(env) > 0 {
		what += " (default: what " + strings.Join(env, " or ") + " says)"
	}
	f.String(name+"-file", "", "file that holds "+what)
	if err := errors.Join(f.SetAnnotation(name, ofSecret, env), f.MarkHidden(name)); err != nil {
		panic(err)
	}
}

// Environment variables that hold secrets.
const (
	jobsToken   = "RACKWEAVE_TOKEN"
	adminsToken = "RACKWEAVE_ADMIN_TOKEN"
)

// accessFlags adds the flags by which a command trusts an aggregator, and is let in there.
func accessFlags(cmd *cobra.Command, ca, token *string, insecure *bool, what string, env ...string) {
	f := cmd.Flags()
	f.StringVar(ca, "ca", "", "file with the certificates to trust, or sha256:FINGERPRINT, for https")
	f.StringVar(token, "token", "", what)
	secret(cmd, "token", what, env...)
	f.BoolVar(insecure, "insecure", os.Getenv("RACKWEAVE_INSECURE") == "1", "send the token over http:// to other hosts, too, where others can read it")
}

// readSecrets sets the flags of secrets that the configuration has not, and refuses those of the command line.
func readSecrets(cmd *cobra.Command) (err error) {
	flags := cmd.Flags()
	flags.VisitAll(func(f *pflag.Flag) {
		if env, is := f.Annotations[ofSecret]; is && err == nil {
			err = readSecret(f, flags.Lookup(f.Name+"-file").Value.String(), env)
		}
	})
	return err
}

// private returns an error if a file that holds a secret is not secret from the host's users. A pipe may be: its mode says nothing.
func private(path string) error {
	info, err := os.Stat(path)
	if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o007 != 0 {
		return fmt.Errorf("every user of this host may read or write it (mode %v), and it holds a secret: chmod o-rwx it, and make a "+
			"new secret", info.Mode().Perm())
	}
	return err
}

func readSecret(f *pflag.Flag, path string, env []string) error {
	switch {
	case f.Changed:
		return fmt.Errorf("--%[1]s: every user of this host can read command lines: give a file that holds it by --%[1]s-file%s", f.Name,
			strings.Join(append([]string{""}, env...), ", or set "))
	case path != "":
		text, err := readConfig(path)
		if err != nil {
			return fmt.Errorf("--%s-file: %w", f.Name, err)
		}
		if err := private(path); err != nil {
			return fmt.Errorf("--%s-file %s: %w", f.Name, path, err)
		}
		lines := strings.Fields(string(text))
		if i := strings.IndexFunc(strings.Join(lines, ""), func(r rune) bool { return r < '!' || r > '~' }); i >= 0 {
			return fmt.Errorf("--%s-file %s holds a character that is not printable ASCII, and a secret travels in a header: use letters and digits", f.Name, path)
		}
		list, many := f.Value.(pflag.SliceValue)
		switch {
		case many && len(lines) > 0:
			return list.Replace(lines)
		case !many && len(lines) == 1:
			return f.Value.Set(lines[0])
		}
		return fmt.Errorf("--%s-file %s holds %d words: put the secret into it, and nothing else", f.Name, path, len(lines))
	case f.Value.String() != f.DefValue: // the configuration has it
		return nil
	}
	for _, name := range env {
		if text := os.Getenv(name); text != "" {
			return f.Value.Set(text)
		}
	}
	return nil
}
