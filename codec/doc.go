// Package codec shortens gradients. Its plain Go specifies every bit of a payload.
//
// # Payloads
//
// A payload of a chunk's raw length is raw. A shorter one begins with a [Header] of 16 bytes, so each message tells by itself how
// to read it, and the workers of a step may use different codecs. A codec never sends a payload that is not shorter than raw.
//
// The codecs of a fixed rate cut a chunk into blocks of [Block] elements. After the header come the blocks' scales, in f32, then
// the elements' codes, lowest bits first:
//
//	value = 0 + level(code) * scale
//
// so that no value is -0, and adding one that is 0 changes no sum but -0. Scales of int8, int4 and FP8 are powers of two, which
// [Check] sees to, and the levels of the others are -1, 0 and 1. So every product is exact, and neither contraction into a fused
// multiply-add nor the width of a vector can change a bit of a sum.
//
// [TopK] sends the values of the elements with the largest magnitudes, in f32 and by index, then the indexes: as u16, or as a
// bitmap where that is shorter.
//
// Byte 3 of the header changes no value. After encoding, a worker sets bit 0 of a gradient's if it can send the next message of the
// lane at once: then the link, and not the worker, decides when that arrives. Bit 1 of an answer's says that the hash of the
// reference follows ([AddHash]), by which a worker sees that it has the same parameters as the others.
//
// # Error feedback
//
// A worker keeps what a payload lost, and adds it to its next gradient g (equations 6 and 7 of ACE-Sync, with gamma 1):
//
//	x = g + factor*residual;  p = encode(x);  residual = x - decode(p)
//
// in one call, [Spec.Encode], whose payload must then arrive: if it is lost, the same bytes travel again. A factor other than 1
// keeps a residual in the units of gradients whose scale or learning rate has changed. A gradient with an element that is not
// finite travels raw, without the residual, and leaves it alone, because a single overflow would stay in it for ever.
//
// Parameters do not compress, but their changes do: [Spec.EncodeChange] sends the difference from a reference that both sides
// keep, to which both add what was sent.
//
// # Random numbers
//
// Stochastic rounding draws from a counter, Philox4x32-10 of (seed; step, tensor, rank, element), never from the order of calls.
// (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3. SC 2011.)
package codec
