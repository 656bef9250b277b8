package fabric

/*
#include "base/fabric.h"
*/
import "C"

// These are the contract's enumerations, each with its own type. [Status], [EventType] and [QPState] name their values.
type (
	Opcode    uint16 // enum rwf_opcode
	SendFlags uint16 // enum rwf_send_flags
	WCOpcode  uint16 // enum rwf_wc_opcode
	Status    uint16 // enum rwf_wc_status
	Access    uint32 // enum rwf_access
	DevFlags  uint32 // enum rwf_device_flags
	QPState   uint32 // enum rwf_qp_state
	EventType uint32 // enum rwf_async_type
)

// These are the opcodes of work requests.
const (
	OpWrite        Opcode = C.RWF_WRITE
	OpWriteWithImm Opcode = C.RWF_WRITE_WITH_IMM
)

// These are the flags of work requests.
const (
	SendSignaled  SendFlags = C.RWF_SEND_SIGNALED
	SendInline    SendFlags = C.RWF_SEND_INLINE
	SendPastCache SendFlags = C.RWF_SEND_PAST_CACHE
	SendPlaced    SendFlags = C.RWF_SEND_PLACED
	SendSolicited SendFlags = C.RWF_SEND_SOLICITED
)

// These are the opcodes of work completions.
const (
	WCSend    WCOpcode = C.RWF_WC_SEND
	WCRecvImm WCOpcode = C.RWF_WC_RECV_IMM
)

// These are the statuses of work completions.
const (
	WCSuccess        Status = C.RWF_WC_SUCCESS
	WCLocQPOpErr     Status = C.RWF_WC_LOC_QP_OP_ERR
	WCLocProtErr     Status = C.RWF_WC_LOC_PROT_ERR
	WCFlushErr       Status = C.RWF_WC_WR_FLUSH_ERR
	WCRemAccessErr   Status = C.RWF_WC_REM_ACCESS_ERR
	WCRetryExcErr    Status = C.RWF_WC_RETRY_EXC_ERR
	WCRNRRetryExcErr Status = C.RWF_WC_RNR_RETRY_EXC_ERR
	WCFatalErr       Status = C.RWF_WC_FATAL_ERR
)

// These are the access rights of memory regions.
const (
	AccessLocalWrite  Access = C.RWF_ACCESS_LOCAL_WRITE
	AccessRemoteWrite Access = C.RWF_ACCESS_REMOTE_WRITE
)

// AccessForPeer returns an access right that restricts a region to the peers of queue pairs created for this peer.
func AccessForPeer(peer int) Access { return Access(peer) << C.RWF_ACCESS_PEER_SHIFT }

// These are the flags of devices.
const (
	DevByReference  DevFlags = C.RWF_DEV_BY_REFERENCE
	DevCopiesAtPost DevFlags = C.RWF_DEV_COPIES_AT_POST
	DevAnyMemory    DevFlags = C.RWF_DEV_ANY_MEMORY
	DevLink         DevFlags = C.RWF_DEV_LINK
	DevMaps         DevFlags = C.RWF_DEV_MAPS
)

// These are the states of queue pairs.
const (
	StateRTS QPState = C.RWF_QPS_RTS
	StateErr QPState = C.RWF_QPS_ERR
)

// These are the types of asynchronous events.
const (
	EventQPEstablished EventType = C.RWF_EVENT_QP_ESTABLISHED
	EventQPFatal       EventType = C.RWF_EVENT_QP_FATAL
	EventCQErr         EventType = C.RWF_EVENT_CQ_ERR
	EventPortActive    EventType = C.RWF_EVENT_PORT_ACTIVE
	EventPortErr       EventType = C.RWF_EVENT_PORT_ERR
	EventDeviceFatal   EventType = C.RWF_EVENT_DEVICE_FATAL
)

func (s Status) String() string { return C.GoString(C.rwf_wc_status_str(C.int(s))) }

func (s QPState) String() string { return C.GoString(C.rwf_qp_state_str(C.int(s))) }

func (t EventType) String() string { return C.GoString(C.rwf_async_type_str(C.uint32_t(t))) }
