package verbs

import "github.com/rackweave/rackweave/cgo/fabric"

// These are the contract's enumerations.
type (
	SendFlags = fabric.SendFlags
	WCOpcode  = fabric.WCOpcode
	Status    = fabric.Status
	Access    = fabric.Access
	QPState   = fabric.QPState
	EventType = fabric.EventType
)

// These are their values.
const (
	OpWrite        = fabric.OpWrite
	OpWriteWithImm = fabric.OpWriteWithImm

	SendSignaled  = fabric.SendSignaled
	SendInline    = fabric.SendInline
	SendPastCache = fabric.SendPastCache
	SendPlaced    = fabric.SendPlaced
	SendSolicited = fabric.SendSolicited

	WCSend    = fabric.WCSend
	WCRecvImm = fabric.WCRecvImm

	WCSuccess        = fabric.WCSuccess
	WCLocQPOpErr     = fabric.WCLocQPOpErr
	WCLocProtErr     = fabric.WCLocProtErr
	WCFlushErr       = fabric.WCFlushErr
	WCRemAccessErr   = fabric.WCRemAccessErr
	WCRetryExcErr    = fabric.WCRetryExcErr
	WCRNRRetryExcErr = fabric.WCRNRRetryExcErr
	WCFatalErr       = fabric.WCFatalErr

	AccessLocalWrite  = fabric.AccessLocalWrite
	AccessRemoteWrite = fabric.AccessRemoteWrite

	DevByReference  = fabric.DevByReference
	DevCopiesAtPost = fabric.DevCopiesAtPost
	DevAnyMemory    = fabric.DevAnyMemory
	DevLink         = fabric.DevLink
	DevMaps         = fabric.DevMaps

	StateRTS = fabric.StateRTS
	StateErr = fabric.StateErr

	EventQPEstablished = fabric.EventQPEstablished
	EventQPFatal       = fabric.EventQPFatal
	EventCQErr         = fabric.EventCQErr
	EventPortActive    = fabric.EventPortActive
	EventPortErr       = fabric.EventPortErr
	EventDeviceFatal   = fabric.EventDeviceFatal
)

// AccessForPeer returns an access right that, added to a region's access, lets only peers of queue pairs with this [QPConfig.Peer]
// reach the region. RDMA NICs cannot check it. With them the key is the secret.
func AccessForPeer(peer int) Access { return fabric.AccessForPeer(peer) }
