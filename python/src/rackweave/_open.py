"""The sessions that this process has open, and those that are being closed because nobody refers to them."""

from __future__ import annotations

import collections
import os
import threading
import time
import weakref
from typing import Any, Callable, Deque, List, Mapping

from .errors import Error

CLOSE_TIMEOUT = 5.0
_MOST_CLOSING = 64

sessions: "weakref.WeakSet[Any]" = weakref.WeakSet()
ended: "collections.Counter[str]" = collections.Counter()  # what sessions that are closed have moved
_counting = threading.Lock()
_closing: Deque[threading.Thread] = collections.deque(maxlen=_MOST_CLOSING)


def open_sessions() -> List[Any]:
    """Lists the sessions that this process has open."""
    return list(sessions)


def count(moved: Mapping[str, int]) -> None:
    """Adds what a session that closes has moved to what ended ones have."""
    with _counting:
        ended.update(moved)


def weakly(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a function that calls a method as long as its object lives: a watch must not keep its session alive."""
    weak = weakref.WeakMethod(method)

    def call(argument: Any) -> Any:
        bound = weak()
        return None if bound is None else bound(argument)

    return call


def close_dropped(close: Callable[[], None]) -> None:
    """Calls what closes a session in a thread of its own, because the collector, which calls this, must not wait."""
    thread = threading.Thread(target=close, name="rackweave-close", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # Python, which ends, starts none
        return
    _closing.append(thread)


def await_dropped() -> None:
    """Waits a while until dropped sessions have left their jobs."""
    until = time.monotonic() + CLOSE_TIMEOUT
    while _closing:
        _closing.popleft().join(max(0.0, until - time.monotonic()))


def _after_fork() -> None:
    global _counting
    _counting = threading.Lock()  # another thread may have held the parent's
    _closing.clear()
    for session in list(sessions):
        session._forked()
    sessions.clear()
    ended.clear()


os.register_at_fork(after_in_child=_after_fork)
