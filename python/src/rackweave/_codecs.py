"""The tensors of a session whose gradients are compressed, and what that leaves for later ones."""

from __future__ import annotations

import base64
import ctypes
import dataclasses
import weakref
from typing import Any, Dict, List, Mapping, Optional, Sequence

from . import _lib
from ._tensors import Tensor
from .errors import Error


def on_wire(compress: str, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Returns the tensors as they travel in a session: codecs shorten f32, and leave rows alone."""
    if compress == "none":
        return tensors
    return [
        dataclasses.replace(t, compress=False) if t.sparse else t if t.wire else dataclasses.replace(t, wire="f32") for t in tensors
    ]


class Codecs:
    """The codecs of a session's gradients."""

    def __init__(self, call: "weakref.WeakMethod[Any]", as_is: bool, tensors: List[Tensor]) -> None:
        """call refers to the session's method that calls the library. tensors is the session's list, which register extends.

        gradients describes the codec with which tensors begin; None: they have none, and never will.
        """
        self._call, self._as_is, self._tensors = call, as_is, tensors
        self.gradients: Optional[Mapping[str, Any]] = None

    def compress(self, first: int) -> None:
        """Gives the tensors from the first number on the session's codec."""
        if self.gradients is None:
            return
        native = self._native(self.gradients)
        for number, t in enumerate(self._tensors[first:], first):
            if t.compress:
                self._do("rw_compress", number, ctypes.byref(native))

    def change(self, announced: Dict[str, Any]) -> bool:
        """Makes tensors use the codecs that an aggregator announces; tells whether all will."""
        try:
            codecs = [self._native(c) for c in announced.get("codecs", [])]
            for number, place in enumerate(base64.b64decode(announced.get("places", ""))):
                first = announced.get("from", 0)
                if self._tensors[number].compress:
                    self._do("rw_compress_from", number, ctypes.byref(codecs[place]), first)
        except (Error, _lib.NativeError, IndexError):
            return False
        return True

    def residual(self, tensor: int) -> Any:
        """Returns what codecs have left of a tensor for its next gradients, for take; None if it has no codec."""
        t = self._tensors[tensor]
        if self.gradients is None or not t.compress:
            return None
        values = (ctypes.c_float * t.elems)()
        self._do("rw_residual", tensor, values, 0)
        return values

    def take(self, tensor: int, values: Optional[Any]) -> None:
        """Makes a residual of another session's the tensor's, if both compress it."""
        if values is not None and self.gradients is not None and self._tensors[tensor].compress:
            self._do("rw_residual", tensor, values, 1)

    def _do(self, function: str, tensor: int, *arguments: Any) -> None:
        call = self._call()
        if call is not None:
            call(f"tensor {self._tensors[tensor].name!r}", getattr(_lib.library(), function), tensor, *arguments)

    def _native(self, codec: Mapping[str, Any]) -> _lib.Codec:
        param = float(codec.get("param", 0))
        return _lib.Codec(id=codec.get("id", 0), stochastic=codec.get("stochastic", False), as_is=self._as_is, param=param)
