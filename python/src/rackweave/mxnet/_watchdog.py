"""Bounds how long an exchange may wait in MXNet's engine, where nobody else looks at the clock."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Tuple

from ..errors import WaitTimeoutError

if TYPE_CHECKING:
    from .._session import Session
    from ._engine import Store

_EVERY = 0.2  # seconds


def follow(session: "Session", store: "Store") -> None:
    """Fails the session when an exchange of the store's waits for longer than the session's timeout."""
    threading.Thread(target=_follow, args=(weakref.ref(session), weakref.ref(store)), name="rackweave-mxnet", daemon=True).start()


def _follow(session_of: Any, store_of: Any) -> None:
    while True:
        time.sleep(_EVERY)
        session, store = session_of(), store_of()
        if session is None or store is None or not store.handle or session.error is not None:
            return
        limit = session.settings.timeout
        age, tensor = store.oldest()
        if age > limit:
            session.fail(WaitTimeoutError(f"no answer within {limit:g} s for key {session.names[tensor]}{session.awaited()}"))
        del session, store


def settle(session: "Session", store: "Store") -> None:
    """Waits until every exchange is done, by its deadline or by the session's failure."""
    while store.pending() > 0:
        time.sleep(0.001)
