package main

import (
	"os"
	"strings"
	"testing"
)

func TestTheLabNamesWhatItCannotUse(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ args, want string }{
		{"up --rate fast", `--rate "fast" is not a rate`},
		{"up --core 1:4", `--core "1:4" is not an oversubscription`},
		{"up --racks 0", "0 racks of 4 workers"},
		{"exchange --name nobody --wait 0s", `racks named "nobody" are not up`},
		{"status --name nobody --wait 0s", `in racks "nobody": exit status 255: Cannot open network namespace "nobody-a0"`},
		{"status --rack -1", "--rack -1"},
		{"exchange --divisor 0", "--divisor 0"},
		{"exchange --model resnet5", "resnet5"},
		{"measure --divisor 0", "--divisor 0"},
		{"measure --iters 0", "--iters 0"},
		{"exchange --program nobody", `--program: exec: "nobody": executable file not found in $PATH: build it by make build`},
		{"compress --rounds 0", "--rounds 0"},
		{"compress --rate fast", `--rate "fast" is not a rate`},
		{"compress --model resnet5", "resnet5"},
		{"measure --rate 1", `--rate "1" is not a rate`},
	} {
		cmd := root()
		cmd.SetArgs(append([]string{"--program", self}, strings.Fields(tc.args)...))
		err := cmd.ExecuteContext(t.Context())
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, expected %q", tc.args, err, tc.want)
		}
	}
}
