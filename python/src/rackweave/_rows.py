"""Operations on rows of sparse tensors, whose first dimension numbers the rows.

    session = rackweave.init().session(mode="eager", optimizer="sgd_torch")
    (table,) = session.register([rackweave.Tensor("table", (100000, 64), sparse=True)])
    rackweave.rows.push(session, table, ids, gradients).wait()   # at every rank, with its own ids, ascending
    rackweave.rows.pull(session, table, ids, parameters).wait()
"""

from __future__ import annotations

import array
import ctypes
import dataclasses
import reprlib
from typing import Any, Optional, Sequence

from . import _lib
from ._buffers import TYPES, Buffer, as_buffer, as_int64
from ._tensors import Handle, Op
from .errors import TensorError

_NOTHING = (ctypes.c_int64 * 1)()  # where no ids lie, because with ids at 0 an operation is on all rows


class Union:
    """The numbers of the rows that a push_pull has written: the rows that any rank pushed. One operation at a time may use it."""

    def __init__(self, session: Any, tensor: int) -> None:
        declared = session._declaration(tensor)
        if not declared.sparse:
            raise TensorError(f"tensor {declared.name!r} is dense, and has no union of rows: register it with sparse=True")
        self._ids = (ctypes.c_int64 * declared.shape[0])()
        self._n = ctypes.c_uint64()

    def __len__(self) -> int:
        return int(self._n.value)

    @property
    def ids(self) -> memoryview:
        """The numbers of the rows, ascending, once the operation is done. The next operation changes them."""
        return memoryview(self._ids).cast("B").cast("q")[: len(self)]


def as_ids(ids: Any, name: str = "") -> Buffer:
    """Returns the memory of numbers of rows: not a copy, except of a list, tuple or range.

    Takes int64 arrays of what offers DLPack, __array_interface__ or the buffer protocol, or a Buffer of i64.
    """
    label = f"ids of tensor {name!r}" if name else "ids"
    if isinstance(ids, (list, tuple, range)):
        try:
            ids = array.array("q", ids)
        except (TypeError, OverflowError) as e:
            raise TensorError(f"{label} are {reprlib.repr(ids)}: {e}: use whole numbers of rows") from None
    b = as_int64(ids, label)
    return b if b.elems else Buffer(ctypes.addressof(_NOTHING), (0,), b.dtype, b.writable, b.owner)


def push(
    session: Any, tensor: int, ids: Any, rows: Any, priority: int = 0, hyper: Optional[Sequence[float]] = None
) -> Handle:
    """Starts to send a gradient of some rows of a sparse tensor. Every rank calls it, also with no ids if it touches no rows.

    Args:
        session: where the tensor is registered.
        tensor: its number, from register.
        ids: int64 numbers of rows from 0, strictly ascending.
        rows: len(ids) rows in the tensor's memory type, in the order of ids. The memory is in use until the handle is done.
        priority: higher goes first.
        hyper: 8 hyper-parameters in the places of a control record, that hold from this push on; None: as they are.

    Raises:
        TensorError: rows has another number of bytes, or ids or rows another type.
        NativeError: the tensor is dense, or an id is out of range or out of order.
    """
    return _start(session, Op(_lib.PUSH, tensor, priority=priority, hyper=hyper), ids, rows)


def push_pull(
    session: Any,
    tensor: int,
    ids: Any,
    rows: Any,
    dst: Any,
    union: Optional[Union] = None,
    priority: int = 0,
    hyper: Optional[Sequence[float]] = None,
) -> Handle:
    """Starts push, and gets every row that any rank pushes: its sum or its parameters, by the session's mode.

    Other arguments and errors are those of push.

    Args:
        dst: the whole tensor, in which these rows are written at their places, and no others. It may be rows if
            these are all rows; otherwise they have no memory in common.
        union: gets the numbers of these rows; None: nothing does.
    """
    op = Op(_lib.PUSHPULL, tensor, priority=priority, hyper=hyper)
    return _start(session, op, ids, rows, session._buffer(tensor, dst), union)


def pull(session: Any, tensor: int, ids: Any, dst: Any, priority: int = 0) -> Handle:
    """Starts to get the parameters of some rows of a sparse tensor.

    Other arguments and errors are those of push.

    Args:
        ids: int64 numbers of rows from 0, in any order, repeated or not; at most as many as the tensor has rows.
        dst: gets len(ids) rows in the tensor's memory type, in the order of ids.
    """
    return _start(session, Op(_lib.PULL, tensor, priority=priority), ids, dst)


def sum_rows(ids: Any, rows: Any, width: int) -> int:
    """Sorts rows by id, and sums rows of the same id in their order, because push takes each row once.

    Args:
        ids: int64 numbers of rows from 0. Changed in place.
        rows: len(ids) rows of width elements. Changed in place; each sum is rounded to their type.
        width: elements of a row.

    Returns:
        The number of ids that are left, which are in front, as are their rows.
    """
    if isinstance(ids, (list, tuple, range)):
        raise TensorError(f"ids are a {type(ids).__name__}, which is not sorted in place: give an array of int64")
    if not isinstance(width, int) or width < 1:
        raise TensorError(f"rows of width {width!r}: give their number of elements, a whole number from 1 on")
    numbers, b = as_ids(ids), as_buffer(rows, "rows")
    for what, given in (("ids", numbers), ("rows", b)):
        if not given.writable:
            raise TensorError(f"{what} are read-only, and are changed in place: give a copy that can be written")
    if b.elems != numbers.elems * width:
        raise TensorError(f"rows have {b.elems} elements and ids {numbers.elems} rows of {width}: give {numbers.elems * width}")
    call = _lib.library().rw_sum_rows
    return _lib.check("sum rows", call(numbers.address, numbers.elems, b.address, width, TYPES[b.dtype][1]))


def _start(
    session: Any, op: Op, ids: Any, rows: Any, dst: Optional[Buffer] = None, union: Optional[Union] = None
) -> Handle:
    """Starts an operation on rows. A pull writes the packed rows, other operations read them. A push_pull writes dst."""
    t = session._declaration(op.tensor)
    numbers, packed = as_ids(ids, t.name), as_buffer(rows, t.name)
    want = numbers.elems * t.width * TYPES[t.memory][0]
    if t.width and packed.nbytes != want:
        raise TensorError(f"tensor {t.name!r}: {numbers.elems} rows have {want} bytes as registered and {packed.nbytes} here")
    src, dst = (0, packed) if op.kind == _lib.PULL else (packed.address, dst)
    if dst is not None and not dst.writable:
        raise TensorError(f"tensor {t.name!r} is read-only: give a destination that can be written")
    places = 0, 0
    if union is not None:
        if len(union._ids) < t.shape[0]:
            raise TensorError(
                f"tensor {t.name!r} has {t.shape[0]} rows, and the union room for {len(union._ids)}: use its own Union"
            )
        union._n.value = 0
        places = ctypes.addressof(union._ids), ctypes.addressof(union._n)
    op = dataclasses.replace(op, src=src, dst=0 if dst is None else dst.address, owner=(numbers, packed, dst, union))
    return session.submit([dataclasses.replace(op, ids=numbers.address, nids=numbers.elems, union=places[0], nunion=places[1])])
