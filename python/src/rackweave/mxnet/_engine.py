"""The C side: exchanges as operations of MXNet's engine, and NDArrays over arena memory (include/rackweave_mxnet.h)."""

from __future__ import annotations

import ctypes
import errno
import threading
import time
from typing import TYPE_CHECKING, Any, Iterable, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.base import _LIB as _libmxnet, check_call

from .. import _lib
from ..errors import Error, JobFailedError, NonFiniteError

if TYPE_CHECKING:
    from .._session import Session

_REASON_WAIT = 0.5  # seconds that a failure of the data path waits for the control plane to say what is behind it
_REORDER = "_ZN5mxnet7NDArray5Chunk15Reorder2DefaultEv"

IGNORE, COUNT, REFUSE = range(3)  # enum rw_mx_nonfinite

# DLPack's code and bits of the types that can be exchanged.
_DLPACK = {np.dtype(np.float32): (2, 32), np.dtype(np.float16): (2, 16)}


class _Functions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("push_async", ctypes.c_void_p),
        ("copy_handle", ctypes.c_void_p),
        ("free_handle", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("plain_layout", ctypes.c_void_p),
    ]


class _Exchange(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("tensor", ctypes.c_uint32),
        ("kind", ctypes.c_uint8),
        ("nonfinite", ctypes.c_uint8),
        ("elem_bytes", ctypes.c_uint8),
        ("reserved", ctypes.c_uint8),
        ("priority", ctypes.c_int32),
        ("elems", ctypes.c_uint64),
        ("src", ctypes.c_void_p),
        ("dst", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
        ("hyper", ctypes.POINTER(ctypes.c_float)),
    ]


class _State(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("failed", ctypes.c_int32),
        ("pending", ctypes.c_uint64),
        ("oldest_ms", ctypes.c_uint64),
        ("nonfinite", ctypes.c_uint64),
        ("oldest_tensor", ctypes.c_uint32),
        ("nonfinite_tensor", ctypes.c_uint32),
        ("text", ctypes.c_char * 600),
    ]


def _address(library: Any, name: str) -> int:
    """Returns where a function or a variable of a library lies; 0 where it has none."""
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    except AttributeError:
        return 0


def _functions() -> _Functions:
    names = ("MXEnginePushAsyncND", "MXShallowCopyNDArray", "MXNDArrayFree", "MXNDArrayGetData", _REORDER)
    return _Functions(ctypes.sizeof(_Functions), 0, *(_address(_libmxnet, name) for name in names))


def _declare() -> Any:
    library = _lib.library()
    pointer, u8, u32 = ctypes.c_void_p, ctypes.c_uint8, ctypes.c_uint32
    shape = ctypes.POINTER(ctypes.c_int64)
    for name, result, arguments in (
        ("rw_mx_open", ctypes.c_int, [pointer, ctypes.POINTER(_Functions), ctypes.POINTER(pointer)]),
        ("rw_mx_close", None, [pointer]),
        ("rw_mx_start", ctypes.c_int, [pointer, ctypes.POINTER(_Exchange)]),
        ("rw_mx_end_step", ctypes.c_int, [pointer, ctypes.POINTER(pointer), u32]),
        ("rw_mx_query", ctypes.c_int, [pointer, ctypes.POINTER(_State)]),
        ("rw_mx_tensor", ctypes.c_int, [shape, ctypes.c_int32, u8, u8, ctypes.POINTER(pointer)]),
        ("rw_in_arena", ctypes.c_int, [pointer, ctypes.c_size_t]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_rw = _declare()
_engine = _functions()


class Exchange:
    """The exchanges of one tensor: what stays the same from step to step is filled in once."""

    __slots__ = ("_fields", "_hyper", "_order", "_reference")

    def __init__(self, tensor: int, elems: int, elem_bytes: int, nonfinite: int) -> None:
        self._hyper = (ctypes.c_float * _lib.HYPERS)()
        self._order = mx.nd.zeros((1,))
        self._fields = _Exchange(
            ctypes.sizeof(_Exchange),
            tensor,
            elems=elems,
            elem_bytes=elem_bytes,
            nonfinite=nonfinite,
            order=self._order.handle,
        )
        self._reference = ctypes.byref(self._fields)

    @property
    def hyper(self) -> Sequence[float]:
        """What the last exchange told the aggregator."""
        return list(self._hyper)

    @property
    def order(self) -> ctypes.c_void_p:
        """The handle of the array that puts the exchanges in order."""
        return self._order.handle

    def wait(self) -> None:
        """Waits until every exchange that was started is done."""
        self._order.wait_to_read()

    def start(
        self,
        store: "Store",
        kind: int,
        src: Optional[mx.nd.NDArray],
        dst: Optional[mx.nd.NDArray],
        priority: int = 0,
        hyper: Optional[Sequence[float]] = None,
    ) -> None:
        """Queues an exchange in MXNet's engine and returns at once. Raises what made an earlier one fail."""
        f = self._fields
        f.kind, f.priority = kind, priority
        f.src = src.handle if src is not None else None
        f.dst = dst.handle if dst is not None else None
        if hyper is None:
            f.hyper = None
        else:
            self._hyper[:] = hyper
            f.hyper = self._hyper
        if _rw.rw_mx_start(store.handle, self._reference):
            store.check()
            raise Error("MXNet's engine does not take an exchange: is this process shutting down?")


class Store:
    """The exchanges of one session."""

    def __init__(self, session: "Session") -> None:
        self.handle = ctypes.c_void_p()
        self._session = session
        self.told = False  # the training script has got the failure
        self._lock = threading.Lock()  # of handle, for those who only look: another thread may close the store
        code = _rw.rw_mx_open(session.native, ctypes.byref(_engine), ctypes.byref(self.handle))
        if code == -errno.EINVAL:
            raise Error(f"MXNet {mx.__version__} lacks a function of its C interface: use MXNet 1.9.1")
        if code:
            raise _lib.NativeError("exchanges in MXNet's engine", code)

    def close(self) -> None:
        """Frees the store; nothing may be in flight."""
        with self._lock:
            handle, self.handle = self.handle, ctypes.c_void_p()
            if handle:
                _rw.rw_mx_close(handle)

    def _state(self) -> _State:
        """Returns the state of the store; all is 0 once it is closed."""
        state = _State(ctypes.sizeof(_State))
        with self._lock:
            if self.handle:
                _rw.rw_mx_query(self.handle, ctypes.byref(state))
        return state

    def end_step(self, exchanges: Iterable[Exchange]) -> None:
        """Queues the end of this worker's step in mode stream, behind all exchanges and before those that are started later."""
        orders = [e.order for e in exchanges]
        if _rw.rw_mx_end_step(self.handle, (ctypes.c_void_p * len(orders))(*orders), len(orders)):
            self.check()
            raise Error("MXNet's engine does not take the end of a step: is this process shutting down?")

    def pending(self) -> int:
        """Returns how many exchanges were queued and are not done."""
        return self._state().pending

    def oldest(self) -> Tuple[float, int]:
        """Returns for how many seconds the oldest exchange has waited for the aggregator, and its tensor; 0 s if none does."""
        state = self._state()
        return state.oldest_ms / 1000, state.oldest_tensor

    def nonfinite(self) -> Tuple[int, int]:
        """Returns how many gradients held NaN or infinity, and the tensor of the first."""
        state = self._state()
        return state.nonfinite, state.nonfinite_tensor

    def check(self) -> None:
        """Raises what made an exchange fail, if one has failed."""
        error = self.failure()
        if error is not None:
            self.told = True
            raise error

    def failure(self) -> Optional[Error]:
        """Returns what made an exchange fail: what the control plane says, if it does in time. The session fails by it."""
        state = self._state()
        if not state.failed:
            return None
        session = self._session
        if state.failed == -errno.EDOM and session.error is None:
            name = session.names[state.nonfinite_tensor]
            session.fail(NonFiniteError(f"the gradient of key {name} at rank {session.rank} holds NaN or infinity"))
        until = time.monotonic() + _REASON_WAIT
        while session.error is None and time.monotonic() < until:
            time.sleep(0.01)
        if session.error is None:
            session.fail(JobFailedError(state.text.decode(errors="replace")))
        return session.error


def allocate(shape: Sequence[int], dtype: Any) -> Optional[mx.nd.NDArray]:
    """Returns an NDArray over arena memory, its content undefined, or None: the type cannot be exchanged or there is no memory."""
    dlpack = _DLPACK.get(np.dtype(dtype))
    if dlpack is None or not shape or 0 in shape:
        return None
    managed, handle = ctypes.c_void_p(), ctypes.c_void_p()
    if _rw.rw_mx_tensor((ctypes.c_int64 * len(shape))(*shape), len(shape), *dlpack, ctypes.byref(managed)):
        return None
    check_call(_libmxnet.MXNDArrayFromDLPackEx(managed, ctypes.c_bool(True), ctypes.byref(handle)))
    return mx.nd.NDArray(handle)


def data(array: mx.nd.NDArray) -> int:
    """Returns where a dense array's elements lie, after all pending reads and writes of them."""
    check_call(_libmxnet.MXNDArrayWaitToWrite(array.handle))
    address = ctypes.c_void_p()
    check_call(_libmxnet.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    return address.value or 0


def in_arena(array: mx.nd.NDArray) -> bool:
    """Reports whether an array lies in arena memory. It waits for what writes the array."""
    if array.context != mx.cpu(0) or array.stype != "default":
        return False
    array.wait_to_read()
    data = ctypes.c_void_p()
    check_call(_libmxnet.MXNDArrayGetData(array.handle, ctypes.byref(data)))
    return bool(_rw.rw_in_arena(data, array.size * np.dtype(array.dtype).itemsize))
