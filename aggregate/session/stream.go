package session

import (
	"fmt"

	"github.com/rackweave/rackweave/verbs"
)

// NoToken is the token of a message that holds nothing.
const NoToken = -1

// Stream is this end of a connection: the messages it sent and the counts of both directions. Callers only read its fields.
type Stream struct {
	Unconfirmed int    // messages in the ring, which are not known to have arrived
	Unposted    int    // messages of these that wait to be posted
	Done        uint64 // messages that are known to have arrived
	Received    uint64 // messages that the peer has sent

	wrs     []verbs.SendWR // as many as the send queue holds
	tokens  []int32        // by message: the caller's token, until the message has arrived
	head    int            // index of the oldest
	reached uint64
	broken  bool
}

// NewStream makes a stream that holds up to depth messages.
func NewStream(depth int) Stream {
	return Stream{wrs: make([]verbs.SendWR, depth), tokens: make([]int32, depth)}
}

// At returns the i-th oldest message.
func (s *Stream) At(i int) *verbs.SendWR { return &s.wrs[s.index(i)] }

// Token returns the token of the i-th oldest message.
func (s *Stream) Token(i int) int32 { return s.tokens[s.index(i)] }

// Forget removes the token of the i-th oldest message and returns it.
func (s *Stream) Forget(i int) (token int32) {
	at := &s.tokens[s.index(i)]
	token, *at = *at, NoToken
	return token
}

func (s *Stream) index(i int) int {
	if i += s.head; i >= len(s.wrs) {
		i -= len(s.wrs)
	}
	return i
}

// Put appends a message for the caller to fill in. It panics if the ring is full, because the caller must count entries.
func (s *Stream) Put(token int32) *verbs.SendWR {
	if s.Unconfirmed == len(s.wrs) {
		panic("session: a message put into a full ring")
	}
	i := s.index(s.Unconfirmed)
	s.Unconfirmed++
	s.Unposted++
	s.tokens[i] = token
	return &s.wrs[i]
}

// Next returns messages to post, oldest first: all that wait, or the ones up to the ring's end. It returns none after a break.
func (s *Stream) Next() []verbs.SendWR {
	if s.broken || s.Unposted == 0 {
		return nil
	}
	from := s.index(s.Unconfirmed - s.Unposted)
	return s.wrs[from : from+min(s.Unposted, len(s.wrs)-from)]
}

// Posted records that a queue pair has taken the n oldest waiting messages.
func (s *Stream) Posted(n int) {
	if n > s.Unposted {
		panic("session: more messages posted than waited")
	}
	s.Unposted -= n
	s.reached = max(s.reached, s.Done+uint64(s.Unconfirmed-s.Unposted))
}

// Delivered records that the oldest message has arrived, and returns its token.
func (s *Stream) Delivered() int32 {
	if s.Unconfirmed == s.Unposted {
		panic("session: a message that was not posted has arrived")
	}
	token := s.tokens[s.head]
	s.head = s.index(1)
	s.Unconfirmed--
	s.Done++
	return token
}

// Break marks the stream as broken, because the queue pair has failed.
func (s *Stream) Break() { s.broken = true }

// Arrived returns the number of messages that the peer has received beyond those known to have arrived. The caller removes them by
// [Stream.Delivered]. It returns an error for an impossible count.
func (s *Stream) Arrived(peerReceived uint64) (int, error) {
	if peerReceived < s.Done || peerReceived > s.reached {
		return 0, fmt.Errorf("%d messages received of %d sent: %d had arrived before", peerReceived, s.reached, s.Done)
	}
	// Another queue pair may have carried messages that this one has not.
	s.Unposted = min(s.Unposted, s.Unconfirmed-int(peerReceived-s.Done))
	return int(peerReceived - s.Done), nil
}

// Resume makes all messages that are left in the ring wait for the new queue pair.
func (s *Stream) Resume() {
	s.broken = false
	s.Unposted = s.Unconfirmed
}
