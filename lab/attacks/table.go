package attacks

import "fmt"

// Strangers are the attacks of peers with neither token nor session.
var Strangers = []Attack{
	{Name: "register as nobody", Run: RegisterAsNobody},
	{Name: "bodies that inflate", Run: InflateWithoutEnd},
	{Name: "large bodies", Run: LargeBodies},
	{Name: "an endless profile", Run: EndlessProfile},
	{Name: "admin calls", Run: AdminCalls},
	{Name: "deep bodies", Run: DeepBodies},
	{Name: "many connections", Run: ManyConnections},
	{Name: "closed windows", Run: ClosedWindows},
	{Name: "garbage", Run: Garbage},
	{Name: "rapid resets", Run: RapidResets},
	{Name: "headers without end", Run: HeadersWithoutEnd},
	{Name: "pings and settings", Run: PingsAndSettings},
	{Name: "frames below calls", Run: FramesBelowCalls},
	{Name: "slow bodies", Run: SlowBodies},
	{Name: "large heads", Run: LargeHeads},
	{Name: "pipelined", Run: Pipelined},
	{Name: "the data path", Run: DataPath},
	{Name: "a crowd at the data path", Run: CrowdAtTheDataPath},
}

// Tenants returns the attacks of jobs that were let in. They need a folder for checkpoints.
func Tenants(checkpoints string) []Attack {
	saves := []string{"--checkpoint-dir", checkpoints}
	return []Attack{
		{Name: "absent workers", Run: AbsentWorkers},
		{Name: "half jobs", Run: HalfJobs},
		{Name: "never attach", Run: NeverAttach},
		{Name: "empty tensors", Run: EmptyTensors},
		{Name: "guessed sessions", Run: GuessSessions},
		{Name: "another's token", Run: OthersToken},
		{Name: "a flood of barriers", Run: BarrierFlood},
		{Name: "a member's resets", Run: MemberResets},
		{Name: "half closed", Run: HalfClosed},
		{Name: "huge tensors", Run: HugeTensors, Flags: []string{"--max-job-memory", fmt.Sprint(512 << 20)}},
		{Name: "commits while tensors are registered", Run: CommitWhileRegistering},
		{Name: "tensors registered one by one", Run: RegisterOneByOne},
		{Name: "a flood of chunks", Run: FloodLanes},
		{Name: "ends in the middle", Run: DieAmidAll},
		{Name: "another's checkpoints", Run: OthersCheckpoints, Flags: saves},
		{Name: "restores that end midway", Run: TearRestore, Flags: saves},
		{Name: "saves by a changing number of workers", Run: SaveAndResize, Flags: saves},
		{Name: "memory of the aggregator", Run: WriteParameters},
		{Name: "holes in shared memory", Run: HolesInMemory},
		{Name: "empty frames", Run: EmptyFrames},
		{Name: "regions without end", Run: RegionsWithoutEnd},
		{Name: "sockets that linger", Run: SocketsThatLinger},
	}
}
