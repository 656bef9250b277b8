package keys

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func open(t *testing.T, dir string) *Keys {
	t.Helper()
	k, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestKeysAreMadeOnceAndOnlyTheirOwnerReadsThem(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	first := open(t, dir)
	token, path, err := first.Admin()
	if err != nil || len(token) < 20 {
		t.Fatalf("%q, %v", token, err)
	}
	cert, err := first.Certificate()
	if err != nil {
		t.Fatal(err)
	}
	job, err := first.Make(Token{Job: "resnet", Weight: 3})
	if err != nil {
		t.Fatal(err)
	}
	again := open(t, dir)
	if same, _, err := again.Admin(); same != token || err != nil {
		t.Errorf("the second time the admin's token is %q, %v", same, err)
	}
	if same, err := again.Certificate(); err != nil || !bytes.Equal(same.Certificate[0], cert.Certificate[0]) {
		t.Errorf("the second time the certificate is another one: %v", err)
	}
	if found, ok := again.Find(job); !ok || found.Job != "resnet" || found.Weight != 3 {
		t.Errorf("%+v, %v", found, ok)
	}
	for _, guess := range []string{"", job + " ", strings.ToLower(job), token} {
		if _, ok := again.Find(guess); ok {
			t.Errorf("%q is a token", guess)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 4 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", f.Name(), info.Mode(), err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, tokensFile))
	if err != nil || bytes.Contains(text, []byte(job)) {
		t.Errorf("the token itself is kept: %v", err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := again.Admin(); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("an admin's token that others may read: %v", err)
	}
}

func TestTokensThatCannotBeReadLeaveThoseThatWere(t *testing.T) {
	k := open(t, t.TempDir())
	job, err := k.Make(Token{Job: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := k.Find(job); !ok {
		// It was read before it was made.
		if _, err := k.List(); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(k.dir, tokensFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := k.List(); err == nil {
		t.Error("broken tokens were read")
	}
	if _, ok := k.Find(job); !ok {
		t.Error("the token is forgotten")
	}
}
