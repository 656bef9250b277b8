// Package keys keeps what an aggregator that other hosts reach proves and asks for: its certificate, the admin's token and the
// jobs' tokens, in files that only their owner reads.
package keys

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"
)

// The files of the folder.
const (
	adminFile  = "admin.token"
	tokensFile = "tokens.json"
	certFile   = "cert.pem"
	keyFile    = "key.pem"
)

// rereadEvery bounds the time until a new token is known.
const rereadEvery = time.Second

// Folder returns where keys are kept unless someone says otherwise: systemd's folder for state, else the user's.
func Folder() string {
	if dir, _, _ := strings.Cut(os.Getenv("STATE_DIRECTORY"), ":"); dir != "" {
		return dir
	}
	if os.Geteuid() == 0 {
		return "/var/lib/rackweave"
	}
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "rackweave")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "."
	}
	return filepath.Join(home, ".local", "state", "rackweave")
}

// Token holds a token's digest, and what its job may have. A zero leaves the aggregator's bound.
type Token struct {
	Job         string    `json:"job"`
	SHA256      string    `json:"sha256"`
	Made        time.Time `json:"made"`
	Workers     int       `json:"workers,omitempty"`
	MemoryBytes int64     `json:"memory_bytes,omitempty"`
	Weight      int       `json:"weight,omitempty"`
}

// Keys is the folder.
type Keys struct {
	dir string

	mu     sync.Mutex
	read   time.Time
	tokens []Token
}

// Open makes the folder where it is missing. It refuses one that others may read.
func Open(dir string) (*Keys, error) {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		var info os.FileInfo
		if info, err = os.Stat(dir); err == nil && info.Mode().Perm()&0o022 != 0 {
			err = fmt.Errorf("others may write to it (mode %v): chmod go-w it", info.Mode().Perm())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("folder of keys %s: %w", dir, err)
	}
	return &Keys{dir: dir}, nil
}

// path returns the path of a file of the folder.
func (k *Keys) path(name string) string { return filepath.Join(k.dir, name) }

// private reads a file that only its owner may read.
func (k *Keys) private(name string) ([]byte, error) {
	info, err := os.Stat(k.path(name))
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s: others may read it (mode %v): chmod 600 it, and make its content anew", k.path(name),
			info.Mode().Perm())
	}
	return os.ReadFile(k.path(name))
}

func (k *Keys) write(name string, text []byte) error {
	return renameio.WriteFile(k.path(name), text, 0o600, renameio.WithTempDir(k.dir), renameio.IgnoreUmask())
}

// Admin returns the admin's token and the file that has it. It makes one if there is not one yet.
func (k *Keys) Admin() (token, path string, err error) {
	text, err := k.private(adminFile)
	if errors.Is(err, os.ErrNotExist) {
		text = []byte(rand.Text() + "\n")
		err = k.write(adminFile, text)
	}
	return strings.TrimSpace(string(text)), k.path(adminFile), err
}

func digest(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// Make makes a token for a job, and returns it: only its digest is kept. The job's other tokens stay.
func (k *Keys) Make(t Token) (token string, err error) {
	token = rand.Text()
	return token, k.Take(t, token)
}

// The bounds of a token that was made elsewhere.
const (
	minToken = 16 // bytes
	maxToken = 256
)

// Take adds a token for a job that was made elsewhere, such as at the aggregator of another rack. It replaces the same token of the
// same job.
func (k *Keys) Take(t Token, token string) error {
	if n := len(token); n < minToken || n > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("a token of %d bytes: use one line of %d to %d printable characters, such as token make prints", n, minToken, maxToken)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.reread(); err != nil {
		return err
	}
	t.SHA256, t.Made = digest(token), time.Now().UTC().Truncate(time.Second)
	tokens := slices.Clone(k.tokens)
	if i := slices.IndexFunc(tokens, func(o Token) bool { return o.SHA256 == t.SHA256 }); i >= 0 {
		if tokens[i].Job != t.Job {
			return fmt.Errorf("the token is that of job %q: make one for each job", tokens[i].Job)
		}
		tokens = slices.Delete(tokens, i, i+1)
	}
	text, err := json.MarshalIndent(append(tokens, t), "", "\t")
	if err != nil {
		return err
	}
	return k.write(tokensFile, append(text, '\n'))
}

// List returns what is kept of the tokens.
func (k *Keys) List() ([]Token, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.tokens, k.reread()
}

// reread reads the tokens. The caller holds k.mu.
func (k *Keys) reread() error {
	k.read = time.Now()
	text, err := k.private(tokensFile)
	if errors.Is(err, os.ErrNotExist) {
		k.tokens = nil
		return nil
	}
	var tokens []Token
	if err == nil {
		if err = json.Unmarshal(text, &tokens); err == nil {
			k.tokens = tokens
			return nil
		}
	}
	return fmt.Errorf("tokens of jobs in %s: %w", k.path(tokensFile), err)
}

// Find returns what is kept of a token. A token made by another process is known within a second.
func (k *Keys) Find(token string) (Token, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.read) > rereadEvery {
		k.reread() // what was read before holds where this fails
	}
	sum := digest(token)
	i := slices.IndexFunc(k.tokens, func(t Token) bool { return t.SHA256 == sum })
	if i < 0 {
		return Token{}, false
	}
	return k.tokens[i], true
}
