package api

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
)

// Pin begins a certificate's fingerprint where a file of certificates may stand.
const Pin = "sha256:"

// Fingerprint returns a certificate's fingerprint, by which clients pin it.
func Fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return Pin + hex.EncodeToString(sum[:])
}

// TrustOf returns the TLS configuration of a client that trusts what ca says: the certificates of a file, in PEM form; the one
// certificate with a fingerprint, whatever its names; what the system trusts if it is empty.
func TrustOf(ca string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if text, ok := strings.CutPrefix(ca, Pin); ok {
		want, err := hex.DecodeString(text)
		if err != nil || len(want) != sha256.Size {
			return nil, fmt.Errorf("fingerprint %q: use sha256: and 64 hexadecimal digits, as rackweave serve prints them", ca)
		}
		c.InsecureSkipVerify = true // the fingerprint says more than a chain
		c.VerifyConnection = func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return errors.New("the aggregator shows no certificate")
			}
			if got := sha256.Sum256(s.PeerCertificates[0].Raw); !bytes.Equal(got[:], want) {
				return &tls.CertificateVerificationError{UnverifiedCertificates: s.PeerCertificates,
					Err: fmt.Errorf("the certificate's fingerprint is %s, not %s", Fingerprint(s.PeerCertificates[0].Raw), ca)}
			}
			return nil
		}
		return c, nil
	}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("CA file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CA file %s holds no certificate in PEM form", ca)
		}
	}
	return c, nil
}

// ErrInClear is wrapped by errors about tokens that would be sent where others can read them.
var ErrInClear = errors.New("a token would be sent in clear")

// CheckSecret returns an error if a token would be sent to another host by http.
func CheckSecret(server, token string) error {
	u, err := url.Parse(server)
	if token == "" || err != nil || u.Scheme != "http" || u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback() {
		return nil
	}
	return fmt.Errorf("%w to %s: use https://, or say that others may read it by RACKWEAVE_INSECURE=1 or --insecure", ErrInClear, server)
}
