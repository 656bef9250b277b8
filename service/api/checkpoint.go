package api

// BuddyName is the name by which a worker restores what racks keep of each other's state, as if it were a checkpoint.
const BuddyName = "buddy"
