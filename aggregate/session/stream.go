package session

import (
	"fmt"

	"github.com/rackweave/rackweave/verbs"
)

// NoToken is the token of a message that holds nothing.
const NoToken = -1

// Stream is this end of a connection: the messages it sent and the counts of both directions.
type Stream struct {
	wrs      []verbs.SendWR // as many as the send queue takes
	tokens   []int32        // what each message holds until it has arrived
	head     int            // the oldest
	held     int
	unposted int
	done     uint64
	reached  uint64
	received uint64
	broken   bool
}

// NewStream makes a stream that holds up to depth messages.
func NewStream(depth int) Stream {
	return Stream{wrs: make([]verbs.SendWR, depth), tokens: make([]int32, depth)}
}

// Held returns how many messages are not known to have arrived.
func (s *Stream) Held() int { return s.held }

// Unposted returns how many messages wait to be posted.
func (s *Stream) Unposted() int { return s.unposted }

// Done returns how many messages are known to have arrived.
func (s *Stream) Done() uint64 { return s.done }

// Received returns how many messages have come from the peer.
func (s *Stream) Received() uint64 { return s.received }

// Broken reports whether the stream waits to resume.
func (s *Stream) Broken() bool { return s.broken }

// At returns the i-th oldest message.
func (s *Stream) At(i int) *verbs.SendWR { return &s.wrs[s.index(i)] }

// Token returns what the i-th oldest message holds.
func (s *Stream) Token(i int) int32 { return s.tokens[s.index(i)] }

// Forget takes from the i-th oldest message what it holds.
func (s *Stream) Forget(i int) (token int32) {
	at := &s.tokens[s.index(i)]
	token, *at = *at, NoToken
	return token
}

// Depth returns how many messages the stream can hold.
func (s *Stream) Depth() int { return len(s.wrs) }

func (s *Stream) index(i int) int {
	if i += s.head; i >= len(s.wrs) {
		i -= len(s.wrs)
	}
	return i
}

// Put appends a message for the caller to fill in. It panics when the ring is full: the caller counts entries.
func (s *Stream) Put(token int32) *verbs.SendWR {
	if s.held == len(s.wrs) {
		panic("session: a message put into a full ring")
	}
	i := s.index(s.held)
	s.held++
	s.unposted++
	s.tokens[i] = token
	return &s.wrs[i]
}

// Next returns messages to post, oldest first: all that wait, or those up to the ring's end. It returns none after a break.
func (s *Stream) Next() []verbs.SendWR {
	if s.broken || s.unposted == 0 {
		return nil
	}
	from := s.index(s.held - s.unposted)
	return s.wrs[from : from+min(s.unposted, len(s.wrs)-from)]
}

// Posted takes note that a queue pair was given the n oldest messages that wait.
func (s *Stream) Posted(n int) {
	if n > s.unposted {
		panic("session: more messages posted than waited")
	}
	s.unposted -= n
	s.reached = max(s.reached, s.done+uint64(s.held-s.unposted))
}

// Sent takes note that the oldest message has arrived, and returns its token.
func (s *Stream) Sent() int32 {
	if s.held == s.unposted {
		panic("session: a message has arrived that was not posted")
	}
	token := s.tokens[s.head]
	s.head = s.index(1)
	s.held--
	s.done++
	return token
}

// Receive takes note of n messages from the peer.
func (s *Stream) Receive(n int) { s.received += uint64(n) }

// Break takes note that the queue pair has failed.
func (s *Stream) Break() { s.broken = true }

// Arrived says how many more messages the peer has received than were known to have arrived, for the caller to take out by
// [Stream.Sent]. It refuses a count that cannot be true.
func (s *Stream) Arrived(peerReceived uint64) (int, error) {
	if peerReceived < s.done || peerReceived > s.reached {
		return 0, fmt.Errorf("%d messages received of %d sent, of which %d are known to have arrived", peerReceived, s.reached, s.done)
	}
	s.unposted = min(s.unposted, s.held-int(peerReceived-s.done)) // another queue pair may have carried what this one has not
	return int(peerReceived - s.done), nil
}

// Resume makes everything that is left in the ring wait for the new queue pair.
func (s *Stream) Resume() {
	s.broken = false
	s.unposted = s.held
}
