package main

import (
	"strings"
	"testing"
)

func TestWhatCannotBeStudiedIsRefusedByName(t *testing.T) {
	for line, wants := range map[string][]string{
		"learn --only lag": {`"lag"`, "policies, lagtuner"},
		"learn --seeds 0":  {"0 seeds", "use 1 to"},
	} {
		cmd := root()
		cmd.SetArgs(strings.Fields(line))
		err := cmd.ExecuteContext(t.Context())
		for _, want := range wants {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want it to say %s", line, err, want)
			}
		}
	}
}
