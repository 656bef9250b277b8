package verbs

import "github.com/rackweave/rackweave/cgo/fabric"

// These are the contract's enumerations, with the values of the C header. fabric.h defines them all. Here are those in use.
type (
	SendFlags = fabric.SendFlags // of a work request
	WCOpcode  = fabric.WCOpcode  // of a work completion
	Status    = fabric.Status    // of a work completion
	Access    = fabric.Access    // rights to a memory region
	DevFlags  = fabric.DevFlags  // of a device
	QPState   = fabric.QPState   // of a queue pair
	EventType = fabric.EventType // of an asynchronous event
)

// These are the opcodes of work requests.
const (
	OpWrite        = fabric.OpWrite
	OpWriteWithImm = fabric.OpWriteWithImm
)

// These are the flags of work requests. fabric.h defines them.
const (
	SendSignaled  = fabric.SendSignaled
	SendInline    = fabric.SendInline
	SendStreaming = fabric.SendStreaming
	SendPlaced    = fabric.SendPlaced
)

// These are the opcodes of work completions.
const (
	WCSend    = fabric.WCSend
	WCRecvImm = fabric.WCRecvImm
)

// These are the statuses of work completions, as in enum ibv_wc_status.
const (
	WCSuccess        = fabric.WCSuccess
	WCLocQPOpErr     = fabric.WCLocQPOpErr
	WCLocProtErr     = fabric.WCLocProtErr
	WCFlushErr       = fabric.WCFlushErr
	WCRemAccessErr   = fabric.WCRemAccessErr
	WCRetryExcErr    = fabric.WCRetryExcErr
	WCRNRRetryExcErr = fabric.WCRNRRetryExcErr
	WCFatalErr       = fabric.WCFatalErr
)

// These are the access rights of memory regions.
const (
	AccessLocalWrite  = fabric.AccessLocalWrite
	AccessRemoteWrite = fabric.AccessRemoteWrite
)

// AccessForPeer returns an access right that, added to a region's access, lets only peers of queue pairs with this [QPConfig.Peer]
// reach the region. RDMA NICs cannot check it. With them the key is the secret.
func AccessForPeer(peer int) Access { return fabric.AccessForPeer(peer) }

// These are the flags of devices. fabric.h defines them.
const (
	DevByReference  = fabric.DevByReference
	DevCopiesAtPost = fabric.DevCopiesAtPost
	DevAnyMemory    = fabric.DevAnyMemory
	DevLink         = fabric.DevLink
	DevMaps         = fabric.DevMaps
)

// These are the states of queue pairs.
const (
	StateRTS = fabric.StateRTS
	StateErr = fabric.StateErr
)

// These are the types of asynchronous events.
const (
	EventQPEstablished = fabric.EventQPEstablished
	EventQPFatal       = fabric.EventQPFatal
	EventCQErr         = fabric.EventCQErr
	EventPortActive    = fabric.EventPortActive
	EventPortErr       = fabric.EventPortErr
	EventDeviceFatal   = fabric.EventDeviceFatal
)
