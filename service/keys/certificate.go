package keys

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// lasts is the validity of a new certificate. Clients pin it, so it is not renewed by itself.
const lasts = 10 * 365 * 24 * time.Hour

// Certificate returns the folder's certificate. It makes one if there is not one yet.
func (k *Keys) Certificate() (tls.Certificate, error) {
	key, err := k.private(keyFile)
	if errors.Is(err, os.ErrNotExist) {
		if err := k.makeCertificate(); err != nil {
			return tls.Certificate{}, fmt.Errorf("make a certificate: %w", err)
		}
		key, err = k.private(keyFile)
	}
	if err != nil {
		return tls.Certificate{}, err
	}
	cert, err := os.ReadFile(k.path(certFile))
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

// CertFile returns the path of the folder's certificate, for clients that take a file.
func (k *Keys) CertFile() string { return k.path(certFile) }

func (k *Keys) makeCertificate() error {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "rackweave aggregator"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(lasts), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{"localhost"},
	}
	if host, err := os.Hostname(); err == nil && host != "localhost" {
		template.DNSNames = append(template.DNSNames, host)
	}
	addrs, _ := net.InterfaceAddrs() // without them names remain, and the fingerprint
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			template.IPAddresses = append(template.IPAddresses, n.IP)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return err
	}
	if err := k.write(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})); err != nil {
		return err
	}
	return k.write(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))
}
