"""The native library (include/rackweave.h) through ctypes: structs, prototypes, and errors as exceptions."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, List, Optional, Tuple

from .errors import Error, ForkedError, LibraryError

SONAME = "librackweave.so.0"
ABI_MAJOR = 3

EFORKED, EABORTED, ETRANSPORT, EPROTOCOL = -1001, -1002, -1003, -1004
PUSH, PUSHPULL, PULL, BROADCAST = 0, 1, 2, 3
HYPERS = 8
ENDPOINT_BYTES = 256


class _Sized(ctypes.Structure):
    """A struct that begins with its size."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(size=ctypes.sizeof(type(self)), **fields)


class Config(_Sized):
    _fields_ = [
        ("size", c_uint32),
        ("rank", c_uint32),
        ("provider", c_char_p),
        ("devices", POINTER(c_char_p)),
        ("options", c_char_p),
        ("lane_nics", POINTER(c_uint32)),
        ("ndevices", c_uint32),
        ("nlanes", c_uint32),
        ("chunk_bytes", c_uint32),
        ("window", c_uint32),
        ("send_depth", c_uint32),
        ("recv_depth", c_uint32),
        ("local_workers", c_uint32),
        ("spin", c_uint32),
        ("cache_bytes", c_uint64),
        ("by_reference", c_uint8),
        ("live_hyper", c_uint8),
        ("steps", c_uint8),
        ("answers", c_uint8),
        ("reserved", c_uint8 * 4),
        ("record", c_float * HYPERS),
    ]


class Endpoint(_Sized):
    _fields_ = [
        ("size", c_uint32),
        ("length", c_uint32),
        ("bytes", c_uint8 * ENDPOINT_BYTES),
        ("addr", c_uint64),
        ("rkey", c_uint32),
        ("staging", c_uint32),
    ]


class Connect(_Sized):
    _fields_ = [
        ("size", c_uint32),
        ("timeout_ms", c_uint32),
        ("ack_timeout_ms", c_uint32),
        ("reserved", c_uint32),
    ]


class Tensor(_Sized):
    _fields_ = [
        ("size", c_uint32),
        ("wire_type", c_uint8),
        ("memory_type", c_uint8),
        ("reserved", c_uint8 * 2),
        ("elems", c_uint64),
        ("width", c_uint32),
        ("reserved2", c_uint32),
    ]


class Codec(_Sized):
    _fields_ = [
        ("size", c_uint32),
        ("id", c_uint8),
        ("stochastic", c_uint8),
        ("as_is", c_uint8),
        ("reserved", c_uint8),
        ("param", c_double),
    ]


class Op(_Sized):
    _fields_ = [
        ("size", c_uint32),
        ("tensor", c_uint32),
        ("src", c_void_p),
        ("dst", c_void_p),
        ("hyper", POINTER(c_float)),
        ("priority", c_int32),
        ("kind", c_uint8),
        ("reserved", c_uint8 * 3),
        ("done", c_void_p),
        ("done_arg", c_void_p),
        ("ids", c_void_p),
        ("nids", c_uint64),
        ("union_ids", c_void_p),
        ("nunion", c_void_p),
    ]


class Step(_Sized):
    _fields_ = [
        ("size", c_uint32),
        ("lr", c_float),
        ("wd", c_float),
        ("scale", c_float),
        ("clip", c_float),
        ("skip", c_uint8),
        ("skip_non_finite", c_uint8),
        ("reserved", c_uint8 * 2),
    ]


class Stats(_Sized):
    _fields_ = [
        ("size", c_uint32),
        ("reserved", c_uint32),
        ("sent_bytes", c_uint64),
        ("received_bytes", c_uint64),
        ("sent_chunks", c_uint64),
        ("received_chunks", c_uint64),
        ("copied_bytes", c_uint64),
        ("doorbells", c_uint64),
        ("nacks", c_uint64),
        ("sleeps", c_uint64),
        ("sent_raw_bytes", c_uint64),
        ("received_raw_bytes", c_uint64),
        ("residual", c_double),
    ]

    def counts(self) -> Dict[str, int]:
        """Returns what only grows."""
        return {name: getattr(self, name) for name, kind in self._fields_[2:] if kind is c_uint64}


class Traced(ctypes.Structure):
    _fields_ = [("began", c_uint64), ("ended", c_uint64), ("tensor", c_uint32), ("kind", c_uint32)]


class Arenas(_Sized):
    _fields_ = [
        ("size", c_uint32),
        ("blocks", c_uint32),
        ("mapped_bytes", c_uint64),
        ("allocated_bytes", c_uint64),
        ("adopted_bytes", c_uint64),
    ]


_session = c_void_p
_PROTOTYPES = {
    "rw_error": (c_char_p, []),
    "rw_open": (c_int, [POINTER(Config), POINTER(_session)]),
    "rw_close": (c_int, [_session]),
    "rw_endpoint": (c_int, [_session, c_uint32, POINTER(Endpoint)]),
    "rw_connect": (c_int, [_session, POINTER(Endpoint), c_uint32, POINTER(Connect)]),
    "rw_add": (c_int, [_session, POINTER(Tensor), c_uint32, POINTER(c_uint32), c_uint64]),
    "rw_compress": (c_int, [_session, c_uint32, POINTER(Codec)]),
    "rw_compress_from": (c_int, [_session, c_uint32, POINTER(Codec), c_uint32]),
    "rw_flush": (c_int, [_session]),
    "rw_residual": (c_int, [_session, c_uint32, c_void_p, c_int]),
    "rw_submit": (c_int, [_session, POINTER(Op), c_uint32, POINTER(c_uint64)]),
    "rw_sum_rows": (c_int64, [c_void_p, c_uint64, c_void_p, c_uint32, c_int]),
    "rw_test": (c_int, [_session, c_uint64]),
    "rw_wait_any": (c_int, [_session, POINTER(c_uint64), c_uint32, c_uint32, POINTER(c_int)]),
    "rw_wait_all": (c_int, [_session, POINTER(c_uint64), c_uint32, c_uint32]),
    "rw_commit": (c_int, [_session, POINTER(Step), POINTER(c_uint64)]),
    "rw_committed": (c_int, [_session, POINTER(c_float), POINTER(c_float)]),
    "rw_end_step": (c_int, [_session, POINTER(c_uint64)]),
    "rw_step_ended": (c_int, [_session, POINTER(c_uint32), POINTER(c_int)]),
    "rw_abort": (None, [_session, c_char_p]),
    "rw_failure": (c_int, [_session, c_char_p, c_uint32]),
    "rw_stats": (c_int, [_session, POINTER(Stats)]),
    "rw_trace": (c_int, [_session, c_uint32]),
    "rw_traced": (c_int, [_session, c_uint32, POINTER(Traced), c_uint32]),
    "rw_alloc": (c_int, [c_size_t, POINTER(c_void_p)]),
    "rw_free": (c_int, [c_void_p]),
    "rw_in_arena": (c_int, [c_void_p, c_size_t]),
    "rw_adopt": (c_int, [c_void_p]),
    "rw_disown": (c_int, [c_void_p]),
    "rw_arenas": (c_int, [POINTER(Arenas)]),
}

_library: Optional[ctypes.CDLL] = None


def library() -> ctypes.CDLL:
    """Returns the native library; the first call loads it."""
    global _library
    if _library is None:
        _library = _load()
    return _library


def _load() -> ctypes.CDLL:
    tried = []
    for path in _candidates():
        try:
            lib = ctypes.CDLL(path)
            break
        except OSError as e:
            tried.append(str(e))
    else:
        raise LibraryError(
            f"cannot load {SONAME} ({'; '.join(tried)}): build it with 'make lib' and set RACKWEAVE_LIBRARY to its path"
        )
    try:
        lib.rw_abi_version.restype = c_uint32
        lib.rw_abi_version.argtypes = []
        version = lib.rw_abi_version()
        if version >> 16 != ABI_MAJOR:
            raise LibraryError(
                f"{path} has version {version >> 16}.{version & 0xffff} of the C interface and this package needs {ABI_MAJOR}: "
                "install package and library of the same release"
            )
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as e:
        raise LibraryError(f"{path} is no library of this release ({e}): install package and library of the same release") from None
    return lib


def _candidates() -> List[str]:
    """Lists where the library may lie: the named file alone, else the package's own, else the system's."""
    named = os.environ.get("RACKWEAVE_LIBRARY")
    if named:
        return [named]
    return [os.path.join(os.path.dirname(os.path.abspath(__file__)), "_native", SONAME), SONAME]


class NativeError(Error):
    """A call of the native library failed.

    Attributes:
        code: the negative errno, or one of EFORKED, EABORTED, ETRANSPORT, EPROTOCOL.
    """

    def __init__(self, what: str, code: int) -> None:
        text = (library().rw_error() or b"").decode(errors="replace")
        super().__init__(f"{what}: {text or os.strerror(-code) if -1000 < code < 0 else text or f'error {code}'}")
        self.code = code

    def __reduce__(self) -> Any:
        return _again, (str(self), self.code)


def _again(text: str, code: int) -> NativeError:
    """Returns the error that was copied or pickled: the library may have another text by now."""
    error = NativeError.__new__(NativeError)
    error.args, error.code = (text,), code
    return error


def check(what: str, code: int) -> int:
    """Returns a call's result, or raises what it failed with."""
    if code == EFORKED:
        raise ForkedError(
            f"{what}: this process is a forked child of the one that joined the job: call rackweave.init() in it to join anew"
        )
    if code < 0:
        raise NativeError(what, code)
    return code


def arena_alloc(nbytes: int) -> int:
    """Allocates arena memory, aligned to 64, and returns its address."""
    address = c_void_p()
    check(f"allocate {nbytes} bytes of arena memory", library().rw_alloc(nbytes, ctypes.byref(address)))
    assert address.value is not None
    return address.value


def arena_free(address: int) -> None:
    """Gives memory of arena_alloc back."""
    library().rw_free(address)


def in_arena(address: int, nbytes: int) -> bool:
    """Tells whether a piece of memory lies in one arena block."""
    return library().rw_in_arena(address, nbytes) == 1


def arenas() -> Tuple[int, int]:
    """Returns the bytes that are allocated and adopted."""
    a = Arenas()
    check("arenas", library().rw_arenas(ctypes.byref(a)))
    return a.allocated_bytes, a.adopted_bytes
