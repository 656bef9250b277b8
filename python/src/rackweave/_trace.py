"""A timeline of a worker: RACKWEAVE_TRACE names a directory, and each worker writes rank-N.json there for Perfetto or Chrome.

The file grows while the worker runs, each second, and is whole at any time.

A tensor's exchange is a line from when it was submitted until its result was there. Spans are what the worker did meanwhile. All
times are those of the host's monotonic clock, so the files of one host's workers fit together.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import threading
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence

from . import _lib

_MOST = 1 << 17  # operations of a session, and spans
_PAGE = 1 << 10  # operations that are read at once
_EVERY = 1.0  # seconds
_BEGIN, _END = '{"traceEvents": [\n', b"\n]}\n"
_KINDS = ("push", "pushpull", "pull", "broadcast")

_events: List[Dict[str, Any]] = []
_followed: Dict[int, "_Followed"] = {}
_writer: Optional[threading.Thread] = None
_began = False  # the file is there
_broken = False  # it cannot be written, which was said
_spans = 0
_lock = threading.Lock()
_writing = threading.Lock()  # comes before _lock
_pid = os.getpid()


def enabled() -> bool:
    """Tells whether this process leaves a timeline."""
    return bool(os.environ.get("RACKWEAVE_TRACE")) and os.getpid() == _pid and not _broken


@contextlib.contextmanager
def timed(name: str, rank: int) -> Iterator[None]:
    """Notes what the body takes as a span."""
    began = time.monotonic_ns()
    try:
        yield
    finally:
        span(name, rank, began)


def span(name: str, rank: int, began: int) -> None:
    """Notes what began at a time of time.monotonic_ns and ends now."""
    global _spans
    if not enabled():
        return
    with _lock:
        _spans += 1
        if _spans <= _MOST:
            _events.append(_event(name, "X", rank, began, dur=(time.monotonic_ns() - began) / 1000))


class _Followed:
    """A session whose operations are noted, how many of them were read, and which of these had not ended."""

    def __init__(self, native: ctypes.c_void_p, job: str, rank: int, names: Sequence[str]) -> None:
        self._native, self._job, self._rank, self._names = native, job, rank, names
        self._read = 0
        self._under_way: List[int] = []

    def collect(self) -> None:
        """Takes the operations that have ended since."""
        self._under_way = [i for i in self._under_way if not self._take(i, self._noted(i, 1)[0])]
        while True:
            page = self._noted(self._read, _PAGE)
            self._under_way += [i for i, op in enumerate(page, self._read) if not self._take(i, op)]
            self._read += len(page)
            if len(page) < _PAGE:
                return

    def _noted(self, first: int, most: int) -> Sequence[Any]:
        noted = (_lib.Traced * most)()
        return noted[: _lib.check("trace", _lib.library().rw_traced(self._native, first, noted, most))]

    def _take(self, number: int, op: Any) -> bool:
        if op.ended:
            same = {"cat": f"{self._job} {_KINDS[op.kind]}", "id": f"{self._job}/{number}"}
            name = f"{_KINDS[op.kind]} {self._names[op.tensor]}"
            _events.append(_event(name, "b", self._rank, op.began, **same))
            _events.append(_event(name, "e", self._rank, op.ended, **same))
        return bool(op.ended)


def follow(native: ctypes.c_void_p, job: str, rank: int, names: Sequence[str]) -> None:
    """Notes the operations of a session from now on; names are those of its tensors, as they become known."""
    global _writer
    if not enabled():
        return
    _lib.check("trace", _lib.library().rw_trace(native, _MOST))
    with _lock:
        _followed[native.value or 0] = _Followed(native, job, rank, names)
        if _writer is None:
            _writer = threading.Thread(target=_write_on, args=(rank,), name="rackweave-trace", daemon=True)
            _writer.start()


def collect(native: ctypes.c_void_p) -> None:
    """Takes what a session's operations left, before it is closed."""
    with _lock:
        followed = _followed.pop(native.value or 0, None)
        if followed is not None and enabled():
            followed.collect()


def _write_on(rank: int) -> None:
    while True:
        time.sleep(_EVERY)
        write(rank)


def write(rank: int) -> None:
    """Adds to the file what has happened since it was written last."""
    global _began, _broken
    directory = os.environ.get("RACKWEAVE_TRACE", "")
    if not enabled():
        return
    with _writing:
        with _lock:
            for followed in _followed.values():
                followed.collect()
            events = _events[:]
            _events.clear()
        if not _began:
            events.insert(0, {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}})
        if not events:
            return
        text = ",\n".join(map(json.dumps, events))
        try:
            os.makedirs(directory, exist_ok=True)
            with open(os.path.join(directory, f"rank-{rank}.json"), "r+b" if _began else "wb") as f:
                if _began:
                    f.seek(-len(_END), os.SEEK_END)
                f.write(((",\n" if _began else _BEGIN) + text).encode() + _END)
            _began = True
        except OSError as e:
            _broken = True
            print(f"rackweave: RACKWEAVE_TRACE: {e}: name a directory that can be written", file=sys.stderr)


def _event(name: str, phase: str, rank: int, at: int, **more: Any) -> Dict[str, Any]:
    return {"name": name, "ph": phase, "pid": rank, "tid": rank, "ts": at / 1000, **more}
