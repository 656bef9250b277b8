"""What aggregators are told when a worker leaves."""

from __future__ import annotations

import threading
import unittest
from typing import Any, Dict, List, Optional, Tuple
from unittest import mock

from rackweave._aggregators import Aggregators
from rackweave._settings import read
from rackweave.errors import Error, JobFailedError, ServerLostError, WaitTimeoutError


class Told:
    """Stands for the control plane of an aggregator."""

    def __init__(self, until: Optional[threading.Event] = None) -> None:
        """until: when it answers; None: at once."""
        self.calls: List[Tuple[str, Dict[str, Any]]] = []
        self.called, self._until = threading.Event(), until

    def call(self, method: str, request: Dict[str, Any], timeout: float, grace: float = 0) -> Dict[str, Any]:
        if self._until is not None and not self._until.wait(timeout):
            raise WaitTimeoutError("it is stopped")
        self.calls.append((method, request))
        self.called.set()
        return {}


def joined(*controls: Any) -> Aggregators:
    a = Aggregators(read({}, address="http://127.0.0.1:1", rank=0, world_size=1), lambda error: None, lambda codecs: False)
    a._all = list(controls)
    return a


class Leave(unittest.TestCase):
    def test_all_are_told_once_of_the_worker_that_an_aggregator_has_named(self):
        cases: List[Tuple[Optional[Error], Dict[str, Any]]] = [
            (None, {"failure": "why"}),
            (JobFailedError("it died", 3), {"failure": "why", "blame": 3}),
            (JobFailedError("nobody"), {"failure": "why", "blame": -1}),
            (ServerLostError("gone"), {"failure": "why", "blame": -1}),
        ]
        for heard, want in cases:
            all_of_them = [Told(), Told()]
            a = joined(*all_of_them)
            if heard is not None:
                a._failed(heard)
            a.leave(Error("why"))
            a.leave(Error("again"))
            for told in all_of_them:
                self.assertEqual(told.calls, [("Leave", want)], heard)

    def test_the_only_one_is_not_told_what_it_has_said(self):
        told = Told()
        a = joined(told)
        a._failed(JobFailedError("it died", 3))
        a.leave(Error("why"))
        self.assertEqual(told.calls, [])

    def test_one_that_is_stopped_keeps_nobody_waiting(self):
        other = Told()
        stopped = Told(other.called)
        joined(stopped, other).leave(Error("why"))
        self.assertEqual([len(stopped.calls), len(other.calls)], [1, 1])

    def test_all_are_told_where_python_starts_no_threads_any_more(self):
        all_of_them = [Told(), Told()]
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("at shutdown")):
            joined(*all_of_them).leave()
        for told in all_of_them:
            self.assertEqual(told.calls, [("Leave", {})])


if __name__ == "__main__":
    unittest.main()
