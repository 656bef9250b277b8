package job

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rackweave/rackweave/service/engine"
	"github.com/rackweave/rackweave/verbs"
)

// chooseEngine picks the provider of a job whose workers have all joined.
func (t *Table) chooseEngine(j *Job) (*engine.Engine, error) {
	candidates, err := j.Candidates()
	if err != nil {
		return nil, err
	}
	var reasons []string
	for _, p := range candidates {
		if err := t.Usable(p, j.Members); err == nil {
			return t.Engines.By[p], nil
		} else {
			reasons = append(reasons, fmt.Sprintf("%s: %v", p, err))
		}
	}
	return nil, fmt.Errorf("no provider suits all workers: %s", strings.Join(reasons, "; "))
}

// Candidates are the providers that the job's workers allow, fastest first.
func (j *Job) Candidates() ([]string, error) {
	var asked *Member
	for _, m := range j.Members {
		if m.provider == "" {
			continue
		}
		if asked != nil && asked.provider != m.provider {
			return nil, fmt.Errorf("%v asks for provider %s, %v for %s: all workers must ask for the same, or for auto", m, m.provider,
				asked, asked.provider)
		}
		asked = m
	}
	if asked != nil {
		return []string{asked.provider}, nil
	}
	return verbs.Providers(), nil
}

// Usable reports whether all workers can use a provider, and if not, why.
func (t *Table) Usable(p string, members []*Member) error {
	if t.Engines.By[p] == nil {
		return errors.New("not served here")
	}
	for _, m := range members {
		if !slices.Contains(m.providers, p) {
			return fmt.Errorf("%v has none", m)
		}
		if p == verbs.ProviderSHM && m.hostID != t.Engines.HostID {
			return fmt.Errorf("%v is not on the aggregator's host", m)
		}
		if p == verbs.ProviderSHM && m.uid != t.Engines.UID && m.uid != 0 && !t.Engines.AnyUser {
			return fmt.Errorf("%v runs as user %d, the aggregator as user %d: run both as one, use another provider, or start the aggregator "+
				"with --provider-options shm:users=any", m, m.uid, t.Engines.UID)
		}
	}
	return nil
}
