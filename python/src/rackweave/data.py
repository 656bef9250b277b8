"""Which rows this worker trains on: a batch sampler for torch's and gluon's DataLoader, dealt by the aggregator.

    sampler = rackweave.data.Sampler(rows=len(dataset), batch=32, seed=1)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=2)
    sampler.follow(optimizer)                        # or a gluon Trainer; or call sampler.done() after each step
    for epoch in range(10):
        for x, y in loader:
            (loss(model(x), y) * sampler.weight).backward()
            optimizer.step()

A row counts as trained on when the step of its batch is done, not when a loader fetches it: loaders fetch ahead. If a worker dies,
or the job goes on from a checkpoint, rows of batches that were not done are dealt again.
"""

from __future__ import annotations

import array
import atexit
import base64
import collections
import contextlib
import dataclasses
import functools
import numbers
import os
import sys
import threading
import time
import types
import uuid
import weakref
from typing import Any, Callable, Deque, Dict, List, Optional

from . import _settings
from ._control import Control, Line, failure_of
from ._session import Session
from ._world import world
from .errors import ClosedError, ConfigError, Error, ForkedError, RefusedError, ServerLostError, WaitTimeoutError

_TRY = 10.0  # seconds after which a call is made again
_FIRST, _MOST = 0.001, 0.2  # between calls, doubled each time
_BEAT = 3.0  # a service beside an aggregator takes a worker for lost that does not call for long
_SERVICE = "/rackweave.v1.DataService/"
_all: "weakref.WeakSet[Sampler]" = weakref.WeakSet()


@dataclasses.dataclass
class _Batch:
    seq: int
    epoch: int
    rows: List[int]
    weight: float
    end: bool
    since: float = 0.0  # when it was yielded
    took: float = 0.0  # to compute its gradient


class Sampler:
    """An iterable of batches, each a list of row numbers. An iteration is an epoch. One thread uses it.

    Where a step of a synchronous job has no rows for this worker, its batch is the set's first rows with a weight of 0, so that the
    worker takes part in the step without changing its gradient. What sees rows in forward alone, as batch normalization's running
    means, sees these too.
    """

    def __init__(
        self,
        at: Any = None,
        *,
        rows: int = 0,
        manifest: str = "",
        batch: int = 32,
        seed: int = 0,
        deal: str = "queue",
        plain: bool = False,
        balance: bool = False,
        favour: float = 0.0,
        ahead: int = 2,
        set: str = "train",
        digest: str = "",
        asynchronous: bool = False,
    ) -> None:
        """Describes a training set; all workers describe it alike. The first iteration opens it.

        Args:
            at: who deals: the aggregator of a session, of what rackweave.torch.attach returned or of a kvstore, by default of this
                process's world; or the address of a service beside it (rackweave data serve).
            rows: how many rows there are: len(dataset).
            manifest: instead of rows, a file of the service's directory that rackweave data shard has made.
            batch: rows of a batch.
            seed: of the order of each epoch.
            deal: queue: the worker takes the next rows of the epoch's order. fixed: step and rank say which, so an epoch has
                len(sampler) steps, and a run repeats to the bit. shards: as fixed, of the worker's shard in the manifest.
            plain: do not spread the manifest's groups evenly over an epoch.
            balance: batch sizes follow the workers' speeds, and their sum stays.
            favour: how strongly groups with a high validation loss are favoured; 0: not at all.
            ahead: batches to lease before they are asked for.
            set: the set's name in the job.
            digest: of the manifest, in hexadecimal digits; another one is refused.
            asynchronous: of a service beside an aggregator: workers do not wait for each other's steps.
        """
        _settings.check("a string", str, manifest=manifest, deal=deal, set=set, digest=digest)
        _settings.check("True or False", bool, plain=plain, balance=balance, asynchronous=asynchronous)
        whole = numbers.Integral
        for name, value, kind, low, high in (
            ("rows", rows, whole, 0, 1 << 40), ("batch", batch, whole, 1, 1 << 18), ("seed", seed, whole, 0, (1 << 64) - 1),
            ("ahead", ahead, whole, 1, 256), ("favour", favour, numbers.Real, 0, 10),
        ):  # fmt: skip
            _within(name, value, kind, low, high)
        if (rows == 0) == (manifest == ""):
            raise ConfigError(f"rows is {rows} and manifest {manifest!r}: give one of them, such as rows=len(dataset)")
        try:
            digest = base64.b64encode(bytes.fromhex(digest)).decode()
        except ValueError:
            raise ConfigError(f"digest is {digest!r}: use hexadecimal digits, as rackweave data shard prints them") from None
        self._request: Dict[str, Any] = {
            "manifest": manifest, "rows": str(rows), "digest": digest, "seed": str(seed), "deal": deal, "plain": plain,
            "batch": int(batch), "balance": balance, "favour": float(favour),
        }  # fmt: skip
        self._session: Optional[Session] = None
        self._reader = {"set": set, "incarnation": uuid.uuid4().hex}
        self._request.update(self._reader)
        if isinstance(at, str):
            s = _settings.read(address=at)
            self._control, self._timeout = Control(s.address, s.ca, s.token, s.insecure), s.timeout
            self._request.update(job=s.job, rank=s.rank, workers=s.world_size, asynchronous=asynchronous)
            self._workers, self._asynchronous = s.world_size, asynchronous
        else:
            self._session = _session(at)
            self._control, self._timeout = self._session._aggregators.first, self._session.settings.timeout
            self._session.before_barriers.add(self)
            self._workers, self._asynchronous = self._session.world_size, self._session.mode == "stream"
        self._ahead, self._balance, self._pid = int(ahead), balance, os.getpid()
        self._line = Line(self._control, _TRY)
        self._calls = threading.RLock()
        self._state = threading.Condition()  # of what follows
        self._info: Dict[str, Any] = {}  # the answer to Open
        self._run = 0  # counts openings: the thread of an earlier one ends
        with self._state:
            self._reset()
        self._pending = 0  # batches of a step that _wait awaits
        self._wait: Callable[[], None] = lambda: None
        _all.add(self)

    def _reset(self) -> None:
        self._run += 1
        self._leased: Deque[_Batch] = collections.deque()  # not yielded
        self._held: Deque[_Batch] = collections.deque()  # yielded, but not done
        self._sent = self._done = self._reported = self._yielded = self._counted = 0
        self._seconds, self._last = 0.0, 0.0
        self._dry = self._over = self._stopped = self._tail = False
        self._want = self.epoch = int(self._info.get("epoch", 0))
        self._error: Optional[BaseException] = None
        self._state.notify_all()

    # Iterations.

    def __iter__(self) -> "Sampler":
        """Begins an epoch. One that was left early goes on, with the batches that were yielded and are not done."""
        self._check()
        self._settle()
        with self._state:
            if self._stopped and self._yielded and not self._counted:
                raise ConfigError(
                    f"set {self.name!r}: no step of the last epoch was reported: call sampler.done() after each, "
                    "or sampler.follow(optimizer) before the first"
                )
            self._leased.extendleft(reversed(self._held))
            self._held.clear()
            if self._over:
                self._want += 1
                self._state.notify_all()
            self._over = self._stopped = False
            self._yielded = self._counted = 0
        return self

    def __next__(self) -> List[int]:
        self._check()
        self._begin()
        until = time.monotonic() + self._timeout + _MOST
        while not self._stopped:
            if not self._leased:
                self._settle()
            with self._state:
                left = until - time.monotonic()
                if not self._state.wait_for(lambda: self._leased or self._error or (self._dry and self._held), left):
                    raise WaitTimeoutError(
                        f"set {self.name!r}: no batch within {self._timeout:g} s: other workers hold the rest of the epoch: "
                        "rackweave data status shows how far each is; if one hangs, end it, and its rows are dealt again"
                    )
                if self._leased and not self._leased[0].end:
                    return self._take(self._leased.popleft())
                if self._leased:
                    self._leased.popleft()
                    if self._tail and not self._yielded:  # the epoch before ended with nothing left to do
                        self._want += 1
                        self._tail = False
                        self._state.notify_all()
                        continue
                    self._over = True
                elif self._error:
                    raise self._error
                self._tail, self._stopped = not self._over, True
        self.flush()
        raise StopIteration

    def _take(self, batch: _Batch) -> List[int]:
        batch.since, self.epoch = time.monotonic(), batch.epoch
        self._held.append(batch)
        self._yielded += 1
        self._state.notify_all()
        return batch.rows or list(range(min(int(self._request["batch"]), int(self._info["rows"]))))

    def __len__(self) -> int:
        """Returns the batches of an epoch, if those of all workers stay as they are.

        The workers of a queue lease ahead of each other. Near its end that can cost a few steps more.
        """
        rows, workers = int(self._request["rows"]), self._workers
        if self._asynchronous and workers > 1:
            raise TypeError(f"set {self.name!r}: a worker's batches are not known before: fast workers take more")
        if not rows:
            self._begin()
            rows = int(self._info["rows"])
        step = workers * int(self._request["batch"])
        return (rows + step - 1) // step

    @property
    def over(self) -> bool:
        """Whether the epoch of the last iteration is over.

        A loader that fetches ahead ends an iteration of an asynchronous job when other workers hold the rest of the epoch. If one
        is lost, its rows come at the head of the next iteration: after the last epoch, iterate until this is true. It waits.
        """
        self._settle()
        with self._state:
            if self._tail and not self._held:
                self._state.wait_for(lambda: self._leased or self._error, self._timeout)
                if self._leased and self._leased[0].end:
                    self._leased.popleft()
                    self._over, self._tail = True, False
            return self._over

    # Steps.

    @property
    def weight(self) -> float:
        """Multiplies the mean loss of the batch in hand, so that the mean over the workers weighs all rows of a step alike."""
        with self._state:
            return self._oldest("weight", self._pending).weight

    def computed(self) -> None:
        """Marks that the gradient of the batch in hand is computed, and waits for other workers from now on. For balance."""
        with self._state:
            batch = self._oldest("computed()")
            batch.took = time.monotonic() - max(batch.since, self._last)

    def done(self) -> None:
        """Records that the gradient of the oldest batch in hand was applied: call it after each step, for each of its batches."""
        with self._state:
            batch = self._oldest("done()")
            now = time.monotonic()
            self._seconds = (batch.took or now - max(batch.since, self._last)) if self._balance else 0.0
            self._done, self._last = batch.seq, now
            self._held.popleft()
            self._counted += 1
            self._dry = False
            self._state.notify_all()

    def _oldest(self, what: str, pending: int = 0) -> _Batch:
        if len(self._held) <= pending:
            raise ConfigError(f"set {self.name!r}: {what} without a batch in hand: use it once for each batch of the loader")
        return self._held[pending]

    def follow(self, stepper: Any, batches: int = 1) -> None:
        """Calls done() whenever stepper.step() returns, once for each of the batches of a step.

        stepper is a torch optimizer, or a gluon Trainer. Where a GradScaler leaves steps out, call done() instead. A Trainer's step
        counts when its parameters have arrived.
        """
        if not callable(getattr(stepper, "step", None)):
            raise ConfigError(f"stepper is of type {type(stepper).__name__}: give an optimizer or a Trainer, which have step()")
        _within("batches", batches, numbers.Integral, 1, 1024)
        store = getattr(stepper, "_kvstore_params", {}).get("kvstore")  # of a Trainer: what it was given
        if not self._asynchronous and ("async" in store if isinstance(store, str) else getattr(store, "in_step", None) is False):
            raise ConfigError(
                f"the Trainer's workers do not wait for each other, and those of set {self.name!r} do: give the kvstore to both, "
                'kv = mxnet.kv.create("dist_async_rackweave"), Trainer(…, kvstore=kv), Sampler(kv, …)'
            )
        inner = stepper.step
        parameters = getattr(stepper, "_params", None)  # of a Trainer, whose step returns before it is made

        def wait(arrays: str) -> None:
            for p in parameters or ():
                for a in getattr(p, arrays)() if p.grad_req != "null" else ():
                    a.wait_to_read()

        if self._balance:
            for group in getattr(stepper, "param_groups", ()):
                for p in group["params"]:
                    p.register_hook(lambda _: self._held and self.computed())

        def step(_: Any, *args: Any, **kwargs: Any) -> Any:
            self._settle()
            if self._balance and parameters is not None:
                wait("list_grad")
                self.computed()
            out = inner(*args, **kwargs)
            self._pending, self._wait = batches, lambda: wait("list_data")
            if parameters is None:
                self._settle()
            return out

        stepper.step = types.MethodType(functools.wraps(inner)(step), stepper)  # torch's schedulers wrap a method

    def _settle(self) -> None:
        """Counts the batches of a Trainer's step when it is made."""
        if self._pending:
            self._wait()
            batches, self._pending = self._pending, 0
            for _ in range(batches):
                self.done()

    # State.

    def flush(self) -> None:
        """Reports the batches that are done. Session.barrier does it, so that a checkpoint after it knows of them."""
        self._check()
        self._settle()
        if self._info and self._done != self._reported:
            self._report(self._run, {})

    def state_dict(self) -> Dict[str, Any]:
        """Returns how far the workers are, for a checkpoint of their own. Call it between steps, at all after the same one."""
        self._begin()
        self.flush()
        return dict(self._call("State", self._reader, self._run).get("state", {}))

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Goes on from what state_dict has returned. All workers call it, before they iterate."""
        if not isinstance(state, dict):
            raise ConfigError(f"state is of type {type(state).__name__}: give what state_dict has returned")
        if state.get("set") != self.name:
            raise ConfigError(f"the state is of set {state.get('set')!r}: give what state_dict of set {self.name!r} has returned")
        self._check()
        with self._state:  # a session that was not used would be taken for this one
            self._state.wait_for(lambda: not self._info or self._sent or self._error, self._timeout)
        with self._calls, self._state:
            self._info, self._request["state"] = {}, state
            self._reset()

    def close(self) -> None:
        """Reports the batches that are done, and ends. Others are dealt again when the worker is lost, or opens the set again."""
        self._end(f"set {self.name!r} is closed: make another Sampler")

    def _end(self, why: str) -> None:
        if os.getpid() != self._pid or isinstance(self._error, ClosedError):
            return
        try:
            self._timeout = min(self._timeout, _TRY)
            if self._error is None:
                self.flush()
        finally:
            with self._calls, self._state:
                self._reset()
                self._error = ClosedError(why)
                self._line.close()

    @property
    def name(self) -> str:
        """The set's name in the job."""
        return str(self._request["set"])

    # Calls.

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(f"set {self.name!r}: this process is a forked child of the one with the sampler: iterate there")

    def _begin(self) -> None:
        """Opens the set, once."""
        if self._info or self._error:
            return
        for other in list(self._session.before_barriers if self._session else ()):
            if other is not self and other.name == self.name and other._info:  # its reports would count for this one's batches
                with contextlib.suppress(Error):
                    other._end(f"set {self.name!r} is dealt to another Sampler of this session: give each a set of its own (set=)")
        answer = self._call("Open", self._request, self._run, again=False)
        self._control.session = answer.get("session") or self._control.session
        with self._state:
            self._info = answer
            self._reset()
            threading.Thread(target=self._fetch, args=(self._run,), name="rackweave-data", daemon=True).start()

    def _fetch(self, run: int) -> None:
        """Takes leases ahead."""
        epoch, pause = self._want, _FIRST
        try:
            while self._await_room(run, epoch):
                seq = self._sent + 1
                answer = self._report(run, {"seq": str(seq), "epoch": str(epoch)})
                batch = _Batch(seq, epoch, _rows(answer), float(answer.get("weight", 0)), bool(answer.get("end")))
                with self._state:
                    if self._run != run:
                        return
                    self._sent = seq
                    if batch.rows or batch.end or self._info.get("synchronous"):
                        self._leased.append(batch)
                        epoch, pause, self._dry = epoch + batch.end, _FIRST, False
                    else:
                        self._dry = self._done == self._reported
                    self._state.notify_all()
                    if self._dry:
                        self._state.wait_for(lambda: not self._dry or self._run != run, pause)
                        pause = min(2 * pause, _MOST)
        except BaseException as e:
            with self._state:
                if self._run == run:
                    self._error = e
                    self._state.notify_all()

    def _await_room(self, run: int, epoch: int) -> bool:
        """Waits until a batch of an epoch is wanted; a service beside an aggregator hears meanwhile that the worker lives."""
        while True:
            with self._state:
                found = self._state.wait_for(
                    lambda: self._run != run or (epoch <= self._want and len(self._leased) < self._ahead), _BEAT
                )
                if self._run != run:
                    return False
            if found:
                return True
            if self._session is None:
                self._report(run, {})

    def _report(self, run: int, request: Dict[str, Any]) -> Dict[str, Any]:
        """Makes a call of Next, which reports what is done."""
        with self._state:
            done, seconds = self._done, self._seconds
        answer = self._call("Next", {**self._reader, "done": str(done), "seconds": seconds, **request}, run)
        with self._state:
            if run == self._run:
                self._reported = max(self._reported, done)
        return answer

    def _call(self, method: str, request: Dict[str, Any], run: int, again: bool = True) -> Dict[str, Any]:
        """Makes a call, again where it breaks: the service answers a repeated one as before."""
        until, pause, session = time.monotonic() + self._timeout, _FIRST, self._session
        once = functools.partial(self._once, method, request, run)
        while True:
            try:
                return session._calling(once) if session is not None else once()
            except ServerLostError:
                if not again or (session is not None and session.error is not None) or time.monotonic() + pause > until:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _MOST)

    def _once(self, method: str, request: Dict[str, Any], run: int) -> Dict[str, Any]:
        with self._calls:
            if run != self._run:
                raise ClosedError(f"set {self.name!r} was opened again")
            status, answer = self._line.call(_SERVICE + method, request)
        if answer is not None and "open the set again" in answer.get("message", ""):  # the job goes on
            raise RefusedError(f"set {self.name!r}: {answer['message']}: load a state, or make another Sampler", "aborted")
        if status != 200 or answer is None:
            raise failure_of(f"set {self.name!r}: {method}", answer, f"HTTP status {status}")
        return answer


def _within(name: str, value: Any, kind: Any, low: float, high: float) -> None:
    if not isinstance(value, kind) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{name} is {value!r}: use a {'whole ' * (kind is numbers.Integral)}number from {low} to {high}")


def _rows(answer: Dict[str, Any]) -> List[int]:
    raw, rows = base64.b64decode(answer.get("rows", "")), array.array("Q")
    if len(raw) % rows.itemsize:
        raise ServerLostError(f"a batch of {len(raw)} bytes, which are not row numbers: use client and service of one release")
    rows.frombytes(raw)
    if sys.byteorder == "big":
        rows.byteswap()
    return rows.tolist()


def _session(at: Any) -> Session:
    """Returns the session of what a user has: of a kvstore, whose own may change with its optimizer, one beside it."""
    exchange = getattr(getattr(at, "_exchange", None), "session", None)  # of what rackweave.torch.attach returned
    if isinstance(at, Session) or isinstance(exchange, Session):
        return at if isinstance(at, Session) else exchange
    if at is None or getattr(at, "in_step", None) is True:
        return world().exchange(False)
    if getattr(at, "in_step", None) is False:
        return world().session(mode="stream", optimizer="sgd_mxnet", policy="asp", compress="")
    raise ConfigError(f"at is of type {type(at).__name__}: give a session, what rackweave.torch.attach returned, a kvstore of "
                      "rackweave.mxnet or the address of a service")  # fmt: skip


@atexit.register
def _close_all() -> None:
    for sampler in list(_all):
        with contextlib.suppress(Error):
            sampler.close()
