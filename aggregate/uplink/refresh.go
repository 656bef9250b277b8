package uplink

// refresh broadcasts the parameters that a commit changed, from the owners of the chunks to the other racks, through the reducer.
// Every rack takes part in the broadcasts of the same chunks (store.Chunk.Stale), because each applies every result of a step, and
// in one order, so their windows never fill with different chunks.
type refresh struct {
	u        *Uplink
	active   bool
	skip     bool   // the commit changed no parameters
	next     uint32 // index of the next chunk to broadcast
	inFlight int    // chunks whose parameters are in flight, at most the peers' window, so that every message finds a slot
}

// Refresh broadcasts the parameters that a commit changed from their owners to the other racks. If skip is true, the commit changed
// none.
func (u *Uplink) Refresh(skip bool) {
	u.refresh = refresh{u: u, active: true, skip: skip}
	u.refresh.advance()
}

// advance applies the parameters that other racks have broadcast, and broadcasts more chunks. It reports whether it did anything.
func (r *refresh) advance() (worked bool) {
	u, st := r.u, r.u.cfg.Store
	for _, index := range u.returned {
		c := &st.Chunks[index]
		if int(c.Owner) != u.cfg.Place.Rack {
			u.cfg.Arithmetic.ReplaceUpdated(st, c, u.buffers.result(u.chunks[index].sum))
		}
		u.release(index)
		r.inFlight--
		worked = true
	}
	u.returned = u.returned[:0]
	for r.inFlight < u.peerWindow && u.buffers.Free() > 0 && int(r.next) < len(st.Chunks) {
		index := r.next
		r.next++
		c := &st.Chunks[index]
		changed := c.Stale && !r.skip
		c.Stale = false
		if !changed {
			continue
		}
		worked = true
		r.inFlight++
		b := u.buffers.take(u.cfg.Lane.Stamp)
		u.chunks[index].sum = b
		n := note{resultAddr: u.buffers.result(b)}
		n.write(u.buffers.sum(b) + u.sumBytes(c, true))
		u.reducer.Ready(index, true)
		u.carryOut()
	}
	// Results that still wait to be sent have the length of a refresh.
	if r.inFlight > 0 || int(r.next) < len(st.Chunks) || u.reducer.OwesAny() {
		return worked
	}
	r.active = false
	u.cfg.Machine.Refreshed(u.cfg.Lane.Stamp)
	return true
}
