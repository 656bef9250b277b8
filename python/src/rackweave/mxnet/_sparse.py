"""Keys whose values or gradients are row_sparse: gradients send their rows alone, and a pull gets the rows that it lists.

If the aggregator updates a key that was given as row_sparse, it alone has the value. Any other key's value is here, too, and each
push brings the rows that some worker has touched: of the sum, or of the updated value, which changes until it is pulled.
"""

from __future__ import annotations

import ctypes
from typing import Any, Sequence, Tuple

import mxnet as mx
import numpy as np

from .. import _buffers, _rows
from ..errors import NonFiniteError
from . import _engine
from ._optimizers import by_storage
from ._values import TYPES, WrongArrayError, WrongKeyError, check, fits, of_rows, on_host, whole


def rows_of(values: Sequence[Any]) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the sum of this worker's devices: the numbers of its rows, ascending, and the rows. Waits for what computes them."""
    ids, rows = [], []
    for value in values:
        dense = value.stype == "default"
        ids.append(np.arange(value.shape[0]) if dense else value.indices.asnumpy().astype(np.int64, copy=False))
        rows.append((value if dense else value.data).asnumpy().reshape(len(ids[-1]), _width(value)))
    every, all_rows = (np.concatenate(ids), np.concatenate(rows)) if len(values) > 1 else (ids[0], rows[0])
    if len(every) > 1 and not (every[1:] > every[:-1]).all():
        left = _rows.sum_rows(every, all_rows, _width(values[0]))
        every, all_rows = every[:left], all_rows[:left]
    return every, all_rows


def _width(array: Any) -> int:
    return int(np.prod(array.shape[1:]))


def push(store: Any, entry: Any, values: Sequence[Any], priority: int) -> None:
    """Sums rows over all workers into the key's value, or updates it by the sum."""
    for value in values:
        check(entry.key, value)
        fits(entry, value)
    if entry.value is None and not entry.alone and store._updater is not None:
        raise WrongKeyError(f"key {entry.key!r} has no value: call init or broadcast with it first")
    session = store._opened()
    ids, rows = rows_of(values)
    _watch(store, entry, rows)
    entry.settle()
    hyper = store._hyper(entry) if store._rule is not None else None
    if entry.alone:
        entry.pushed = _rows.push(session, entry.tensor, ids, rows, priority, hyper)
        return
    if entry.union is None:
        entry.union = _rows.Union(session, entry.tensor)
    if store._rule is not None:
        target = entry.value if on_host(entry.value) else store._merged(entry)
        if store._lazy[entry.stype] and store.in_step:  # the rows that workers touch are all that change
            entry.pushed = _rows.push_pull(session, entry.tensor, ids, rows, _memory(target), entry.union, priority, hyper)
        else:
            _rows.push(session, entry.tensor, ids, rows, priority, hyper).wait()
            entry.pushed = session.pull(entry.tensor, _memory(target))
        if target is not entry.value:
            entry.settle()
            target.copyto(entry.value)
        return
    target = store._merged(entry)  # for rows of the sum
    _rows.push_pull(session, entry.tensor, ids, rows, _memory(target), entry.union, priority).wait()
    touched = np.array(entry.union.ids, np.int64)
    result = of_rows(entry.shape, touched, _view(target)[touched])
    if store._updater is None:
        entry.value = result
        return
    if entry.stype != "default" and entry.value.stype == "default" and by_storage(store._optimizer()):
        entry.value = whole(entry.value)
    store._update(entry, result)


def _watch(store: Any, entry: Any, rows: np.ndarray) -> None:
    """Counts or refuses a gradient with NaN or infinity, as exchanges in the engine do."""
    if store._nonfinite == _engine.IGNORE or np.isfinite(rows).all():
        return
    store._nonfinite_rows += 1
    if store._nonfinite == _engine.REFUSE:
        session = store._opened()
        key = session.names[entry.tensor]
        session.fail(NonFiniteError(f"the gradient of key {key} at rank {session.rank} holds NaN or infinity"))
        session.check()


def fetch(store: Any, entry: Any) -> Any:
    """Returns the key's whole value, from the aggregator if that alone has it."""
    entry.settle()
    if not entry.alone:
        return entry.value
    target = mx.nd.empty(entry.shape, dtype=entry.dtype)
    store._opened().pull(entry.tensor, _memory(target)).wait()
    return target


def pull_rows(store: Any, entry: Any, outs: Sequence[Any], row_ids: Sequence[Any]) -> None:
    """Gives row_sparse arrays those rows of the key's value whose numbers row_ids lists, in any order, of any type."""
    if len(row_ids) not in (1, len(outs)):
        raise WrongArrayError(
            f"key {entry.key!r}: {len(row_ids)} lists of row ids for {len(outs)} arrays: give one for each, or one"
        )
    for given in row_ids:
        if not isinstance(given, mx.nd.NDArray):
            raise WrongArrayError(f"key {entry.key!r}: row_ids holds {type(given).__name__}: give NDArrays of rows' numbers")
    entry.settle()
    for i, out in enumerate(outs):
        if not isinstance(out, mx.nd.sparse.RowSparseNDArray):
            raise WrongArrayError(
                f"key {entry.key!r}: row_sparse_pull fills row_sparse arrays, and out holds {type(out).__name__}: use pull"
            )
        if out.shape != entry.shape:
            raise WrongArrayError(f"key {entry.key!r} has shape {entry.shape}, and the array for its rows {out.shape}")
        if i == 0 or len(row_ids) > 1:
            given = row_ids[i].asnumpy() if row_ids[i].size else np.empty(0)
            bad = given[~((given >= 0) & (given < entry.shape[0]) & (given == np.floor(given)))]  # NaN is not in any range
            if len(bad):
                raise WrongArrayError(f"key {entry.key!r} has {entry.shape[0]} rows, and row {bad[0]} is asked for")
            ids = np.unique(given.astype(np.int64))
            rows = _rows_at(store, entry, ids)
        of_rows(entry.shape, ids, rows.astype(out.dtype, copy=False)).copyto(out)


def _rows_at(store: Any, entry: Any, ids: np.ndarray) -> np.ndarray:
    rows = np.empty((len(ids), _width(entry)), entry.dtype)
    if len(ids) == 0:
        return rows
    if entry.alone:
        _rows.pull(store._opened(), entry.tensor, ids, rows).wait()
        return rows
    if entry.value.stype == "default":
        return mx.nd.take(entry.value, mx.nd.array(ids, dtype=np.int64, ctx=entry.value.context)).asnumpy()
    kept = mx.nd.sparse.retain(entry.value, mx.nd.array(ids, dtype=np.int64, ctx=entry.value.context))
    rows[:] = 0
    rows[np.searchsorted(ids, kept.indices.asnumpy())] = kept.data.asnumpy().reshape(-1, rows.shape[1])
    return rows


def _memory(array: Any) -> _buffers.Buffer:
    """Returns the memory of a dense array, after all pending reads and writes of it."""
    return _buffers.Buffer(_engine.data(array), array.shape, TYPES[np.dtype(array.dtype)], True, array)


def _view(array: Any) -> np.ndarray:
    """Returns the rows of a dense array, without a copy."""
    dtype = np.dtype(array.dtype)
    memory = (ctypes.c_uint8 * (array.size * dtype.itemsize)).from_address(_engine.data(array))
    return np.frombuffer(memory, dtype).reshape(array.shape[0], -1)
