package main

import (
	"strings"
	"testing"
)

func TestTheLabNamesWhatItCannotUse(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"racks --rate fast", `--rate "fast" is no rate`},
		{"racks --core 1:4", `--core "1:4" is no oversubscription`},
		{"racks --racks 0", "0 racks of 4 workers"},
		{"exchange --name nobody --wait 0s", `racks named "nobody" are not up`},
		{"status --name nobody --wait 0s", `in racks "nobody": exit status 255: Cannot open network namespace "nobody-a0"`},
		{"status --rack -1", "--rack -1"},
		{"exchange --divisor 0", "--divisor 0"},
		{"exchange --model resnet5", "resnet5"},
		{"measure --divisor 0", "--divisor 0"},
		{"measure --iters 0", "--iters 0"},
		{"measure --rate 1", `--rate "1" is no rate`},
	} {
		_, err := run(t, append([]string{"lab"}, strings.Fields(tc.args)...)...)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, expected %q", tc.args, err, tc.want)
		}
	}
}
