"""One membership in one job: tensors are registered, then exchanged."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import functools
import math
import os
import threading
import time
import weakref
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeVar

from . import _codecs, _joining, _lib, _open, _rejoin, _trace
from ._aggregators import Aggregators, listed
from ._buffers import TYPES, Buffer, as_buffer
from ._joining import ms
from ._settings import Settings
from ._tensors import Handle, Op, Tensor, declaration
from .errors import (
    ClosedError,
    ConfigError,
    Error,
    ForkedError,
    JobFailedError,
    RefusedError,
    ServerLostError,
    TensorError,
    WaitTimeoutError,
)

_SLICE_MS = 200  # of every wait: between slices Ctrl-C and failures are seen
_REASON_WAIT = 0.5  # how long a failure of the data path waits for the control plane to say what is behind it
_T = TypeVar("_T")
_PAGE_CHUNKS = 64  # of each call that writes state: some MiB
_BUDDY = "buddy"  # the name under which restore finds what racks keep of each other's state


class Session:
    """A worker's membership in a job. All ranks open their sessions in the same order."""

    def __init__(
        self,
        settings: Settings,
        job: str,
        *,
        mode: str = "aggregate",
        optimizer: str = "",
        hyper: Optional[Mapping[str, float]] = None,
        policy: str = "",
        compress: str = "",
        as_is: bool = False,
    ) -> None:
        """Joins the job and waits until all its workers have.

        mode is aggregate, eager, two-phase or stream; optimizer an update rule such as sgd_torch, empty in mode aggregate; hyper
        its hyper-parameters. policy says who waits for whom in mode stream: asp, which is the default, ssp:s=3 and others.
        compress names the codecs of gradients and answers, such as int8, sign/int8 or 2bit:0.5/none; empty: none. With as_is, what
        they leave for the next gradient is not scaled with the learning rate.
        """
        self.settings, self.job, self.mode = settings, job, mode
        self._asked: Dict[str, Any] = dict(mode=mode, optimizer=optimizer, policy=policy, compress=compress, as_is=as_is)
        self._asked["hyper"] = dict(hyper or {})
        self.before_barriers: "weakref.WeakSet[Any]" = weakref.WeakSet()  # samplers, which they flush
        self._declared: List[Tensor] = []
        self.codecs = _codecs.Codecs(weakref.WeakMethod(self._native_call), as_is, self._declared)
        self.names: List[str] = []
        self._bytes: List[int] = []
        self._keep: Dict[int, Tuple[int, Any]] = {}  # by tensor: its last operation, and what keeps that one's memory
        self._pid = os.getpid()
        self._aggregators = Aggregators(settings, _open.weakly(self._ended), _open.weakly(self._change))
        self.explain: Callable[[str], str] = str  # makes of a failure's text what its user understands
        self._failed = threading.Event()
        self._failure: Optional[Error] = None
        self._lock = threading.Lock()  # of _failure, _native and _users
        self._idle = threading.Condition(self._lock)
        self._registering = threading.Lock()
        self._users = 0
        self._native: Optional[ctypes.c_void_p] = None
        self._library = _lib.library()
        request = _joining.request(settings, job, mode, optimizer, hyper or {}, policy, compress)
        try:
            self._info = self._aggregators.join(request)
            self.compress = _joining.codecs(request, self._info)  # of gradients and answers
            self.codecs.gradients = self._info.get("gradients")
            self._seat = _rejoin.Seat.of(self._info)
            self._connect()
        except BaseException as e:
            self._end(e)
            raise
        _open.sessions.add(self)

    @property
    def rank(self) -> int:
        """This worker's number in the job."""
        return int(self._info.get("rank", 0))

    @property
    def world_size(self) -> int:
        """How many workers the job has."""
        return int(self._info["workers"])

    @property
    def provider(self) -> str:
        """What carries the job's data: shm, tcp or ibv."""
        return str(self._info["provider"])

    @property
    def native(self) -> ctypes.c_void_p:
        """The session of the C library, for those who call that themselves."""
        if self._native is None:
            raise self._failure or ClosedError(f"the session of job {self.job!r} is closed")
        return self._native

    def _connect(self) -> None:
        """Opens the devices and connects a queue pair to every lane."""
        info, timeout = self._info, self.settings.timeout
        config = _joining.config(info, self.rank, self.mode == "stream")
        native = ctypes.c_void_p()
        _lib.check(f"open {info['provider']}", self._library.rw_open(ctypes.byref(config), ctypes.byref(native)))
        self._native = native
        _trace.follow(native, self.job, self.rank, self.names)
        ends = (_lib.Endpoint * len(info["lanes"]))()
        for i, end in enumerate(ends):
            end.size = ctypes.sizeof(end)
            _lib.check(f"lane {i}", self._library.rw_endpoint(native, i, ctypes.byref(end)))
        ack_timeout = info.get("linkTimeoutMs", 5000)
        request = {"timeoutMs": ms(timeout), "ackTimeoutMs": ack_timeout}
        told = [_joining.told(end) for end in ends]
        _joining.take(ends, self._calling(lambda: self._aggregators.connect(told, request)))
        how = _lib.Connect(timeout_ms=ms(timeout), ack_timeout_ms=ack_timeout)
        self._native_call("connect", self._library.rw_connect, ends, len(ends), ctypes.byref(how))

    # Tensors.

    def register(self, tensors: Sequence[Tensor]) -> List[int]:
        """Declares the next tensors, the same at every rank and in the same order; returns their numbers.

        Waits until all ranks have. A rank that declares others fails the job at every rank, with an error that names the tensor.
        """
        if not tensors:
            return []
        tensors = _codecs.on_wire(self.compress, tensors)
        with self._registering:
            native = (_lib.Tensor * len(tensors))()
            for n, t in zip(native, tensors):
                for what, place in ((t.memory, "is of type"), (t.wire or t.memory, "is to travel as")):
                    if what not in TYPES:
                        raise TensorError(f"tensor {t.name!r} {place} {what!r}: use f32, bf16 or f16")
                n.size, n.elems, n.width = ctypes.sizeof(n), t.elems, t.width
                n.memory_type, n.wire_type = TYPES[t.memory][1], TYPES[t.wire or t.memory][1]
            declared = [declaration(t, int(self._info["chunkBytes"])) for t in tensors]
            request = {"tensors": declared, "timeoutMs": ms(self.settings.timeout)}
            lanes = self._calling(lambda: self._aggregators.register(request))
            chunk_lanes = (ctypes.c_uint32 * len(lanes))(*lanes)
            self._native_call("register", self._library.rw_add, native, len(tensors), chunk_lanes, len(lanes))
            first = len(self.names)
            self._bytes.extend(t.elems * TYPES[t.memory][0] for t in tensors)
            self.names.extend(t.name for t in tensors)
            self._declared.extend(tensors)
            self.codecs.compress(first)
            return list(range(first, len(self.names)))

    def submit(self, ops: Sequence[Op]) -> Handle:
        """Starts operations, one at a time per tensor, and does not wait. The memory is the session's until they are done."""
        n = len(ops)
        native = (_lib.Op * n)()
        raw = (ctypes.c_uint64 * n)()
        size = ctypes.sizeof(_lib.Op)
        for o, op in zip(native, ops):
            op.put(o)
        started = 0
        while started < n:
            rest, handles = ctypes.byref(native, started * size), ctypes.byref(raw, started * 8)
            name = self._declaration(ops[started].tensor).name
            now = self._native_call(
                f"tensor {name!r}",
                self._library.rw_submit,
                ctypes.cast(rest, ctypes.POINTER(_lib.Op)),
                n - started,
                ctypes.cast(handles, ctypes.POINTER(ctypes.c_uint64)),
            )
            for i in range(started, started + now):
                self._keep[ops[i].tensor] = (raw[i], ops[i].owner)
            started += now
        return Handle(self, raw, [op.tensor for op in ops])

    def push_pull(self, tensor: int, src: Any, dst: Any = None, priority: int = 0) -> Handle:
        """Starts the exchange of one tensor: sends src, and gets the result into dst, by default in place."""
        source = self._buffer(tensor, src)
        target = source if dst is None else self._buffer(tensor, dst)
        if not target.writable:
            raise TensorError(f"tensor {self.names[tensor]!r} is read-only: give a destination that can be written")
        return self.submit([Op(_lib.PUSHPULL, tensor, source.address, target.address, priority, (source.owner, target.owner))])

    def pull(self, tensor: int, dst: Any) -> Handle:
        """Starts to get the parameters of one tensor into dst."""
        b = self._buffer(tensor, dst)
        return self.submit([Op(_lib.PULL, tensor, 0, b.address, 0, b.owner)])

    def broadcast(self, tensor: int, buffer: Any) -> Handle:
        """Starts a broadcast of rank 0's values, in place."""
        b = self._buffer(tensor, buffer)
        return self.submit([Op(_lib.BROADCAST, tensor, b.address, b.address, 0, b.owner)])

    def commit(
        self,
        *,
        lr: float,
        wd: float = 0.0,
        scale: float = 1.0,
        clip: float = 0.0,
        skip: bool = False,
        skip_non_finite: bool = False,
    ) -> Tuple[float, float]:
        """Ends a two-phase step: the pushed gradients update the parameters. All ranks commit with the same values.

        clip bounds the scaled gradient's global norm, 0: not at all; skip drops the gradients; skip_non_finite does so
        if the norm is not finite. Returns the norm of the scaled gradient before clipping, and the scale it was multiplied by.
        """
        step = _lib.Step(lr=lr, wd=wd, scale=scale, clip=clip, skip=skip, skip_non_finite=skip_non_finite)
        raw = (ctypes.c_uint64 * 1)()
        self._native_call("commit", self._library.rw_commit, ctypes.byref(step), raw)
        self._wait(raw, (), None)
        norm, applied = ctypes.c_float(), ctypes.c_float()
        self._native_call("commit", self._library.rw_committed, ctypes.byref(norm), ctypes.byref(applied))
        return norm.value, applied.value

    def end_step(self) -> Tuple[int, bool]:
        """Ends this worker's step in mode stream, and waits until the policy lets it begin the next.

        All gradients of the step must be answered. Returns the number of the next step, and whether the parameters must be pulled
        first, as the policy asks for newer ones than the step's push_pulls got.
        """
        raw = (ctypes.c_uint64 * 1)()
        self._native_call("end of step", self._library.rw_end_step, raw)
        self._wait(raw, (), None)
        step, pull = ctypes.c_uint32(), ctypes.c_int()
        self._native_call("end of step", self._library.rw_step_ended, ctypes.byref(step), ctypes.byref(pull))
        return step.value, bool(pull.value)

    def _declaration(self, tensor: int) -> Tensor:
        if isinstance(tensor, int) and 0 <= tensor < len(self._declared):
            return self._declared[tensor]
        raise TensorError(f"tensor {tensor!r}: {len(self._declared)} are registered: give a number that register returned")

    def _buffer(self, tensor: int, array: Any) -> Buffer:
        b = as_buffer(array, self._declaration(tensor).name)
        if b.nbytes != self._bytes[tensor]:
            raise TensorError(f"tensor {self.names[tensor]!r} has {self._bytes[tensor]} bytes as registered and {b.nbytes} here")
        return b

    # Waiting.

    def _wait(self, raw: Any, tensors: Sequence[int], timeout: Optional[float]) -> None:
        limit = self.settings.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        while True:
            left = max(0, ms(deadline - time.monotonic()))
            try:
                self._native_call("wait", self._library.rw_wait_all, raw, len(raw), min(left, _SLICE_MS))
            except _lib.NativeError as e:
                if e.code != -errno.ETIMEDOUT:
                    raise
                if left > 0:
                    continue
                self._give_up(
                    WaitTimeoutError(f"no answer within {limit:g} s for {self._unfinished(raw, tensors)}{self.awaited()}")
                )
                raise self._failure from None  # type: ignore[misc]
            self._let_go(raw, tensors)
            return

    def _done(self, raw: Any, tensors: Sequence[int]) -> bool:
        if not all(self._native_call("test", self._library.rw_test, handle) == 1 for handle in raw):
            return False
        self._let_go(raw, tensors)
        return True

    def _let_go(self, raw: Any, tensors: Sequence[int]) -> None:
        for handle, t in zip(raw, tensors):
            if self._keep.get(t, (0, None))[0] == handle:
                del self._keep[t]

    def _unfinished(self, raw: Any, tensors: Sequence[int]) -> str:
        with self._using() as native:
            late = [self.names[t] for handle, t in zip(raw, tensors) if self._library.rw_test(native, handle) != 1]
        return listed("tensor", [repr(name) for name in late]) if late else "the commit"

    def awaited(self) -> str:
        """Asks the aggregator who keeps others waiting."""
        return self._aggregators.awaited(self.job, self.rank)

    # Control.

    def barrier(self, name: str) -> None:
        """Waits until all ranks have called it with the same name."""
        self._barrier(name)

    def _barrier(self, name: str) -> Dict[str, Any]:
        for sampler in list(self.before_barriers):
            sampler.flush()
        return self._call("Barrier", {"name": name, "timeoutMs": ms(self.settings.timeout)}, self.settings.timeout)

    def set_policy(self, policy: str) -> str:
        """Lets another policy decide who waits for whom, from a step on that no worker has begun; returns the one until now."""
        return str(self._call("SetPolicy", {"job": self.job, "policy": policy}, self.settings.timeout).get("was", ""))

    def report_loss(self, loss: float) -> None:
        """Tells the policy the validation loss after an epoch: strategy-switch may decide by it. One rank reports each epoch's."""
        value = loss if math.isfinite(loss) else str(loss).replace("nan", "NaN").replace("inf", "Infinity")
        self._call("ReportLoss", {"loss": value}, self.settings.timeout)

    def flush(self) -> None:
        """Lets each next gradient take along what codecs have left, if all ranks call it: before the last step ahead of save."""
        self._native_call("flush", self._library.rw_flush)

    def save(self, name: str) -> str:
        """Writes parameters and optimizer state to the aggregator's disk; returns the path there.

        One rank calls it, after a barrier. If the job is spread over several aggregators, each writes its part to its own disk, and
        the path is that of the first one's manifest.
        """
        request = {"name": name, "timeoutMs": ms(self.settings.timeout)}
        return self._calling(lambda: self._aggregators.save(request, self.settings.timeout))

    def restore(self, name: str) -> None:
        """Reads back what save wrote; every rank pulls the parameters afterwards. One rank calls it, after a barrier."""
        request = {"name": name, "timeoutMs": ms(self.settings.timeout)}
        self._calling(lambda: self._aggregators.restore(request, self.settings.timeout, self._give_up))

    def go_on(self) -> int:
        """Takes up the job at the last whole step of its run before, which failed; returns how many steps that has had.

        The state comes from the memory of the aggregators that live, in a cluster whose racks have buddies. All ranks call it once
        all tensors are registered, and then pull the parameters. An error at one rank is one at all: RefusedError, for example if
        nobody keeps the state any more.
        """
        self._barrier("go-on")
        why: Optional[Error] = None
        answer: Dict[str, Any] = {}
        if self.rank == 0:
            try:
                self.restore(_BUDDY)
            except Error as e:
                why = e
        try:
            answer = self._barrier("gone-on")
        except Error:
            if why is None:
                raise
        if why is not None:
            raise why
        if "restoredStep" not in answer:
            raise RefusedError("go on: rank 0 could not restore the state: see its error")
        return int(answer["restoredStep"])

    def rejoin(self, timeout: Optional[float] = None) -> Tuple["Session", int]:
        """Takes a session that has failed to the next run of its job; returns the session of that, and the last whole step.

        It is for racks that have buddies: call it at every rank when a step fails, for example because an aggregator has died. The
        new session has the same rank and the same tensors, by the same numbers, at whichever aggregator serves the rack by then,
        such as a standby on another rack's box. Its state is that after the step that is returned, as by go_on: every rank pulls
        all parameters and goes on with the next step. This session is closed.

        It tries for timeout seconds, or the session's timeout, and raises what the last try met: ServerLostError while nobody
        serves the rack, WaitTimeoutError while ranks are missing. What cannot pass is raised at once: RefusedError where nobody
        keeps the state any more, or the job is spread over several aggregators; ServerLostError for a rack that is lost where the
        job is to fail. Where jobs go on without a lost rack, ranks are fewer, and racks have as many workers as their declared
        sizes say, or a multiple.
        """
        limit = self.settings.timeout if timeout is None else timeout
        if not limit > 0:
            raise ConfigError(f"timeout of {limit} s: use one above 0, or None for the session's")
        if os.getpid() != self._pid:
            self.check()
        until = time.monotonic() + limit
        self.close()  # it has failed
        try:
            if self._aggregators.several:
                raise RefusedError("it is spread over several aggregators: join it again, and restore a checkpoint")
            return _rejoin.keep_trying(self._seat, self.settings, until, lambda settings: self._again(settings, until))
        except Error as e:
            e.args = (f"rejoin job {self.job!r}: {e}",)
            raise

    def _again(self, settings: Settings, until: float) -> Tuple["Session", int]:
        """Tries once to join the next run."""
        session = Session(_rejoin.bounded(settings, until), self.job, **self._asked)
        try:
            session._seat = self._seat.after(session._seat)
            session._bounded_by(_rejoin.bounded(settings, until))
            session.register(self._declared)
            session._bounded_by(_rejoin.bounded(settings, until))
            step = session.go_on()
        except Error as e:
            try:
                if isinstance(e, ServerLostError):
                    session._failed.wait(_REASON_WAIT)  # the watch finds it, too
                failure = session.error
            finally:
                session.close()
            if failure is not None:  # all ranks find that, or none does
                raise failure from None
            e.final = True
            raise
        except BaseException as e:
            session.close(f"it ended by {type(e).__name__}")
            raise
        session._bounded_by(settings)
        return session, step

    def _bounded_by(self, settings: Settings) -> None:
        self.settings, self._aggregators.timeout = settings, settings.timeout

    def updates(self, tensor: int) -> int:
        """Returns how many optimizer steps a tensor has had at the aggregator."""
        return self._read_state({"tensor": tensor, "array": 0, "offset": "0"})[1]

    def read_state(self, tensor: int, array: int) -> bytes:
        """Returns an array that the aggregator keeps of a tensor: its parameters, 0, or a state of the optimizer, from 1 on.

        The elements are f32, little-endian. What this rank has sent must be done. OutOfRangeError: there is no such array.
        """
        size = self._declared[tensor].elems * 4
        data = bytearray()
        while len(data) < size:
            request = {"tensor": tensor, "array": array, "offset": str(len(data) // 4)}
            data += self._read_state(request)[0]
        return bytes(data)

    def _read_state(self, request: Dict[str, Any]) -> Tuple[bytes, int]:
        return self._calling(lambda: self._aggregators.read_state(request, self.settings.timeout))

    def write_state(self, tensor: int, array: int, data: bytes, updates: Optional[int] = None) -> None:
        """Replaces what read_state reads, and with updates the tensor's count of steps. One rank calls it, between barriers."""
        page = int(self._info["chunkBytes"]) * _PAGE_CHUNKS
        for at in range(0, len(data), page):
            part = base64.b64encode(data[at : at + page]).decode()
            request = {"tensor": tensor, "array": array, "offset": str(at // 4), "data": part}
            if updates is not None:
                request["updates"] = updates
            self._calling(functools.partial(self._aggregators.write_state, request, self.settings.timeout, self._give_up))

    def stats(self) -> Dict[str, int]:
        """Returns what was moved so far: bytes and chunks, and of the bytes those that this process had to copy."""
        s = _lib.Stats()
        self._native_call("stats", self._library.rw_stats, ctypes.byref(s))
        return s.counts()

    @property
    def record(self) -> List[float]:
        """The job's hyper-parameters in the places of a control record: the start for Op.hyper."""
        return [float(x) for x in self._info["record"]]

    @property
    def error(self) -> Optional[Error]:
        """The session's failure; None while it has none."""
        return self._failure

    def fail(self, error: Error) -> None:
        """Fails the job at every rank for a reason of this worker's own."""
        self._give_up(error)

    def _call(self, method: str, request: Dict[str, Any], timeout: float) -> Dict[str, Any]:
        return self._calling(lambda: self._aggregators.first.call(method, request, timeout))

    def _calling(self, call: Callable[[], _T]) -> _T:
        self.check()
        try:
            return call()
        except (JobFailedError, RefusedError) as e:
            if isinstance(e, JobFailedError) or e.code == "unauthenticated":  # the session has ended
                self._failed.wait(_REASON_WAIT)  # the watch says because of whom
            if self._failure is not None:
                raise self._failure from None
            e.args = (self.explain(str(e)),)
            raise

    def check(self) -> None:
        """Raises what made the session fail; in a forked child, that it is one."""
        if os.getpid() != self._pid:
            raise ForkedError(
                f"job {self.job!r}: this process is a forked child of the one that joined: call rackweave.init() in it to join anew"
            )
        if self._failure is not None:
            raise self._failure

    @contextlib.contextmanager
    def _using(self) -> Iterator[ctypes.c_void_p]:
        """Holds the native session open."""
        with self._lock:
            if self._native is None:
                raise self._failure or ClosedError(f"the session of job {self.job!r} is closed")
            self._users += 1
            native = self._native
        try:
            yield native
        finally:
            with self._lock:
                self._users -= 1
                self._idle.notify_all()

    def _native_call(self, what: str, function: Any, *arguments: Any) -> int:
        self.check()
        with self._using() as native:
            code = int(function(native, *arguments))
            if code >= 0:
                return code
            error = _lib.NativeError(what, code)
            if code in (_lib.EABORTED, _lib.ETRANSPORT, _lib.EPROTOCOL, -errno.ECANCELED):  # rw_abort cancels a connect
                if not self._failed.wait(_REASON_WAIT):
                    text = ctypes.create_string_buffer(1024)
                    self._library.rw_failure(native, text, len(text))
                    self._give_up(ServerLostError(f"aggregator lost: {text.value.decode(errors='replace')}"))
                raise self._failure  # type: ignore[misc]
        if code == _lib.EFORKED:
            self.check()
        raise error

    # Ending.

    def _change(self, codecs: Dict[str, Any]) -> bool:
        return self.codecs.change(codecs)

    def _ended(self, error: Error) -> None:
        """Records that the job has ended at an aggregator. The others that it is spread over learn it here."""
        if self._aggregators.several and self._aggregators.joined:
            self._give_up(error)
        else:
            self._fail(error)

    def _fail(self, error: Error) -> bool:
        """Makes error the session's failure unless it has one; tells whether it did."""
        with self._lock:
            if self._failure is not None:
                return False
            error.args = (self.explain(str(error)),)
            self._failure = error
            if self._native is not None:
                self._library.rw_abort(self._native, str(error).encode())
        self._failed.set()
        return True

    def _give_up(self, error: Error) -> None:
        if self._fail(error):
            self._aggregators.leave(error)

    def close(self, reason: str = "") -> None:
        """Leaves the job. With a reason, or with operations in flight, the job fails at every rank."""
        if os.getpid() != self._pid:
            return
        for sampler in list(self.before_barriers):
            with contextlib.suppress(Error):
                sampler.close()
        with self._lock:
            if self._native is None:
                return
            busy = any(self._library.rw_test(self._native, handle) == 0 for handle, _ in self._keep.values())
            reason = reason or ("it was closed with operations in flight" if busy else "")
            why = self._failure or (Error(reason) if reason else None)
        self._aggregators.expect_end()  # before the aggregator lets go, or the stream's end would be a failure
        self._end(why)

    def _end(self, why: Optional[BaseException]) -> None:
        """Leaves the job, and gives back what the session holds."""
        try:
            self._aggregators.leave(why)
        finally:
            self._count()
            self._fail(ClosedError(f"the session of job {self.job!r} is closed, by detach, close or shutdown: join anew for more"))
            self._aggregators.close()
            with self._lock:
                native, self._native = self._native, None
                self._idle.wait_for(lambda: self._users == 0, timeout=_open.CLOSE_TIMEOUT)
                busy = self._users > 0
            if native is not None and not busy:
                _trace.collect(native)
                self._library.rw_close(native)
            _open.sessions.discard(self)

    def _count(self) -> None:
        """Adds what the session has moved to what ended sessions have."""
        s = _lib.Stats()
        with contextlib.suppress(Error), self._using() as native:  # unless another thread has closed it
            if self._library.rw_stats(native, ctypes.byref(s)) == 0:
                _open.count(s.counts())

    def __del__(self) -> None:
        """Leaves the job of a session that nobody refers to."""
        if getattr(self, "_native", None) is not None and os.getpid() == self._pid:
            _open.close_dropped(self.close)

    def _forked(self) -> None:
        """In a forked child: lets go of what is the parent's."""
        self._aggregators.abandon()
