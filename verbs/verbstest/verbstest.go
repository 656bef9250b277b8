// Package verbstest is the transport contract as tests: one suite, run against every provider. Only a provider that passes the
// suite implements the contract. The name of a subtest states the rule that it checks.
package verbstest

import (
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/rackweave/rackweave/verbs"
)

// Provider describes a provider to the suite.
type Provider struct {
	Name string
	// Open opens the two ends of a connection. They may be one device, opened once. The suite closes them.
	Open func(t *testing.T) (a, b *verbs.Device)
	// Memory returns zeroed, page-aligned memory that the provider can register, freed when the test ends.
	Memory func(t testing.TB, bytes int) Buffer
	// Drive, if not nil, is called whenever the suite waits, to advance a simulated world.
	Drive func()
	// LocalKeyErrors lists the statuses, besides a local protection error, by which it may report a key that is not the sender's.
	LocalKeyErrors []verbs.Status
	// Link takes the link of a device down, or up again. If nil, the device has no link that can be changed.
	Link func(t *testing.T, d *verbs.Device, up bool)
	// Now, if not nil, is the clock of the provider's timeouts.
	Now func() time.Duration
}

// Buffer is memory to register: Len bytes at Addr, Offset bytes into the memfd FD, or FD -1.
type Buffer struct {
	Addr   unsafe.Pointer
	Len    int
	FD     int
	Offset uint64
}

// Bytes returns the buffer as a slice.
func (b Buffer) Bytes() []byte { return unsafe.Slice((*byte)(b.Addr), b.Len) }

// part returns a page-aligned piece of the buffer.
func (b Buffer) part(offset, length int) Buffer {
	return Buffer{unsafe.Add(b.Addr, offset), length, b.FD, b.Offset + uint64(offset)}
}

// Run checks a provider against the contract.
func Run(t *testing.T, p Provider) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Provider)
	}{
		{"a write with immediate places the payload and consumes one receive", placesPayload},
		{"zero length carries the immediate alone", carriesImmediateAlone},
		{"a message of megabytes arrives whole", arrivesWhole},
		{"a plain write is visible when a later immediate arrives and consumes no receive", plainWriteIsVisible},
		{"order and payloads hold within each of several queue pairs, both ways at once", orderHolds},
		{"lists of 1 to 128 work requests post with one call", listsPost},
		{"an inline source may be reused on return", inlineSourceIsFree},
		{"many queue pairs on one completion queue all advance", queuePairsShareFairly},
		{"posting and polling allocate nothing", nothingAllocates},

		{"unsignaled sends occupy the queue until a later completion is polled", unsignaledOccupy},
		{"a full send queue posts what fits and nothing further", fullQueuePostsNothingFurther},
		{"a full receive queue is an error", fullReceiveQueueIsError},
		{"a receive posted late lets the message in", lateReceiveRecovers},
		{"a receiver that is never ready fails the sender on time", neverReadyFails},
		{"a completion queue of the sender cannot overrun, or that is an error", sendOverrunIsError},
		{"a completion queue of the receiver cannot overrun, or that is an error", recvOverrunIsError},
		{"limits of the device are errors that name them", limitsAreErrors},
		{"what is in use is busy", inUseIsBusy},

		{"a write the target's keys do not allow is refused and touches nothing", remoteAccessIsChecked},
		{"a write the sender's keys do not allow is refused and touches nothing", localAccessIsChecked},

		{"failing a queue pair flushes all that is outstanding, and the peer sees an error", failFlushes},
		{"a queue pair in error flushes what is posted to it", errorFlushesPosts},
		{"an error of one queue pair leaves its neighbours alone", neighboursGoOn},
		{"destroying queue pairs with work outstanding leaves their queues clean", destroyIsClean},
		{"a sender whose peer was destroyed fails", destroyedPeerFailsSender},
		{"connecting to nobody ends within its deadline", nobodyThere},
		{"connecting ends when it is cancelled", cancelled},
		{"a passive queue pair whose peer never comes fails on time", nobodyComes},
		{"a garbage endpoint is an error", garbageEndpoint},
		{"a passive queue pair's device reports its peer's arrival", arrivalIsReported},
		{"a passive queue pair sends once its peer has connected", passiveSends},

		{"a link that goes down and comes back is reported, and connects again", linkIsReported},

		{"a wait ends on time", waitEndsOnTime},
		{"a wake ends the present or the next wait", wakeEndsWait},
		{"arm, poll, wait loses no wakeup", noLostWakeup},
		{"an error ends a wait for many completions", errorEndsWait},
		{"an owner at rest has acknowledged solicited messages", restAcknowledges},

		{"by reference, payloads are read where the sender holds them", byReferenceDelivers},
		{"by reference, the sender's key and address take the reply", byReferenceReply},
		{"by reference, the target is still checked", byReferenceChecks},

		{"what is stored in the peer's mapped memory arrives with a placed write", placedArrives},
		{"mapping checks what a write checks, and so does the placed write", mappingIsChecked},
		{"earlier requests that wait keep the peer's memory from being mapped", mappingKeepsOrder},
		{"a placed write that cannot be is an error and posts nothing", placedIsChecked},
	} {
		t.Run(c.name, func(t *testing.T) {
			onOneThread(t)
			c.test(t, p)
		})
	}
}

// onOneThread keeps a test on its thread, because the text of an error belongs to the thread that made the call.
func onOneThread(t *testing.T) {
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
}
