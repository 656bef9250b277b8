"""Tensors of any framework as plain memory: DLPack, the array interface, or the buffer protocol."""

from __future__ import annotations

import ctypes
import dataclasses
import math
from typing import Any, Optional, Tuple

from .errors import TensorError

# The types that the aggregator sums, with their size and their number in the C interface.
TYPES = {"f32": (4, 1), "bf16": (2, 2), "f16": (2, 3)}
_SIZES = {"i64": 8, **{name: size for name, (size, _) in TYPES.items()}}

_FROM_DLPACK = {(2, 32): "f32", (2, 16): "f16", (4, 16): "bf16", (0, 64): "i64"}
_FROM_TYPESTR = {"<f4": "f32", "<f2": "f16", "<i8": "i64"}
_FROM_FORMAT = {"f": "f32", "e": "f16", "q": "i64", "l": "i64"}
_CPU_DEVICES = (1, 3)  # memory, and memory that CUDA pinned


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A dense tensor in this process's memory.

    Attributes:
        address: of the first element.
        shape: elements in each dimension; empty for a scalar.
        dtype: f32, bf16 or f16; i64 of numbers of rows.
        writable: whether results may be written here.
        owner: what keeps the memory alive.
    """

    address: int
    shape: Tuple[int, ...]
    dtype: str
    writable: bool
    owner: Any

    @property
    def elems(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.elems * _SIZES[self.dtype]


def as_buffer(tensor: Any, name: str = "") -> Buffer:
    """Returns the memory of a tensor without a copy.

    Takes what offers DLPack (torch, numpy, cupy, ...), __array_interface__ or the buffer protocol. The tensor must be dense,
    in row-major order, in this host's memory, of type float32, bfloat16 or float16.
    """
    label = f"tensor {name!r}" if name else f"a {type(tensor).__name__}"
    return tensor if isinstance(tensor, Buffer) else _memory(tensor, label)


def as_int64(numbers: Any, label: str) -> Buffer:
    """Returns the memory of int64 numbers without a copy, from the kinds of arrays that as_buffer takes."""
    given = isinstance(numbers, Buffer) and numbers.dtype == "i64"
    return numbers if given else _memory(numbers, label, ints=True)


def _memory(tensor: Any, label: str, ints: bool = False) -> Buffer:
    interface = getattr(tensor, "__array_interface__", None)
    if interface is not None:
        return _from_interface(tensor, interface, label, ints)
    if hasattr(tensor, "__dlpack__"):
        return _from_dlpack(tensor, label, ints)
    if hasattr(tensor, "__cuda_array_interface__"):
        raise TensorError(f"{label} lies in a GPU's memory: copy it to the host first, or use the shim of its framework")
    try:
        view = memoryview(tensor)
    except TypeError:
        if ints:
            shown = type(tensor).__name__
            raise TensorError(f"{label} is of type {shown}: use a list of whole numbers, or an int64 array") from None
        raise TensorError(
            f"{label} offers no memory: give an array with DLPack, __array_interface__ or the buffer protocol"
        ) from None
    return _from_memoryview(tensor, view, label, ints)


def _type(table: Any, key: Any, label: str, shown: str, ints: bool) -> str:
    dtype = table.get(key)
    if dtype is None or (dtype == "i64") != ints:
        use = "int64" if ints else "float32, bfloat16 or float16, or rackweave.allreduce for other types"
        raise TensorError(f"{label} is of type {shown}: use {use}")
    return str(dtype)


def _dense(shape: Tuple[int, ...], strides: Optional[Tuple[int, ...]], step: int, label: str) -> None:
    """Raises unless strides, in units of which step make an element, are those of a dense row-major tensor."""
    if strides is None:
        return
    expect = step
    for n, stride in zip(reversed(shape), reversed(strides)):
        if n > 1 and stride != expect:
            raise TensorError(f"{label} is not contiguous (shape {shape}, strides {strides}): pass a contiguous copy of it")
        expect *= n


def _from_interface(tensor: Any, interface: Any, label: str, ints: bool) -> Buffer:
    dtype = _type(_FROM_TYPESTR, interface["typestr"], label, interface["typestr"], ints)
    shape = tuple(interface["shape"])
    _dense(shape, interface.get("strides"), _SIZES[dtype], label)
    if interface.get("data") is None:
        raise TensorError(f"{label} has an array interface without an address: pass a plain array")
    address, read_only = interface["data"]
    return Buffer(address, shape, dtype, not read_only, tensor)


def _from_memoryview(tensor: Any, view: memoryview, label: str, ints: bool) -> Buffer:
    dtype = _type(_FROM_FORMAT, view.format.lstrip("@=<"), label, f"format {view.format!r}", ints)
    if not view.c_contiguous:
        raise TensorError(f"{label} is not contiguous (shape {view.shape}, strides {view.strides}): pass a contiguous copy of it")
    if view.readonly:
        raise TensorError(f"{label} is read-only: pass a bytearray, an array or a numpy array")
    address = ctypes.addressof(ctypes.c_char.from_buffer(view)) if view.nbytes else 0
    return Buffer(address, tuple(view.shape or ()), dtype, True, (tensor, view))


class _DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_READ_ONLY = 1  # flag of a versioned tensor

_capsule_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_valid.restype, _capsule_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _from_dlpack(tensor: Any, label: str, ints: bool) -> Buffer:
    try:
        device, _ = tensor.__dlpack_device__()
    except ValueError as e:
        raise TensorError(f"{label} lies on a device without DLPack ({e}): copy it to the host first") from None
    if device not in _CPU_DEVICES:
        raise TensorError(
            f"{label} lies on a device of DLPack type {device}: copy it to the host first, or use the shim of its framework"
        )
    detached = tensor.detach() if getattr(tensor, "requires_grad", False) else tensor
    try:
        try:
            capsule = detached.__dlpack__(max_version=(1, 1))
        except TypeError:
            capsule = detached.__dlpack__()
    except (BufferError, RuntimeError) as e:
        raise TensorError(f"{label} gives no DLPack capsule ({e}): pass a dense tensor") from None
    # The capsule is looked at and not taken: it is its producer's to free, and is kept with the buffer.
    if _capsule_valid(capsule, b"dltensor_versioned"):
        versioned = _DLVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        t, writable = versioned.tensor, not versioned.flags & _READ_ONLY
    elif _capsule_valid(capsule, b"dltensor"):
        t, writable = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor")), True
    else:
        raise TensorError(f"{label} gives a DLPack capsule of an unknown kind: pass an array of a framework of today")
    shown = str(getattr(tensor, "dtype", f"DLPack code {t.code}"))
    dtype = _type(_FROM_DLPACK, (t.code, t.bits) if t.lanes == 1 else None, label, shown, ints)
    shape = tuple(t.shape[i] for i in range(t.ndim))
    _dense(shape, tuple(t.strides[i] for i in range(t.ndim)) if t.strides else None, 1, label)
    return Buffer((t.data or 0) + t.byte_offset, shape, dtype, writable, (tensor, capsule))
