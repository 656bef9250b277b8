package membership

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rackweave/rackweave/service/racks"
)

// certify writes a certificate and its key into files, signed by itself, for a CA that is also the server's and the client's.
func certify(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "racks"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

func TestEtcdWantsTheCertificatesThatItsFilesName(t *testing.T) {
	t.Parallel()
	cert, key := certify(t)
	e := &etcd{t: t, cfg: ServerConfig{Name: "test", Dir: t.TempDir(), Cluster: "test", CA: cert, Cert: cert, Key: key,
		URL: fmt.Sprintf("https://127.0.0.1:%d", freePort(t)), Peer: fmt.Sprintf("https://127.0.0.1:%d", freePort(t))}}
	e.start()
	t.Cleanup(e.stop)
	a := e.join("a", "http://a:1", func(c *Config) { c.Access.CA, c.Access.Cert, c.Access.Key = cert, cert, key })
	a.until("a", func(s racks.Standing) bool { return s.Refusal == nil })
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := Open(ctx, Config{Cluster: testCluster("b"), Access: Access{Endpoints: []string{e.cfg.URL}, CA: cert}})
	if !errors.Is(err, ErrUnreachable) {
		t.Errorf("without a certificate: %v", err)
	}
}

func TestEtcdRefusesAUserWhomItDoesNotKnow(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	admin := e.open("a", nil)
	defer admin.Close()
	c := admin.etcd()
	_, err := c.RoleAdd(t.Context(), "root")
	for _, next := range []func() error{
		func() error { _, err := c.UserAdd(t.Context(), "root", "secret"); return err },
		func() error { _, err := c.UserGrantRole(t.Context(), "root", "root"); return err },
		func() error { _, err := c.AuthEnable(t.Context()); return err },
	} {
		if err == nil {
			err = next()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, access := range []Access{{}, {User: "root", Password: "wrong"}} {
		access.Endpoints = []string{e.cfg.URL}
		_, err := Open(t.Context(), Config{Cluster: testCluster("a"), Access: access})
		if !errors.Is(err, ErrCredentials) {
			t.Errorf("user %q: %v", access.User, err)
		}
		says(t, err, e.cfg.URL, "give the user, the password and the certificate")
	}
	a := e.join("a", "http://a:1", func(c *Config) { c.Access.User, c.Access.Password = "root", "secret" })
	a.until("a", func(s racks.Standing) bool { return s.Refusal == nil })
}

func TestAServerThatStrangersWouldReachIsRefused(t *testing.T) {
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		c    ServerConfig
		want string
	}{
		"other hosts":    {ServerConfig{Dir: dir, URL: "http://0.0.0.0:1"}, "other hosts could use it at http://0.0.0.0:1"},
		"other members":  {ServerConfig{Dir: dir, Peer: "http://10.0.0.1:1"}, "other hosts could use it at http://10.0.0.1:1"},
		"no directory":   {ServerConfig{}, "no directory"},
		"a CA alone":     {ServerConfig{Dir: dir, CA: "x"}, "give all three files"},
		"no port":        {ServerConfig{Dir: dir, URL: "http://127.0.0.1"}, "use a URL such as"},
		"a name":         {ServerConfig{Dir: dir, URL: "http://localhost:1"}, "give an IP address"},
		"no certificate": {ServerConfig{Dir: dir, URL: "https://127.0.0.1:1"}, "https needs one"},
	} {
		_, err := StartServer(tc.c)
		if !errors.Is(err, ErrServer) {
			t.Errorf("%s: %v", name, err)
		}
		says(t, err, tc.want)
	}
}
