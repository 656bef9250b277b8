"""This process's place among the workers, and the sessions it has opened."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys
import threading
import weakref
from typing import Any, Dict, List, Mapping, Optional

from . import _lib, _settings, _trace
from ._buffers import as_buffer
from ._open import await_dropped, ended, open_sessions
from ._session import Handle, Session, Tensor
from .errors import ConfigError

_COLLECT_AT = 16  # open sessions, and each time there are as many more


class World:
    """The workers of one run. Sessions are jobs of their own at the aggregator, all with the same workers."""

    def __init__(self, settings: _settings.Settings) -> None:
        self.settings = settings
        self.rank, self.world_size = settings.rank, settings.world_size
        self._lock = threading.RLock()
        self._opened = 0
        self._exchanges: Dict[bool, Session] = {}  # of push_pull and broadcast, by whether they average
        self._numbers: Dict[bool, Dict[str, int]] = {False: {}, True: {}}

    def session(
        self,
        *,
        mode: str = "aggregate",
        optimizer: str = "",
        hyper: Optional[Mapping[str, float]] = None,
        policy: Optional[str] = None,
        compress: Optional[str] = None,
        as_is: bool = False,
    ) -> Session:
        """Joins another job with the same workers. All ranks open their sessions in the same order.

        In mode stream, policy says who waits for whom; compress names the codecs, and as_is keeps what they leave from being scaled
        with the learning rate. None: what init was given.
        """
        _settings.check("a string", str, policy=policy, compress=compress)
        if policy is None:
            policy = self.settings.policy if mode == "stream" else ""
        if compress is None:
            compress = self.settings.compress
        if len(open_sessions()) % _COLLECT_AT == _COLLECT_AT - 1:
            gc.collect()  # models that are gone but refer to themselves keep their sessions until then
        with self._lock:
            self._opened += 1
            job = self.settings.job if self._opened == 1 else f"{self.settings.job}.{self._opened}"
        asked: Dict[str, Any] = {"mode": mode, "optimizer": optimizer, "hyper": hyper, "policy": policy}
        return Session(self.settings, job, **asked, compress=compress, as_is=as_is)

    def exchange(self, average: bool) -> Session:
        """Returns the session that sums, or averages; the first call opens it."""
        with self._lock:
            if average not in self._exchanges:
                scale = 1 / self.world_size if average else 1.0
                self._exchanges[average] = self.session(hyper={"scale": scale}, compress="")  # not only gradients
            return self._exchanges[average]

    def number(self, name: str, buffer: Any, average: bool) -> int:
        """Returns the number of a tensor of exchange, which is registered when its name is new."""
        if not isinstance(name, str):
            raise ConfigError(f"a tensor's name is {name!r}: give a string, the same at all ranks")
        b = as_buffer(buffer, name)
        with self._lock:
            session, numbers = self.exchange(average), self._numbers[average]
            if name not in numbers:
                numbers[name] = session.register([Tensor(name, b.shape, b.dtype)])[0]
            return numbers[name]


_world: Optional[World] = None


def init(
    address: Optional[str] = None,
    *,
    job: Optional[str] = None,
    rank: Optional[int] = None,
    world_size: Optional[int] = None,
    token: Optional[str] = None,
    ca: Optional[str] = None,
    provider: Optional[str] = None,
    timeout: Optional[float] = None,
    policy: Optional[str] = None,
    compress: Optional[str] = None,
) -> World:
    """Says who this worker is and where the aggregator is; nothing is joined yet.

    With several addresses, and commas between them, the job is spread over all these aggregators: each has some of the model.
    policy says who waits for whom in sessions of mode stream, such as ssp:s=3. compress names the codecs of gradients and answers
    in training, such as int4 or sign/int8; push_pull sends values as they are. What is not given is read from RACKWEAVE_ADDR, _JOB,
    _RANK, _WORLD_SIZE, _TOKEN, _CA, _PROVIDER, _TIMEOUT (seconds), _POLICY and _COMPRESS; rank and number of workers also from what
    torchrun, Open MPI, MPICH, Slurm and ps-lite set. A token goes over http:// to other hosts only if RACKWEAVE_INSECURE is 1. A
    second call returns the first's world, unless shutdown came between.
    """
    global _world
    if _world is None:
        _lib.library()  # a library that is missing is told of now
        _world = World(
            _settings.read(
                address=address,
                job=job,
                rank=rank,
                world_size=world_size,
                token=token,
                ca=ca,
                provider=provider,
                timeout=timeout,
                policy=policy,
                compress=compress,
            )
        )
    return _world


def world() -> World:
    """Returns this process's world; init is called where it was not."""
    return _world if _world is not None else init()


def is_initialized() -> bool:
    """Tells whether init was called."""
    return _world is not None


def rank() -> int:
    """Returns this worker's number, from 0."""
    return world().rank


def world_size() -> int:
    """Returns how many workers there are."""
    return world().world_size


def push_pull(tensor: Any, name: str, *, average: bool = False, out: Any = None, wait: bool = True) -> Handle:
    """Sums a tensor over all workers, in rank order, so that all get the same bits, in every run.

    The result goes into out, by default into tensor itself. average divides it by the number of workers. A name that is new
    makes all workers declare the tensor, so they use new names in the same order. Without wait, wait for the handle.
    """
    w = world()
    number = w.number(name, tensor, average)
    handle = w.exchange(average).push_pull(number, tensor, out)
    if wait:
        handle.wait()
    return handle


def broadcast(tensor: Any, name: str, *, wait: bool = True) -> Handle:
    """Gives every worker rank 0's values, in place. Names are those of push_pull."""
    w = world()
    number = w.number(name, tensor, False)
    handle = w.exchange(False).broadcast(number, tensor)
    if wait:
        handle.wait()
    return handle


def barrier(name: str = "barrier") -> None:
    """Waits until all workers are here."""
    world().exchange(False).barrier(name)


def alloc(nbytes: int) -> memoryview:
    """Returns memory that sessions send from and receive into without a copy, aligned to 64 bytes; its content is undefined.

    numpy.frombuffer(rackweave.alloc(4 * n), "float32") is an array there. The memory is given back when nothing refers to it.
    """
    if nbytes < 1:
        raise ConfigError(f"{nbytes} bytes: allocate 1 or more")
    address = _lib.arena_alloc(nbytes)
    block = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(block, _free, address, os.getpid()).atexit = False
    return memoryview(block).cast("B")


def _free(address: int, pid: int) -> None:
    if os.getpid() == pid:
        _lib.arena_free(address)


def stats() -> Dict[str, int]:
    """Returns what this worker has moved, over all its sessions.

    sent_bytes, received_bytes and of these copied_bytes, which lay outside the arenas; sent_chunks, received_chunks, doorbells,
    nacks, sleeps; arena_bytes and adopted_bytes are what the arenas hold now.
    """
    total: Dict[str, int] = dict(ended)
    for session in open_sessions():
        if session.error is None:
            for name, value in session.stats().items():
                total[name] = total.get(name, 0) + value
    total["arena_bytes"], total["adopted_bytes"] = _lib.arenas()
    return total


def shutdown(reason: str = "") -> None:
    """Leaves all jobs; with a reason they fail at every rank. It happens by itself when the process ends."""
    global _world
    sessions: List[Session] = sorted(open_sessions(), key=lambda s: s.job)
    ended, _world = _world, None
    for session in sessions:
        session.close(reason)
    await_dropped()
    if ended is not None:
        _trace.write(ended.rank)


def _at_exit() -> None:
    error = getattr(sys, "last_value", None)
    shutdown(f"it ended by {type(error).__name__}: {error}" if error is not None else "")


def _after_fork() -> None:
    global _world
    _world = None


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
