package aggregate

import (
	"encoding/binary"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
)

// The epochs of a [chunk.OpNotice] to the leader of racks that need not come to all meetings, in lane 0.
const (
	noticeCome  = 5 // the rack has come to its next meeting; the index is the fragment
	noticeLeave = 6 // its workers have left the job
	noticeAway  = 7 // its workers wait for those of other racks
	noticeBack  = 8 // they do so no more
)

// opWords carries the leader's words to another rack, in lane 0. It is answered with a notice, after which there is room for more.
const opWords = chunk.OpCommit

// wordBytes is the size of a word: its kind, its rack, two bytes of 0, the fragment and the racks.
const wordBytes = 16

// mostWords bounds the words that wait for a rack: more than come in half a minute from one that trains alone and meets every
// millisecond.
const mostWords = 1 << 16

// desk is where a rack talks with the leader about meetings, and where the leader of rack 0 is. It is the first lane's.
type desk struct {
	rack   int
	leader *hierarchy.Leader
	told   func(w hierarchy.Word, meeting uint32, weights []int) // JobConfig.Met
	spread func([]hierarchy.Word)
	out    []sending        // to the leader, oldest first
	owes   bool             // word that the leader's last words were heard
	log    []hierarchy.Word // those that some rack has not been sent
	peers  []deskPeer       // by rack
}

// sending is a notice to the leader.
type sending struct {
	what  uint8
	index uint32
}

// deskPeer is how far another rack has heard the leader.
type deskPeer struct {
	sent int  // words of the log
	busy bool // what was sent last has not been heard
}

// newDesk makes a rack's desk; spread has the other lanes hear words.
func newDesk(c *JobConfig, spread func([]hierarchy.Word)) *desk {
	d := &desk{rack: c.Above.Rack, told: c.Met, peers: make([]deskPeer, c.Above.Racks), spread: spread}
	if d.rack == 0 {
		d.leader = hierarchy.NewLeader(c.Outer, c.Above.Racks)
	}
	return d
}

// put has something said to the leader. Workers wait as often as they like while the leader cannot be reached: it is told how that
// ended.
func (d *desk) put(what uint8, index uint32) {
	waits := func(what uint8) bool { return what == noticeAway || what == noticeBack }
	if n := len(d.out); n > 0 && waits(what) && waits(d.out[n-1].what) {
		d.out[n-1].what = what
		return
	}
	d.out = append(d.out, sending{what, index})
}

// forget drops the words that all racks were sent, once those are half of all.
func (d *desk) forget() {
	sent := len(d.log)
	for rack := range d.peers {
		if rack != d.rack {
			sent = min(sent, d.peers[rack].sent)
		}
	}
	if 2*sent < len(d.log) {
		return
	}
	d.log = d.log[:copy(d.log, d.log[sent:])]
	for rack := range d.peers {
		if rack != d.rack {
			d.peers[rack].sent -= sent
		}
	}
}

func (d *desk) toDo() bool {
	if len(d.out) > 0 || d.owes || d.leader != nil && d.leader.Waiting() {
		return true
	}
	return d.leader != nil && !d.heard()
}

// heard reports whether all racks have heard all words.
func (d *desk) heard() bool {
	for rack := range d.peers {
		if p := &d.peers[rack]; rack != d.rack && (p.busy || p.sent < len(d.log)) {
			return false
		}
	}
	return true
}

func (d *desk) quiet() bool { return len(d.out) == 0 && !d.owes && (d.leader == nil || d.heard()) }

func writeWord(b []byte, w hierarchy.Word) {
	binary.LittleEndian.PutUint32(b, uint32(w.Kind)|uint32(w.Rack)<<8)
	binary.LittleEndian.PutUint32(b[4:], uint32(w.Fragment))
	binary.LittleEndian.PutUint64(b[8:], w.Racks)
}

func readWord(b []byte) hierarchy.Word {
	return hierarchy.Word{
		Kind: hierarchy.WordKind(b[0]), Rack: int(b[1]), Fragment: int(binary.LittleEndian.Uint32(b[4:])),
		Racks: binary.LittleEndian.Uint64(b[8:]),
	}
}
