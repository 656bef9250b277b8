"""The aggregators that a worker has joined: one, or all that its job is spread over."""

from __future__ import annotations

import base64
import concurrent.futures
import threading
import urllib.parse
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ._control import Control, Watch
from ._settings import Settings
from .errors import Error, RefusedError, ServerLostError

_MISSED_HEARTBEATS = 10
_LEAVE_TIMEOUT = 5.0
_ACCEPT_WITHIN = 2.0
_FAIL_TIMEOUT = 2.0  # of a Leave with a reason, of which the aggregator only takes note; one that is stopped does not


class Aggregators:
    """Joins aggregators, and calls them. Where there are several, each has all workers and some of the lanes."""

    def __init__(self, settings: Settings, failed: Callable[[Error], None], change: Callable[[Dict[str, Any]], bool]) -> None:
        """failed is called, in threads of their own, when the job has ended at an aggregator, or one is lost.

        change is called likewise with codecs that an aggregator announces; it tells whether the worker will use them.
        """
        self._settings, self._on_failure, self._change = settings, failed, change
        self.timeout = settings.timeout  # of calls, in seconds
        self._all: List[Control] = []
        self._infos: List[Dict[str, Any]] = []
        self._watches: List[Watch] = []
        self._joining: Optional[Control] = None
        self._failure: Optional[Error] = None  # what an aggregator has said, or that one is lost
        self._leaving, self._left = threading.RLock(), False  # a signal's handler may leave while its thread does
        self.joined = False

    @property
    def first(self) -> Control:
        """The one that serves what concerns the job as a whole."""
        return self._all[0]

    @property
    def several(self) -> bool:
        """Whether the job is spread over several."""
        return len(self._all) > 1

    def join(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Joins the aggregator, or all that the job is spread over, in the order in which all workers do.

        Returns the first's answer, with the lanes of all.
        """
        s = self._settings
        request = {**request, "spreads": True}
        places = [(address, s.ca) for address in s.address.split(",")]
        if len(places) == 1:
            control = Control(*places[0], s.token, s.insecure)
            info = control.join(request, self.timeout)
            if not info.get("aggregators"):
                self._take(control, info)
                return self._whole()
            request["rack"] = info.get("rack", "")
            places = [(a["url"].rstrip("/"), a.get("ca") or s.ca) for a in info["aggregators"]]
        if s.provider == "auto" and len({urllib.parse.urlsplit(address).hostname for address, _ in places}) > 1:
            request["providers"] = [p for p in request["providers"] if p != "shm"]  # memory is shared with one host
        if len(places) > 1:
            request["parts"] = len(places)
        for part, (address, ca) in enumerate(places):
            control = Control(address, ca, s.token, s.insecure)
            try:
                info = self._join_one(control, {**request, "part": part})
                self._take(control, info)
            except Error as e:
                if self._failure is not None:
                    raise self._failure from None
                e.args = (f"aggregator {part + 1} of {len(places)} at {address}: {e}",)
                raise
            request.update(rank=info.get("rank", 0), provider=info["provider"])
        return self._whole()

    def _join_one(self, control: Control, request: Dict[str, Any]) -> Dict[str, Any]:
        self._joining = control  # a failure elsewhere ends the wait
        if self._failure is not None:
            raise self._failure
        try:
            return control.join(request, self.timeout)
        finally:
            self._joining = None

    def _take(self, control: Control, info: Dict[str, Any]) -> None:
        """Adds an aggregator that has this worker, and follows it."""
        control.session = info["session"]
        self._all.append(control)
        self._infos.append(info)
        patience = _MISSED_HEARTBEATS * info.get("heartbeatMs", 1000) / 1000
        self._watches.append(Watch(control, patience, self._failed, self._codecs(control)))
        for mine, its in zip(self._infos[0].get("terms", []), info.get("terms", [])):
            if mine != its:
                raise RefusedError(
                    f"it has {its}, the one at {self.first.address} has {mine}: "
                    "give all aggregators of a job the same cores, NICs, settings and version"
                )

    def _codecs(self, control: Control) -> Callable[[Dict[str, Any]], None]:
        def take(codecs: Dict[str, Any]) -> None:
            accepted = bool(self._change(codecs))
            if codecs.get("version"):
                try:
                    control.call("AcceptCodecs", {"version": codecs["version"], "accepted": accepted}, _ACCEPT_WITHIN, 0)
                except Error:
                    pass  # the aggregator withdraws them

        return take

    def _failed(self, error: Error) -> None:
        self._failure = self._failure or error
        joining = self._joining
        if joining is not None:
            joining.interrupt()
        self._on_failure(error)

    def _whole(self) -> Dict[str, Any]:
        self.joined = True
        info = dict(self._infos[0])
        info["lanes"] = [lane for i in self._infos for lane in i["lanes"]]
        return info

    def connect(self, ends: Sequence[Dict[str, Any]], request: Dict[str, Any]) -> List[Dict[str, Any]]:
        """Tells the aggregators this worker's ends of lanes, and returns theirs."""
        out: List[Dict[str, Any]] = []
        for control, info in zip(self._all, self._infos):
            own = ends[len(out) : len(out) + len(info["lanes"])]
            answer = control.call("Connect", {**request, "lanes": own}, self.timeout).get("lanes", [])
            if len(answer) != len(own):
                raise ServerLostError(
                    f"Connect: the aggregator at {control.address} answered for {len(answer)} lanes of {len(own)}: "
                    "use client and aggregator of one release"
                )
            out += answer
        return out

    def register(self, request: Dict[str, Any]) -> List[int]:
        """Declares tensors everywhere, and returns the lanes of their chunks."""
        answers = [control.call("Register", request, self.timeout) for control in self._all]
        for control, answer in zip(self._all, answers):
            if answer.get("planHash") != answers[0].get("planHash"):
                raise RefusedError(
                    f"register: the aggregators at {self.first.address} and {control.address} place the tensors differently: "
                    "they are of different versions"
                )
        return list(answers[0].get("chunkLanes", []))

    def status(self, name: str) -> List[Dict[str, Any]]:
        """Returns what the aggregators tell of the job, in its latest run."""
        out = []
        for control in self._all:
            jobs = control.call("Status", {}, 1.0).get("jobs", [])
            out += [job for job in jobs if job.get("name") == name][-1:]
        return out

    def awaited(self, name: str, rank: int) -> str:
        """Asks which ranks keep the job waiting, or which racks if the aggregator's own ranks do not."""
        try:
            jobs = self.status(name)
        except Error:
            return "; the aggregator does not answer either"
        members = [m for job in jobs for m in job.get("members", [])]
        late = {m.get("rank", 0) for m in members if int(m.get("awaitedChunks", 0)) > 0}
        late = late or {other for m in members if m.get("rank", 0) == rank for other in m.get("waitsFor", [])}
        if late:
            return f"; the aggregator waits for {listed('rank', [str(other) for other in sorted(late)])}"
        racks = [r for job in jobs for r in job.get("racks", []) if not r.get("own") and int(r.get("awaitedChunks", 0)) > 0]
        return f"; the aggregator waits for {listed('rack', [repr(r['name']) for r in racks])}" if racks else ""

    def save(self, request: Mapping[str, Any], timeout: float) -> str:
        """Saves the job's state, or each aggregator's part of it and then the manifest; returns the path at the first."""
        if not self.several:
            return str(self.first.call("Save", request, timeout).get("path", ""))
        try:
            replaces = self._manifest(request, timeout)
        except RefusedError as e:
            if e.code != "not_found":
                raise
            replaces = {}
        parts = self._everywhere("Save", {**request, "replaces": replaces}, timeout)
        manifest = {"parts": [answer["part"] for answer in parts]}
        # The first one's manifest decides which parts are the checkpoint.
        answers = [_named(control, "WriteManifest", {**request, "manifest": manifest}, timeout) for control in self._all]
        return str(answers[0].get("path", ""))

    def restore(self, request: Mapping[str, Any], timeout: float, torn: Callable[[Error], None]) -> None:
        """Restores what save has saved, once all aggregators have checked their parts.

        It calls torn if only some have restored theirs.
        """
        if not self.several:
            self.first.call("Restore", request, timeout)
            return
        request = {**request, "manifest": self._manifest(request, timeout)}
        self._everywhere("Restore", {**request, "check": True}, timeout)
        try:
            self._everywhere("Restore", request, timeout)
        except Error as e:
            torn(e)
            raise

    def read_state(self, request: Mapping[str, Any], timeout: float) -> Tuple[bytes, int]:
        """Returns part of a tensor's state, and its optimizer steps.

        Each aggregator answers 0 for the elements that others have.
        """
        if self.several:
            answers = self._everywhere("ReadState", request, timeout)
        else:
            answers = [self.first.call("ReadState", request, timeout)]
        parts = [base64.b64decode(answer["data"]) for answer in answers]
        whole = 0
        for part in parts:
            whole |= int.from_bytes(part, "little")
        return whole.to_bytes(len(parts[0]), "little"), max(int(answer.get("updates", 0)) for answer in answers)

    def write_state(self, request: Mapping[str, Any], timeout: float, torn: Callable[[Error], None]) -> None:
        """Replaces what read_state reads; calls torn if only some aggregators have replaced theirs."""
        if not self.several:
            self.first.call("WriteState", request, timeout)
            return
        with concurrent.futures.ThreadPoolExecutor(len(self._all)) as pool:
            calls = [pool.submit(_named, control, "WriteState", request, timeout) for control in self._all]
        errors = [e for e in (call.exception() for call in calls) if e is not None]
        if errors:
            if isinstance(errors[0], Error) and len(errors) < len(calls):
                torn(errors[0])
            raise errors[0]

    def _manifest(self, request: Mapping[str, Any], timeout: float) -> Dict[str, Any]:
        return dict(_named(self.first, "ReadManifest", request, timeout).get("manifest", {}))

    def _everywhere(self, method: str, request: Mapping[str, Any], timeout: float) -> List[Dict[str, Any]]:
        """Makes a call to all aggregators at once."""
        with concurrent.futures.ThreadPoolExecutor(len(self._all)) as pool:
            return list(pool.map(lambda control: _named(control, method, request, timeout), self._all))

    def expect_end(self) -> None:
        """Expects the aggregators to end their streams."""
        for watch in self._watches:
            watch.leave()

    def leave(self, reason: Optional[BaseException] = None) -> None:
        """Ends the membership, once. With a reason the job fails: because of whom an aggregator has named, or else of this worker.

        The only aggregator is told nothing that it has said itself.
        """
        with self._leaving:
            if self._left or self._failure is not None and not self.several:
                return
            self._left = True
            request: Dict[str, Any] = {}
            if reason is not None:
                request["failure"] = str(reason) or type(reason).__name__
            if self._failure is not None:
                rank = getattr(self._failure, "rank", None)
                request["blame"] = -1 if rank is None else rank
            threads = [threading.Thread(target=_leave, args=(c, request), name="rackweave-leave", daemon=True) for c in self._all]
            for control, thread in zip(self._all, threads):
                try:
                    thread.start()
                except RuntimeError:  # Python, which ends, starts none
                    _leave(control, request)
            for thread in threads:
                if thread.ident is not None:
                    thread.join()

    def close(self) -> None:
        """Ends the streams."""
        for watch in self._watches:
            watch.close()

    def abandon(self) -> None:
        """In a forked child: lets go of the parent's connections."""
        for watch in self._watches:
            watch.abandon()


def _named(control: Control, method: str, request: Mapping[str, Any], timeout: float) -> Dict[str, Any]:
    """Makes a call whose error names the aggregator."""
    try:
        return control.call(method, request, timeout)
    except Error as e:
        e.args = (f"at {control.address}: {e}",)
        raise


def _leave(control: Control, request: Mapping[str, Any]) -> None:
    try:
        if "failure" in request:
            control.call("Leave", request, _FAIL_TIMEOUT, grace=0)
        else:
            control.call("Leave", request, _LEAVE_TIMEOUT)
    except Error:
        pass  # the aggregator finds out by the end of the watch


def listed(what: str, items: Sequence[str], most: int = 5) -> str:
    """Returns a text of the first items, and of how many there are more."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return f"{what}{'s' if len(items) > 1 else ''} {', '.join(items[:most])}{more}"
