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
_MAPPED_FROM = 64 << 10  # bytes from which a block gets pages of its own; smaller ones are quick to copy
_MOST_THRESHOLD = 32 << 20  # where glibc's own adjustment of the threshold ends


@contextlib.contextmanager
def adoptable() -> Iterator[None]:
    """Makes glibc give large blocks pages of their own meanwhile, so that they can be adopted.

    By itself glibc does so up to the size of the largest block that was freed. Setting the threshold ends that, so it is left where
    it would have ended up.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield  # another C library: blocks are copied
        return
    mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM)
    try:
        yield
    finally:
        mallopt(_M_MMAP_THRESHOLD, _MOST_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, 2 * _MOST_THRESHOLD)


class Adopted:
    """Memory of torch's own that was turned into arena memory at its place; it is kept alive until it is let go."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Adopts the block that begins where the tensor does, if it can be; else the tensor goes on being copied."""
        self.tensor = tensor
        self.address = tensor.data_ptr()
        self._adopted = tensor.storage_offset() == 0 and not holds(tensor) and _lib.library().rw_adopt(self.address) == 0

    def __del__(self) -> None:
        if self._adopted:
            _lib.library().rw_disown(self.address)
