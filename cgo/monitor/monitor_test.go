package monitor

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

const slack = "500000"

func TestAThreadThatStartedEarlyHasTheSlack(t *testing.T) {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, thread := range threads {
		has, err := os.ReadFile(fmt.Sprintf("/proc/%s/timerslack_ns", thread.Name()))
		if err != nil {
			t.Skipf("the slack of other threads takes CAP_SYS_NICE to read: %v", err)
		}
		found[strings.TrimSpace(string(has))]++
	}
	if first, err := os.ReadFile("/proc/self/timerslack_ns"); err != nil || strings.TrimSpace(string(first)) == slack {
		t.Errorf("the first thread has a slack of %s ns (%v), which its children would inherit", first, err)
	}
	if found[slack] == 0 {
		t.Errorf("threads by their slack in ns: %v; want one with %s", found, slack)
	}
}
