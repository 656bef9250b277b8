"""The tensors of a session whose gradients are compressed, and what that leaves for later ones."""

from __future__ import annotations

import base64
import ctypes
import dataclasses
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence

from . import _lib
from ._tensors import Tensor
from .errors import Error

if TYPE_CHECKING:
    from ._session import Session


def on_wire(session: "Session", tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Returns the tensors as they travel: codecs shorten f32, and leave rows alone."""
    if session.compress == "none":
        return tensors
    return [
        dataclasses.replace(t, compress=False) if t.sparse else t if t.wire else dataclasses.replace(t, wire="f32") for t in tensors
    ]


def compress(session: "Session", first: int, tensors: Sequence[Tensor]) -> None:
    """Gives new tensors, from the first number on, the session's codec for gradients."""
    codec = session._info.get("gradients")
    if codec is None:
        return
    native = _native(session, codec)
    for number, t in enumerate(tensors, first):
        if t.compress:
            session._native_call(f"tensor {t.name!r}", session._library.rw_compress, number, ctypes.byref(native))


def change(session: "Session", announced: Dict[str, Any]) -> bool:
    """Makes tensors use the codecs that an aggregator announces; tells whether all will."""
    try:
        codecs = [_native(session, c) for c in announced.get("codecs", [])]
        for number, place in enumerate(base64.b64decode(announced.get("places", ""))):
            if session._declared[number].compress:
                what, first = f"tensor {session.names[number]!r}", announced.get("from", 0)
                session._native_call(what, session._library.rw_compress_from, number, ctypes.byref(codecs[place]), first)
    except (Error, _lib.NativeError, IndexError):
        return False
    return True


def _native(session: "Session", codec: Dict[str, Any]) -> _lib.Codec:
    return _lib.Codec(
        id=codec.get("id", 0),
        stochastic=codec.get("stochastic", False),
        as_is=session._asked["as_is"],
        param=float(codec.get("param", 0)),
    )


def residual(session: "Session", tensor: int) -> Any:
    """Returns what codecs have left of a tensor for its next gradients, for take; None if it has no codec."""
    if not _has(session, tensor):
        return None
    values = (ctypes.c_float * session._elems[tensor])()
    session._native_call(f"tensor {session.names[tensor]!r}", session._library.rw_residual, tensor, values, 0)
    return values


def take(session: "Session", tensor: int, values: Optional[Any]) -> None:
    """Makes a residual of another session's the tensor's, if both compress it."""
    if values is not None and _has(session, tensor):
        session._native_call(f"tensor {session.names[tensor]!r}", session._library.rw_residual, tensor, values, 1)


def _has(session: "Session", tensor: int) -> bool:
    return "gradients" in session._info and session._declared[tensor].compress
