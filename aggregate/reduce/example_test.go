package reduce_test

import (
	"fmt"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/chunk"
)

// lane surrounds a machine: it holds the slots in which gradients arrive, a parameter, and the answers to workers.
type lane struct {
	*reduce.Machine
	slots   [2][2]float64 // by rank and slot
	w       float64       // the chunk's one parameter
	workers int
}

// deliver puts a worker's gradient into its next slot, and tells the machine.
func (l *lane) deliver(rank int, epoch uint8, gradient float64) {
	slot := l.NextSlot(rank)
	l.slots[rank][slot] = gradient
	fmt.Printf("gradient %v of worker %d in slot %d\n", gradient, rank, slot)
	l.Receive(0, rank, &reduce.Message{
		Op: chunk.OpPushPull, Epoch: epoch, Index: 0, Bytes: 8, Where: reduce.Where{Payload: uint64(slot)},
	})
	l.carryOut()
	for l.Advance(0) { // what waited for room
		l.carryOut()
	}
}

// carryOut does what the machine asks for: all of the arithmetic, and then the answers.
func (l *lane) carryOut() {
	for _, a := range l.Actions {
		switch a.Kind {
		case reduce.Update:
			for rank := range l.workers { // in rank order: the order of arrival changes no bit
				l.w -= 0.5 * l.slots[rank][l.MessageOf(&a, rank).Payload]
			}
			for rank := range l.workers {
				fmt.Printf("answer to worker %d: %v, for epoch %d\n", rank, l.w, a.Epoch)
				l.Delivered(rank, 1) // here messages arrive at once
			}
		case reduce.Fail:
			fmt.Println(a.Err)
		}
	}
}

// Two workers exchange a chunk of one parameter.
func Example() {
	l := &lane{workers: 2, w: 10, Machine: reduce.New(reduce.Config{
		Workers: 2, Window: 2, Sends: reduce.SendMargin + 2, Mode: reduce.Eager,
	})}
	l.Attach(0, 0)
	l.Attach(1, 0)
	l.Add([]reduce.Tensor{{Name: "w", Direct: true}}, []reduce.Chunk{{Tensor: 0, Bytes: 8}})

	l.deliver(1, 1, 4)
	l.deliver(0, 1, 2)
	l.deliver(0, 2, 6)
	l.deliver(0, 2, 6) // worker 0 must wait for the answer

	// Output:
	// gradient 4 of worker 1 in slot 0
	// gradient 2 of worker 0 in slot 0
	// answer to worker 0: 7, for epoch 1
	// answer to worker 1: 7, for epoch 1
	// gradient 6 of worker 0 in slot 1
	// gradient 6 of worker 0 in slot 0
	// protocol violation: worker 0 sent chunk 0 of lane 0 for epoch 2 twice
}
