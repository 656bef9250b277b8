"""Follows exchanges that wait in MXNet's engine: bounds their time, and gives those that fail their reason."""

from __future__ import annotations

import atexit
import errno
import threading
import time
from typing import TYPE_CHECKING, List, Tuple

from ..errors import NonFiniteError, WaitTimeoutError

if TYPE_CHECKING:
    from .._session import Session
    from ._engine import Store

_EVERY = 0.1  # seconds
_REASON_WAIT = 0.5  # how long a failure of the data path waits for the control plane to say what is behind it

_open: List[Tuple["Session", "Store"]] = []


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
    code, text = store.failure()
    if code == -errno.EDOM and session.error is None:
        name = session.names[store.nonfinite()[1]]
        session.fail(NonFiniteError(f"the gradient of key {name} at rank {session.rank} holds NaN or infinity"))
    if text:
        until = time.monotonic() + _REASON_WAIT
        while session.error is None and time.monotonic() < until:
            time.sleep(0.01)
        store.fail(str(session.error or text))


def settle(session: "Session", store: "Store") -> None:
    """Waits until every exchange is done, by its deadline or by the session's failure, and follows no more."""
    pair = (session, store)
    if pair in _open:
        _open.remove(pair)
    waited = 0.0
    while store.pending() > 0:
        time.sleep(min(waited, _EVERY))
        waited += 0.001
        _look(session, store)


@atexit.register
def _settle_all() -> None:
    """Settles before MXNet and the sessions end: MXNet's end waits for all that is in its engine."""
    for session, store in list(_open):
        settle(session, store)
