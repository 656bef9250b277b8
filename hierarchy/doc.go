// Package hierarchy reduces chunks among the aggregators of several racks. It is pure. A [Topology] gives each rack its [Route] for
// the chunks of an owner, and a [Reducer] decides what becomes of one lane's chunks above the rack.
//
// Above the rack a chunk climbs a tree of aggregators. The lane that has a chunk sends its rack's sum to a parent, which adds
// its children's sums and its own. The rack at the top of the tree owns the chunk, runs the optimizer and sends the result back
// down. Every [Shape] is such a tree for each owner, so one machine serves all shapes. The order of the sum belongs to racks and
// declared pods, never to the shape: no shape changes a bit. As package reduce does, the machine takes events and answers with
// actions. Racks whose workers push in different orders follow rack 0's (stall.go).
//
// A root is the worker whose values a broadcast takes. Only the name of shape [Root], under which one rack owns all chunks, uses
// the word otherwise. An epoch counts a chunk's results. A broadcast of initial values does not count, and repeats the last epoch.
//
// A sum holds a slot at its parent until it is answered: by SendResult at the owner, by SendTaken where the sum goes on, or by
// SendNACK. A rack returns a result to its own workers (Return) before it passes it on. Some actions ask for an event in return:
//
//	SendSum, SendResult   Delivered when the message has arrived
//	SendRecall            NACKed, or Result if the sum was used already
//	Discard               Ready again, with the gradients that its workers send anew
package hierarchy
