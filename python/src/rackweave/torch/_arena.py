"""Tensors in memory that the aggregator reaches without a copy."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Dict, Iterator

import torch

from .. import _lib
from .._world import alloc
from ..errors import TensorError

# The types that can be exchanged, by their names in a session.
TYPES: Dict[torch.dtype, str] = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def type_of(tensor: torch.Tensor, name: str) -> str:
    """Returns the session's name for a tensor's type."""
    dtype = TYPES.get(tensor.dtype)
    if dtype is None:
        raise TensorError(f"tensor {name!r} is of type {tensor.dtype}: use float32, bfloat16 or float16")
    return dtype


def is_dense(tensor: torch.Tensor) -> bool:
    """Tells whether the elements fill one piece of memory, in any order of dimensions."""
    expect = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape) if n > 1):
        if stride != expect:
            return False
        expect *= size
    return tensor.layout == torch.strided


def empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """Returns an uninitialised tensor in the arena, of the same shape and type, and where it is dense of the same strides.

    It has a storage of its own, so that saving it writes no more than itself.
    """
    n = tensor.numel()
    if n == 0:
        return torch.empty_like(tensor, device="cpu")
    flat = torch.frombuffer(alloc(n * tensor.element_size()), dtype=tensor.dtype)
    return torch.as_strided(flat, tensor.shape, tensor.stride()) if is_dense(tensor) else flat.view(tensor.shape)


def holds(tensor: torch.Tensor) -> bool:
    """Tells whether a tensor lies in the arena."""
    return tensor.device.type == "cpu" and _lib.in_arena(tensor.data_ptr(), tensor.numel() * tensor.element_size())


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_WORTHWHILE = 64 << 10  # bytes from which memory is adopted; less is quick to copy
_MOST_THRESHOLD = 32 << 20  # where glibc's own adjustment of the threshold ends
_MOST_PLUGS = 64


@contextlib.contextmanager
def _mapped() -> Iterator[None]:
    """Makes glibc map large blocks meanwhile that its heap has no room for.

    By itself glibc does so from the size of the largest block on that was freed. Setting the threshold ends that, so it is left
    where it would have ended up.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield  # another C library
        return
    mallopt(_M_MMAP_THRESHOLD, _WORTHWHILE)
    try:
        yield
    finally:
        mallopt(_M_MMAP_THRESHOLD, _MOST_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, 2 * _MOST_THRESHOLD)


def _adopt(tensor: torch.Tensor) -> bool:
    return _lib.library().rw_adopt(tensor.data_ptr()) == 0


def _move_to_own_pages(tensor: torch.Tensor) -> None:
    """Moves a storage, for all tensors that share it, to a block that glibc mapped: by resizing it while the heap has no room."""
    storage = tensor.storage()
    more = storage.size() + 64 // tensor.element_size()
    with _mapped():
        plugs = []
        for _ in range(_MOST_PLUGS):
            block = torch.empty(more, dtype=tensor.dtype)
            if _adopt(block):
                _lib.library().rw_disown(block.data_ptr())
                del block
                storage.resize_(more)
                return
            plugs.append(block)


class Adopted:
    """Memory of torch's own that was turned into arena memory at its place; it is kept alive until it is let go."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Adopts the storage of a tensor that fills it, if that can be; else the tensor goes on being copied."""
        self._adopted = False
        if tensor.storage_offset() == 0 and tensor.numel() * tensor.element_size() >= _WORTHWHILE and not holds(tensor):
            self._adopted = _adopt(tensor)
            if not self._adopted:
                _move_to_own_pages(tensor)
                self._adopted = _adopt(tensor)
        self.tensor, self.address = tensor, tensor.data_ptr()

    def __del__(self) -> None:
        if self._adopted:
            _lib.library().rw_disown(self.address)
