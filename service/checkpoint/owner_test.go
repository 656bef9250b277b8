package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestAFilesFirstTextIsThatOfWhoCameFirstForAll(t *testing.T) {
	dir := t.TempDir()
	for i := range 50 {
		var all sync.WaitGroup
		got := make([]string, 4)
		for k := range got {
			all.Go(func() {
				var err error
				if got[k], err = firstText(filepath.Join(dir, fmt.Sprint(i)), strings.Repeat(fmt.Sprint(k), 64)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for _, text := range got {
			if text != got[0] || len(text) != 64 {
				t.Fatalf("of four that came at once, these read %q", got)
			}
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 50 {
		t.Errorf("%d files are left, want 50: %v", len(entries), err)
	}
}
