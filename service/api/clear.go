package api

import (
	"errors"
	"fmt"
	"net"
	"net/url"
)

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
