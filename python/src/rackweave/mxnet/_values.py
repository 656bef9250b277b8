"""The keys and arrays that a kvstore is given, and the checks that refuse some."""

from __future__ import annotations

from typing import Any, Iterable, List, Tuple

import mxnet as mx
import numpy as np

from ..errors import ConfigError, TensorError

TYPES = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16"}


class WrongKeyError(ConfigError, mx.MXNetError):
    """A key cannot be used so. It is an MXNetError, too, as MXNet's own stores raise."""


class WrongArrayError(TensorError, mx.MXNetError):
    """An array cannot be used so. It is an MXNetError, too, as MXNet's own stores raise."""


def pairs(key: Any, *arrays: Any) -> Iterable[Tuple[Any, ...]]:
    """Yields each key with its lists of arrays, one for each device."""
    if not isinstance(key, (list, tuple)):
        if not isinstance(key, (str, int)) or any(isinstance(a, (list, tuple)) and not a for a in arrays):
            raise ConfigError(f"key {key!r} with {arrays}: use a string or a number, and an NDArray for each device")
        yield (key, *(a if isinstance(a, (list, tuple)) else [a] for a in arrays))
        return
    lists: List[List[Any]] = []
    for a in arrays:
        if len(a) % max(len(key), 1):
            raise ConfigError(f"{len(a)} arrays for {len(key)} keys: give one for each key, or a list for each")
        lists.append([x if isinstance(x, (list, tuple)) else [x] for x in a])
    yield from zip(key, *lists)


def spread(result: Any, arrays: Iterable[Any]) -> None:
    """Copies a result to the arrays that it is for, of either storage."""
    for array in arrays:
        if array is result:
            continue
        if result.stype == array.stype:
            result.copyto(array)
        elif array.stype == "default":
            result.tostype("default").copyto(array)
        else:
            whole(result).copyto(array)


def whole(array: Any) -> Any:
    """Returns a row_sparse array with all rows of a dense one, also zeros."""
    return of_rows(array.shape, np.arange(array.shape[0]), array.asnumpy())


def of_rows(shape: Tuple[int, ...], ids: np.ndarray, rows: np.ndarray) -> Any:
    """Returns a row_sparse array of rows and their numbers."""
    if len(ids) == 0:
        return mx.nd.sparse.zeros("row_sparse", shape, dtype=rows.dtype)
    data = rows.reshape(len(ids), *shape[1:])
    return mx.nd.sparse.row_sparse_array((data, ids), shape=shape, ctx=mx.cpu(), dtype=rows.dtype)


def on_host(array: Any) -> bool:
    """Reports whether an array lies in this host's memory."""
    return array.context.device_type != "gpu"


def check(key: Any, array: Any) -> None:
    """Refuses what cannot be exchanged."""
    if not isinstance(array, mx.nd.NDArray):
        raise TypeError(f"key {key!r}: a value of type {type(array).__name__}: use an NDArray")
    if array.stype not in ("default", "row_sparse"):
        raise WrongArrayError(f"key {key!r}: {array.stype} arrays are not supported: use dense or row_sparse ones")
    if np.dtype(array.dtype) not in TYPES:
        raise WrongArrayError(f"key {key!r}: arrays of {np.dtype(array.dtype)} are not supported: use float32 or float16")


def fits(entry: Any, array: Any) -> None:
    """Refuses an array of another shape or type than the key was declared with."""
    if array.shape != entry.shape or np.dtype(array.dtype) != entry.dtype:
        raise WrongArrayError(
            f"key {entry.key!r} was given as {entry.dtype} of shape {entry.shape}, "
            f"and now as {np.dtype(array.dtype)} of shape {array.shape}"
        )
