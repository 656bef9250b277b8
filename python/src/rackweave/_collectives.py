"""Objects, and arrays of any type, over all workers: what Horovod and torch.distributed have beside sums of gradients.

Everything travels as bytes. The aggregator sums f32, in which 16 bits are exact, so each rank writes its bytes where all others
write zeros, and the sum is what all have written. Reductions are then made by each rank itself in rank order, with the same bits at
all. It takes each byte to the aggregator as two, and each rank's result to every rank: for metrics, objects and small arrays.
Gradients belong to push_pull.
"""

from __future__ import annotations

import array
import contextlib
import copy
import hashlib
import os
import pickle
import re
import sys
import threading
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, TypeVar

from . import _world
from .errors import ConfigError, Error, RefusedError, TensorError

Sum, Average, Min, Max = "sum", "average", "min", "max"

MOST_BYTES = 256 << 20  # of a call, over all ranks
_ROUND = 1 << 15  # elements of an exchange, of 2 bytes each
_TEXT = 256  # bytes by which a rank describes its call
_HEAD = 4 + hashlib.sha256().digest_size // 4 // 2  # digits of a length, and of a shortened digest
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")

_OWN_TENSOR = re.compile(r"tensor '?rackweave\.\w+'?")
_NO_BATCH = object()
_T = TypeVar("_T")

_one_at_a_time = threading.Lock()


def broadcast_object(obj: Any = None, root_rank: int = 0) -> Any:
    """Returns the object of rank root_rank, pickled, at every rank. Others' objects are not looked at."""
    w = _world.world()
    with taking_part(w):
        if not 0 <= root_rank < w.world_size:
            raise ConfigError(f"root_rank {root_rank}: use a rank from 0 to {w.world_size - 1}")
        data = _pickled(obj) if w.rank == root_rank else b""
    return pickle.loads(gather(w, f"broadcast_object from rank {root_rank}", data)[root_rank])


def allgather_object(obj: Any) -> List[Any]:
    """Returns the objects of all ranks, pickled, by rank."""
    w = _world.world()
    with taking_part(w):
        data = _pickled(obj)
    return [pickle.loads(data) for data in gather(w, "allgather_object", data)]


def join(batches: Iterable[_T]) -> Iterator[_T]:
    """Yields this rank's batches as long as every rank has one: all make the same number of steps, of data that is not even.

    What the others have beyond the shortest is left out. It asks the others before each batch.
    """
    w, mine = _world.world(), iter(batches)
    while True:
        with taking_part(w):
            batch = next(mine, _NO_BATCH)
        if any(gather(w, "join", b"." if batch is _NO_BATCH else b"")):
            return
        yield batch  # type: ignore[misc]


def allgather(value: Any) -> Any:
    """Returns the ranks' arrays one after the other, along the first dimension, in which alone they may differ. Needs numpy.

    A torch tensor gives a torch tensor, anything else a numpy array, of the same type.
    """
    import numpy as np

    w = _world.world()
    with taking_part(w):
        own = np.asarray(_host(value))
        if own.ndim == 0:
            raise TensorError("allgather of a scalar: use allgather_object, or an array with a dimension")
        rest, data = own.shape[1:], _bytes(own)
    parts = gather(w, f"allgather of {own.dtype} in rows of shape {rest}", data)
    return _like(value, np.concatenate([np.frombuffer(part, own.dtype).reshape(-1, *rest) for part in parts]))


def allreduce(value: Any, op: str = Average) -> Any:
    """Returns the sum, average, minimum or maximum over all ranks of a number or an array of any real type. Needs numpy.

    Ranks are added in their order, so that all get the same bits. An average of integers is a float64, and truth values count as
    integers; else the type stays. A number gives a number, a torch tensor a torch tensor, anything else a numpy array. The value
    itself stays as it is.
    """
    import numpy as np

    w = _world.world()
    with taking_part(w):
        if op not in (Sum, Average, Min, Max):
            raise ConfigError(f"op {op!r}: use rackweave.Sum, Average, Min or Max")
        own = np.asarray(_host(value))
        if own.dtype.kind == "b":
            own = own.astype(np.int64)  # a sum counts
        if own.dtype.kind not in "iuf":
            raise TensorError(f"allreduce of type {own.dtype}: use numbers, or gather objects by allgather_object")
    parts = [
        np.frombuffer(part, own.dtype).reshape(own.shape)
        for part in gather(w, f"allreduce ({op}) of {own.dtype} of shape {own.shape}", _bytes(own))
    ]
    whole = op == Average and own.dtype.kind in "iu"
    result = parts[0].astype(np.float64) if whole else parts[0].copy()
    for part in parts[1:]:
        result = {Min: np.minimum, Max: np.maximum}.get(op, np.add)(result, part)
    if op == Average:
        result = (result / w.world_size).astype(result.dtype)
    return result.item() if isinstance(value, (bool, int, float)) else _like(value, np.asarray(result))


def average_metrics(metrics: Mapping[str, float]) -> Dict[str, float]:
    """Returns the averages over all ranks of numbers by name, in float64. All ranks give the same names."""
    w, own = _world.world(), array.array("d")
    with taking_part(w):
        if not isinstance(metrics, Mapping):
            raise ConfigError(f"metrics are of type {type(metrics).__name__}: give numbers by name, such as {{'loss': loss}}")
        names = sorted(metrics)
        for name in names:
            try:
                own.append(float(metrics[name]))
            except (TypeError, ValueError):
                text = f"average_metrics: metric {name!r} is {metrics[name]!r}: give a number, or use allreduce for arrays"
                raise TensorError(text) from None
    parts = [array.array("d", part) for part in gather(w, f"average_metrics of {', '.join(names)}", own.tobytes())]
    return {name: sum(part[i] for part in parts) / w.world_size for i, name in enumerate(names)}


def local_rank() -> int:
    """Returns this worker's number among those on its host, as its launcher says."""
    return _from_launcher("local rank", _LOCAL_RANK)


def local_size() -> int:
    """Returns how many workers there are on this host, as the launcher says."""
    return _from_launcher("number of workers on this host", _LOCAL_SIZE)


def _from_launcher(what: str, names: Sequence[str]) -> int:
    for name in names:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    raise ConfigError(f"this worker's {what} is unknown: start it with 'rackweave run', torchrun or mpirun, or set {names[0]}")


def _host(value: Any) -> Any:
    """Returns what numpy takes of a value."""
    if hasattr(value, "detach"):  # torch's
        try:
            return value.detach().cpu().numpy()
        except TypeError:
            raise TensorError(f"a tensor of type {value.dtype}, which numpy has not: use value.float()") from None
    return value.asnumpy() if hasattr(value, "asnumpy") else value  # MXNet's


def _bytes(own: Any) -> bytes:
    if own.dtype.hasobject:
        raise TensorError(f"an array of type {own.dtype}: use numbers, or allgather_object")
    return bytes(own.tobytes())


def _like(value: Any, result: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return torch.from_numpy(result).to(value.device)
    return result


def _pickled(obj: Any) -> bytes:
    try:
        return pickle.dumps(obj)
    except Exception as e:  # whatever the object's own methods raise
        raise TensorError(f"an object of type {type(obj).__name__} that does not pickle: {e}: give what pickle.dumps takes") from e


@contextlib.contextmanager
def taking_part(w: _world.World) -> Iterator[None]:
    """Tells the other ranks of an error of the body, which comes before gather: they would wait for this rank's call."""
    try:
        yield
    except Exception as e:
        with contextlib.suppress(Error):
            gather(w, f"what fails there: {e}", b"")
        raise


def gather(w: _world.World, what: str, data: bytes) -> List[bytes]:
    """Returns the bytes of all ranks, by rank. Ranks that do not do the same learn so, all of them."""
    try:
        return _gather(w, what, data)
    except Error as e:
        text = _OWN_TENSOR.sub(lambda _: what, str(e))
        named = copy.copy(e)  # the session keeps the other for later calls
        named.args = (text if what in text else f"{what}: {text}",)
        raise named from None


def _gather(w: _world.World, what: str, data: bytes) -> List[bytes]:
    with _one_at_a_time:
        digest = hashlib.sha256(what.encode()).digest()[: 2 * (_HEAD - 4)]
        heads = _exchange(w, "heads", w.world_size * _HEAD, w.rank * _HEAD, len(data).to_bytes(8, "little") + digest)
        lengths, digests = [], []
        for rank in range(w.world_size):
            head = heads[2 * _HEAD * rank : 2 * _HEAD * (rank + 1)]
            lengths.append(int.from_bytes(head[:8], "little"))
            digests.append(head[8:])
        if len(set(digests)) > 1:
            own = what.encode()[:_TEXT].ljust(_TEXT, b" ")
            texts = _exchange(w, "texts", w.world_size * _TEXT // 2, w.rank * _TEXT // 2, own)
            said = [texts[_TEXT * r : _TEXT * (r + 1)].decode(errors="replace").strip() for r in range(w.world_size)]
            other = next(r for r in range(w.world_size) if digests[r] != digests[0])
            raise RefusedError(
                f"rank 0 called {said[0]}, and rank {other} {said[other]}: all ranks make the same calls in one order"
            )
        total = sum(lengths)
        if total > MOST_BYTES:
            raise RefusedError(f"{what}: {total} bytes over all ranks, of which {MOST_BYTES} may be: send less at once")
        first = sum(lengths[: w.rank])
        out = bytearray()
        for at in range(0, total, 2 * _ROUND):
            begin, end = max(first, at), min(first + len(data), at + 2 * _ROUND)
            piece = bytes(begin - at) + data[begin - first : end - first] if begin < end else b""
            out += _exchange(w, "bytes", _ROUND, 0, piece)
        ends = [sum(lengths[: r + 1]) for r in range(w.world_size)]
        return [bytes(out[end - n : end]) for end, n in zip(ends, lengths)]


def _exchange(w: _world.World, name: str, elems: int, at: int, data: bytes) -> bytes:
    """Sums a tensor of digits that has data from one element on; returns all its bytes."""
    digits = array.array("H", data + bytes(len(data) % 2))
    if sys.byteorder == "big":
        digits.byteswap()
    values = array.array("f", bytes(4 * elems))
    values[at : at + len(digits)] = array.array("f", digits)
    name = f"rackweave.{name}"
    w.exchange(False).push_pull(w.number(name, values, False), values).wait()
    digits = array.array("H", [int(v) for v in values])
    if sys.byteorder == "big":
        digits.byteswap()
    return digits.tobytes()
