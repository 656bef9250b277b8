"""Gradients on a GPU, staged through pinned arena memory on a stream of their own. Not tested on hardware."""

from __future__ import annotations

from typing import Optional

import torch

from ..errors import Error
from . import _arena


class Stage:
    """The host's place for one tensor of a GPU."""

    def __init__(self, like: torch.Tensor) -> None:
        self._host = _arena.empty_like(like)
        size = self._host.numel() * self._host.element_size()
        # Pages that are pinned twice are an error of CUDA's, so an arena's block is pinned whole, once, and stays pinned.
        code = torch.cuda.cudart().cudaHostRegister(self._host.data_ptr(), size, 0)
        if int(code) not in (0, _ALREADY_REGISTERED):
            raise Error(f"cannot pin {size} bytes for transfers from a GPU: CUDA error {int(code)}")
        self._stream = torch.cuda.Stream(device=like.device)
        self._lifted = torch.cuda.Event()
        self._tensor: Optional[torch.Tensor] = None

    def lift(self, tensor: torch.Tensor) -> int:
        """Starts the copy to the host, behind what the current stream has yet to do; returns the host's address."""
        self._tensor = tensor
        self._stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(self._stream):
            self._host.copy_(tensor, non_blocking=True)
            self._lifted.record(self._stream)
        tensor.record_stream(self._stream)
        return self._host.data_ptr()

    def lifted(self) -> bool:
        """Tells whether the copy has arrived."""
        return self._lifted.query()

    def wait(self) -> None:
        """Waits for the copy."""
        self._lifted.synchronize()

    def land(self) -> None:
        """Starts the copy of the result back; the current stream waits for it, and not the host."""
        tensor = self._tensor
        assert tensor is not None
        with torch.cuda.stream(self._stream):
            tensor.copy_(self._host, non_blocking=True)
        torch.cuda.current_stream(tensor.device).wait_stream(self._stream)
        self._tensor = None


_ALREADY_REGISTERED = 712
