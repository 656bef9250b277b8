"""Follows exchanges that wait in MXNet's engine: bounds their time, and fails the session when one fails."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, List, Tuple

from ..errors import WaitTimeoutError

if TYPE_CHECKING:
    from .._session import Session
    from ._engine import Store

_EVERY = 0.1  # seconds

_open: List[Tuple["Session", "Store"]] = []


def warn(error: Exception) -> None:
    """Says that exchanges failed where nobody is left to raise it to."""
    print(f"rackweave: exchanges failed, and their results must not be used: {error}", file=sys.stderr)


def follow(session: "Session", store: "Store") -> None:
    """Follows a store's exchanges until settle."""
    pair = (session, store)
    _open.append(pair)
    threading.Thread(target=_follow, args=(pair,), name="rackweave-mxnet", daemon=True).start()


def _follow(pair: Tuple["Session", "Store"]) -> None:
    while pair in _open:
        time.sleep(_EVERY)
        if pair in _open:
            _look(*pair)


def _look(session: "Session", store: "Store") -> None:
    limit = session.settings.timeout
    age, tensor = store.oldest()
    if age > limit and session.error is None:
        session.fail(WaitTimeoutError(f"no answer within {limit:g} s for key {session.names[tensor]}{session.awaited()}"))
    store.failure()


def settle(session: "Session", store: "Store") -> None:
    """Waits until every exchange is done, by its deadline or by the session's failure, and follows no more."""
    waited = 0.0
    while store.pending() > 0:
        time.sleep(min(waited, _EVERY))
        waited += 0.001
        _look(session, store)
    with contextlib.suppress(ValueError):  # at the process's end another thread may settle the same
        _open.remove((session, store))


os.register_at_fork(after_in_child=_open.clear)  # the exchanges are the parent's


@atexit.register
def _settle_all() -> None:
    """Settles before MXNet and the sessions end: MXNet's end waits for all that is in its engine."""
    for session, store in list(_open):
        settle(session, store)
        error = store.failure()
        if error is not None and not store.told:
            store.told = True
            warn(error)
