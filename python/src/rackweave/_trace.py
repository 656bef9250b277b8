"""A timeline of a worker: RACKWEAVE_TRACE names a directory, and each worker leaves rank-N.json there for Perfetto or Chrome.

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
from typing import Any, Dict, Iterator, List, Sequence

from . import _lib

_MOST = 1 << 17  # operations of a session, and spans
_KINDS = ("push", "pushpull", "pull", "broadcast")

_events: List[Dict[str, Any]] = []
_spans = 0
_lock = threading.Lock()
_pid = os.getpid()


def enabled() -> bool:
    """Tells whether this process leaves a timeline."""
    return bool(os.environ.get("RACKWEAVE_TRACE")) and os.getpid() == _pid


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


def follow(native: ctypes.c_void_p) -> None:
    """Notes the operations of a session from now on."""
    if enabled():
        _lib.check("trace", _lib.library().rw_trace(native, _MOST))


def collect(native: ctypes.c_void_p, job: str, rank: int, names: Sequence[str]) -> None:
    """Takes what a session's operations left, before it is closed."""
    if not enabled():
        return
    noted = (_lib.Traced * _MOST)()
    n = _lib.check("trace", _lib.library().rw_traced(native, 0, noted, _MOST))
    with _lock:
        for i in range(n):
            op = noted[i]
            if op.ended:
                same = {"cat": f"{job} {_KINDS[op.kind]}", "id": f"{job}/{i}"}
                name = f"{_KINDS[op.kind]} {names[op.tensor]}"
                _events.append(_event(name, "b", rank, op.began, **same))
                _events.append(_event(name, "e", rank, op.ended, **same))


def write(rank: int) -> None:
    """Leaves the timeline so far."""
    directory = os.environ.get("RACKWEAVE_TRACE", "")
    if not enabled():
        return
    with _lock:
        events = [{"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}}, *_events]
    try:
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, f"rank-{rank}.json"), "w", encoding="utf-8") as f:
            json.dump({"traceEvents": events}, f)
    except OSError as e:
        print(f"rackweave: RACKWEAVE_TRACE: {e}: name a directory that can be written", file=sys.stderr)


def _event(name: str, phase: str, rank: int, at: int, **more: Any) -> Dict[str, Any]:
    return {"name": name, "ph": phase, "pid": rank, "tid": rank, "ts": at / 1000, **more}
