package control

import (
	"errors"
	"time"

	"github.com/rackweave/rackweave/client/membership"
	"github.com/rackweave/rackweave/service/api"
)

// offers are the codecs that the aggregator chooses while a member is in the job.
type offers struct {
	next chan offer
	end  chan struct{} // closed with the membership
}

func newOffers() offers { return offers{make(chan offer), make(chan struct{})} }

// offer is a choice of codecs by the aggregator, on its way to the program.
type offer struct {
	*api.Codecs
	accepted chan bool // has room for the answer
}

// takeWithin is the time for a program to take codecs, while the aggregator's stream is not read.
const takeWithin = time.Second

var (
	errNotJoined = errors.New("the worker has not joined: call rw_join first")
	errCodecs    = errors.New("the program does not take the codecs")
)

// recode hands codecs to the program.
func (o *offers) recode(_ *membership.Aggregator, c *api.Codecs) error {
	for _, place := range c.Places {
		if int(place) >= len(c.Codecs) {
			return errCodecs
		}
	}
	next, late := offer{c, make(chan bool, 1)}, time.After(takeWithin)
	select {
	case o.next <- next:
	case <-late:
		return errCodecs
	}
	select {
	case accepted := <-next.accepted:
		if accepted {
			return nil
		}
	case <-late:
	}
	return errCodecs
}

// after waits for codecs, makes them the last ones, and returns an answer with them. The program has accepted those before, or not.
func (o *offers) after(last *offer, accepted bool) ([]any, error) {
	if last.accepted != nil {
		last.accepted <- accepted
	}
	select {
	case *last = <-o.next:
	case <-o.end:
		return nil, errNotJoined
	}
	answer := []any{codecsAnswer{From: last.From}}
	for _, place := range last.Places {
		answer = append(answer, gradientsOf(last.Codecs.Codecs[place]))
	}
	return answer, nil
}
