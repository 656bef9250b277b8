package reduce

// Chunk is a chunk of the lane, by its lane index.
type Chunk struct {
	Tensor uint32 // by the order of Add and AddTensor, over all calls
	Bytes  uint32 // on the wire
}

// moved is the fold of a chunk that another lane has.
const moved = -2

type chunkState struct {
	Chunk
	fold  int32  // in progress, or none; moved: the chunk is in another lane
	epoch uint8  // that it has finished
	to    uint8  // 1 + the lane that it moves to with its next answer; 0: it stays
	added uint16 // stream: how many of the set's addends its accumulator has, or lacks for good
}

// guests are the chunks that have come from other lanes, and the tensors of which the plan has placed nothing here.
type guests struct {
	at      map[uint32]int // by index: their places
	all     []chunkState
	free    []int             // places
	homes   []uint32          // the plan's tensors, by their index in the lane
	tensors map[uint32]uint32 // the others, by their index
}

// tensor returns the number of a tensor by its index.
func (g *guests) tensor(index uint32) (uint32, bool) {
	if int(index) < len(g.homes) {
		return g.homes[index], true
	}
	t, ok := g.tensors[index]
	return t, ok
}

// addTensor takes in a tensor of which the plan has placed nothing here.
func (g *guests) addTensor(index, number uint32) {
	if g.tensors == nil {
		g.tensors = map[uint32]uint32{}
	}
	g.tensors[index] = number
}

// chunk returns a guest by its index; nil: there is none.
func (g *guests) chunk(index uint32) *chunkState {
	if i, ok := g.at[index]; ok {
		return &g.all[i]
	}
	return nil
}

// put takes a guest in.
func (g *guests) put(index uint32, c chunkState) {
	if g.at == nil {
		g.at = map[uint32]int{}
	}
	if n := len(g.free); n > 0 {
		g.at[index] = g.free[n-1]
		g.free = g.free[:n-1]
	} else {
		g.at[index] = len(g.all)
		g.all = append(g.all, chunkState{})
	}
	g.all[g.at[index]] = c
}

// forget frees a guest's place.
func (g *guests) forget(index uint32) {
	g.free = append(g.free, g.at[index])
	delete(g.at, index)
}
