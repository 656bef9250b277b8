package racks

import (
	"strings"
	"testing"
)

func TestARackListensWhereTheFileSaysThatItIs(t *testing.T) {
	for url, want := range map[string]string{
		"http://127.0.0.1:7078":     "127.0.0.1:7078",
		"http://10.0.0.1:7078":      "10.0.0.1:7078",
		"https://aggregator-a:7077": ":7077",
		"http://localhost:1":        "localhost:1",
		"https://aggregator-a":      "otherwise",
		"":                          "otherwise",
	} {
		c := Cluster{Own: "a", Racks: []Rack{{Name: "a", URL: url}}}
		if got := c.Listen("otherwise"); got != want {
			t.Errorf("a rack at %q listens on %q, want %q", url, got, want)
		}
	}
}

func TestTheSecretOfTheReadmeIsNone(t *testing.T) {
	c := Cluster{Own: "a", Secret: exampleSecret, Racks: []Rack{{Name: "a", URL: "http://127.0.0.1:1"}}}
	if err := c.Check(); err == nil || !strings.Contains(err.Error(), "openssl rand -hex 32") {
		t.Errorf("%v, want a secret that everybody knows refused with the remedy", err)
	}
}
