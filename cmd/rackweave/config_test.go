package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func TestAMistypedKeyNamesItselfAndTheNearest(t *testing.T) {
	for _, tc := range []struct{ command, text, key, meant string }{
		{"bench", "worker: 2\n", "worker", "workers"},
		{"serve", "listen: :0\nadmin_token: x\n", "admin_token", "admin-token"},
		{"topo", "Cores: 2\n", "Cores", "cores"},
	} {
		path := file(t, "rackweave.yaml", tc.text)
		fails(t, []string{tc.command, "--config", path}, path, `unknown key "`+tc.key+`"`, `did you mean "`+tc.meant+`"`)
	}
}

func TestABadConfigurationSaysWhatIsBad(t *testing.T) {
	fails(t, []string{"topo", "--config", "/nonexistent.yaml"}, "/nonexistent.yaml", "no such file")
	path := file(t, "rackweave.yaml", "cores: [1\n")
	fails(t, []string{"topo", "--config", path}, path)
	path = file(t, "rackweave.yaml", "cores: 1\n---\nlisten: :0\n")
	fails(t, []string{"topo", "--config", path}, path, "several documents")
	fails(t, []string{"serve", "--cluster", file(t, "cluster.yaml", "name: x\n---\nname: y\n"), "--rack", "a"}, "several documents")
	path = file(t, "rackweave.yaml", "cores: many\n")
	fails(t, []string{"topo", "--config", path}, path, "cores", "int", `"many"`)
	path = file(t, "rackweave.yaml", "cores:\n")
	fails(t, []string{"topo", "--config", path}, path, "cores", "no value: give one, or remove the key")
	path = file(t, "rackweave.yaml", "jobs: {resnet: }\n")
	fails(t, []string{"serve", "--config", path}, path, "jobs", "resnet: no value: give one, or remove the key")
	path = file(t, "rackweave.yaml", "nics: [mlx5_0, ]\njobs: [~]\n")
	fails(t, []string{"serve", "--config", path}, path, "jobs", "no value: give one, or remove the key")
}

func TestAFileThatIsNoConfigurationIsToldInALine(t *testing.T) {
	for _, text := range []string{"\x1b[2J\x00\n\xff\xfe\n: [", strings.Repeat("[", maxConfigBytes/16),
		strings.Repeat("key: [\n", 1<<20)} {
		_, err := run(t, "topo", "--config", file(t, "rackweave.yaml", text))
		if err == nil {
			t.Fatalf("a file with %.20q was read", text)
		}
		if strings.ContainsAny(err.Error(), "\n\x1b\x00") || len(err.Error()) > 300 {
			t.Errorf("error of %d bytes with what the file holds: %.300q", len(err.Error()), err)
		}
	}
	fails(t, []string{"topo", "--config", "/dev/zero"}, "/dev/zero is larger than 65536 bytes")
}

func TestAConfigurationSetsWhatTheCommandLineDoesNot(t *testing.T) {
	path := file(t, "rackweave.yaml", "# of this machine\nmodel: vgg16\nchunk-bytes: 65536\njson: true\ncores: 1\n")
	out, err := run(t, "topo", "--config", path, "--model", "alexnet")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Model      string
		ChunkBytes int `json:"chunk_bytes"`
		Lanes      []any
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	if got.Model != "alexnet" || got.ChunkBytes != 65536 || len(got.Lanes) != 1 {
		t.Errorf("%+v, want alexnet of the command line, chunks and cores of the file", got)
	}
}

func TestListsInAConfigurationAreLists(t *testing.T) {
	path := file(t, "rackweave.yaml", "workers: [2, 3]\nbytes: 0\n")
	fails(t, []string{"bench", "--config", path}, "0 elements")
	path = file(t, "rackweave.yaml", "workers: [2, 0]\nbytes: 4KiB\n")
	fails(t, []string{"bench", "--config", path}, "workers is 0")
	// Items keep their commas where they have some.
	path = file(t, "rackweave.yaml", "provider-options: [\"roce:gid=3,tc=106\", \"tcp:x=1\"]\n")
	fails(t, []string{"serve", "--config", path}, `unknown provider "roce"`)
	path = file(t, "rackweave.yaml", "hyper: {lr: 0.1, momentun: 0.9}\noptimizer: sgd_torch\n")
	fails(t, []string{"bench", "--config", path}, `sgd_torch has no hyper-parameter "momentun"`)
}

func TestAClusterFileThatListsNothingSaysWhatIsMissing(t *testing.T) {
	for _, text := range []string{"", "\n", "# racks\n", "---\n", "name: x\n"} {
		path := file(t, "cluster.yaml", text)
		fails(t, []string{"serve", "--cluster", path, "--rack", "a"}, path, "lists no racks: list them under racks", "secret")
	}
}

func TestAClustersFileIsReadOrRefusedWithTheRemedy(t *testing.T) {
	const racks = "\nracks: [{name: a, url: 'http://127.0.0.1:1'}, {name: b, url: 'http://127.0.0.1:2'}]\n"
	for text, want := range map[string]string{
		"shap: root" + racks:               `unknown field "shap": the fields are name, racks, shape, outer, core, secret, on-loss, buddy; of a rack name, url, pod, ca, size`,
		"racks: [{name: a, size: many}]":   "[1:25] the field takes a whole number",
		"racks: [{name: [a]}]":             "the field takes text",
		"buddy: 7" + racks:                 "[1:8] the field takes true or false",
		"secret: 5f0c…" + racks:            "a secret of 7 characters",
		"secret: 0123456789abcdef" + racks: "chmod o-rwx it",
	} {
		path := file(t, "cluster.yaml", text)
		if strings.Contains(want, "chmod") {
			if err := os.Chmod(path, 0o604); err != nil {
				t.Fatal(err)
			}
		}
		fails(t, []string{"serve", "--cluster", path, "--rack", "a"}, path, want)
	}
}

func TestATokenOfOneHostIsTakenAtAnother(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	token, err := run(t, "token", "make", "resnet", "--keys", a)
	if err != nil {
		t.Fatal(err)
	}
	path := file(t, "token", token)
	for range 2 { // the second time it is there
		if out, err := run(t, "token", "make", "resnet", "--keys", b, "--from", path, "--weight", "2"); err != nil || out != token {
			t.Fatalf("%q, %v", out, err)
		}
	}
	if list, err := run(t, "token", "list", "--json", "--keys", b); err != nil || strings.Count(list, `"job"`) != 1 ||
		strings.Contains(list, strings.TrimSpace(token)) {
		t.Errorf("%s, %v", list, err)
	}
	fails(t, []string{"token", "make", "bert", "--keys", b, "--from", path}, `that of job "resnet"`)
	fails(t, []string{"token", "make", "bert", "--keys", b, "--from", file(t, "short", "x\n")}, "a token of 1 bytes", "16 to 256")
	fails(t, []string{"token", "make", "bert", "--keys", b, "--from", "/no/such/file"}, "/no/such/file")
}
