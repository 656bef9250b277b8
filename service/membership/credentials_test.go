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

	"github.com/rackweave/rackweave/service/etcd"
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
	e := &etcdServer{t: t, cfg: etcd.Config{Name: "test", Dir: t.TempDir(), Cluster: "test", CA: cert, Cert: cert, Key: key,
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
	_, err = Open(t.Context(), Config{Cluster: testCluster("a"), Access: Access{Endpoints: []string{e.cfg.URL}}})
	if !errors.Is(err, ErrCredentials) {
		t.Error(err)
	}
	says(t, err, e.cfg.URL, "give the certificate of a user that may use it")
}
