package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// visible lists every command a user is shown.
func visible(cmd *cobra.Command) []*cobra.Command {
	var all []*cobra.Command
	for _, c := range cmd.Commands() {
		if !c.IsAvailableCommand() || c.Name() == "completion" {
			continue
		}
		if !c.HasSubCommands() || c.LocalNonPersistentFlags().HasAvailableFlags() { // others only group commands
			all = append(all, c)
		}
		all = append(all, visible(c)...)
	}
	return all
}

func TestEveryCommandHasExamplesThatItUnderstands(t *testing.T) {
	commands := visible(root())
	if len(commands) < 6 {
		t.Fatalf("only %d commands are visible", len(commands))
	}
	for _, c := range commands {
		t.Run(c.CommandPath(), func(t *testing.T) {
			if c.Short == "" || c.Example == "" {
				t.Fatalf("short %q, example %q: want both", c.Short, c.Example)
			}
			out, err := run(t, append(strings.Fields(c.CommandPath())[1:], "--help")...)
			if err != nil || !strings.Contains(out, "Examples:") {
				t.Errorf("--help has no examples: %v\n%s", err, out)
			}
			for line := range strings.Lines(c.Example) {
				words := strings.Fields(line)
				if len(words) == 0 || words[0] != "rackweave" {
					t.Errorf("example %q does not begin with rackweave", line)
					continue
				}
				found, rest, err := root().Find(words[1:])
				if err != nil {
					t.Errorf("example %q: %v", line, err)
					continue
				}
				if found.CommandPath() != c.CommandPath() && found.Parent().CommandPath() != c.CommandPath() {
					t.Errorf("example %q is of %s", line, found.CommandPath())
				}
				if err := found.ParseFlags(rest); err != nil {
					t.Errorf("example %q: %v", line, err)
				} else if err := found.ValidateArgs(found.Flags().Args()); err != nil {
					t.Errorf("example %q: %v", line, err)
				}
			}
		})
	}
}

func TestEveryCommandThatPrintsHasJSON(t *testing.T) {
	for _, c := range visible(root()) {
		if c.Flags().Lookup("json") == nil {
			t.Errorf("%s has no --json", c.CommandPath())
		}
	}
}

// Flags are names in configuration files too: one way of writing them.
func TestFlagsHaveOneStyle(t *testing.T) {
	for _, c := range visible(root()) {
		for _, line := range strings.Split(c.LocalFlags().FlagUsages(), "\n") {
			fields := strings.Fields(line)
			i := slices.IndexFunc(fields, func(f string) bool { return strings.HasPrefix(f, "--") })
			if i < 0 {
				continue
			}
			if name := fields[i]; name != strings.ToLower(name) || strings.Contains(name, "_") {
				t.Errorf("%s %s: use lower case and dashes", c.CommandPath(), name)
			}
		}
	}
}

func TestUnknownCommandsAndFlagsAreNamed(t *testing.T) {
	fails(t, []string{"bensh"}, `"bensh"`, "bench")
	fails(t, []string{"bench", "compere"}, `"compere"`)
	fails(t, []string{"bench", "--worker", "2"}, "--worker")
	fails(t, []string{"topo", "everything"}, `"everything"`)
}

func TestCommandsOfAJobSayThatItsNameIsMissing(t *testing.T) {
	fails(t, []string{"policy", "set", "asp"}, `"job" not set`)
	fails(t, []string{"trace"}, `"job" not set`)
}

// A time or a number that a message has no room for would wrap to another.
func TestWhatCannotBeMeantIsRefused(t *testing.T) {
	fails(t, []string{"drain", "--after", "-1s"}, "drain that ends after -1s")
	fails(t, []string{"trace", "--job", "j", "--for", "-1s"}, "trace of -1s")
	fails(t, []string{"trace", "--job", "j", "--for", "1193h2m48s"}, "trace of 1193h2m48s")
	fails(t, []string{"trace", "--job", "j", "--events", "-1"}, "-1 events")
	fails(t, []string{"trace", "--job", "j", "--events", "4294967297"}, "4294967297 events")
	fails(t, []string{"token", "make", "j", "--keys", t.TempDir(), "--max-workers", "-3"}, "--max-workers -3")
	fails(t, []string{"token", "make", "j", "--keys", t.TempDir(), "--max-memory", "-1"}, "--max-memory -1")
}
