"""Runs an aggregator and worker processes for tests.

A worker is a function of a test module, run in a process of its own: it returns something that pickles, or raises. Importing a
framework takes longer than most workers do, so one process imports it, and each worker is a fork of that one from before it did
anything else. A module whose workers need a framework names it as FRAMEWORK.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import faulthandler
import gc
import importlib
import json
import os
import pickle
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BINARY = os.path.join(ROOT, "bin", "rackweave")
LIBRARY = os.path.join(ROOT, "bin", "librackweave.so.0")
LONG = bool(os.environ.get("RACKWEAVE_LONG"))  # a test may take minutes
DEADLINE = 180.0  # of a set of workers; generous, because the machine may be busy


class Aggregator:
    """A running aggregator; a context manager."""

    def __init__(self, *flags: str) -> None:
        self._log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [BINARY, "serve", "--listen", "127.0.0.1:0", "--unpinned", "--until-eof", *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        if not self.address:
            raise RuntimeError(f"the aggregator did not start: {self.log()}")

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> "Aggregator":
        return self

    def __exit__(self, *_: Any) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process.stdout.close()
        self._log.close()


@dataclasses.dataclass
class Outcome:
    """How a worker ended."""

    code: int
    result: Any
    error: Optional[str]  # the exception's type and text
    output: str
    seconds: float


class Process:
    """A worker's process: a child of this one, though a Forker made it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: Optional[int] = None
        self._lock = threading.Lock()

    def poll(self) -> Optional[int]:
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            return self.returncode

    def wait(self, timeout: float = DEADLINE) -> int:
        until = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


_PR_SET_CHILD_SUBREAPER = 36


class Forker:
    """A process that has imported a framework, and nothing of ours, and forks itself."""

    _all: Dict[str, "Forker"] = {}

    def __init__(self, framework: str) -> None:
        # Workers are grandchildren whose parent ends at once: they become children of this process.
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "cannot become the subreaper of the workers")
        launchers = ("RACKWEAVE_", "DMLC_")
        env = {k: v for k, v in os.environ.items() if not k.startswith(launchers) and k != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "rack.py"), framework],
            env={**env, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @classmethod
    def of(cls, framework: str) -> "Forker":
        if framework not in cls._all:
            cls._all[framework] = cls(framework)
        return cls._all[framework]

    def fork(self, task: Sequence[str], env: Dict[str, str], output: str) -> Process:
        """Starts a process that does a task of _TASKS in an environment, and prints to a file."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps([task, env, output]), file=self._process.stdin, flush=True)
        if not select.select([self._process.stdout], [], [], DEADLINE)[0]:
            raise RuntimeError(f"the process that workers are forked from did not fork within {DEADLINE:g} s")
        pid = self._process.stdout.readline()
        if not pid:
            raise RuntimeError(f"the process that workers are forked from ended with {self._process.wait(DEADLINE)}")
        return Process(int(pid))

    def end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@atexit.register
def _end_forkers() -> None:
    for forker in Forker._all.values():
        forker.end()
    Forker._all.clear()


class Workers:
    """Processes that run one function, with ranks from 0."""

    def __init__(
        self,
        target: Callable[..., Any],
        n: int,
        address: str,
        args: Sequence[Any] = (),
        env: Optional[Dict[str, str]] = None,
        framework: str = "",
    ):
        forker = Forker.of(framework or getattr(sys.modules.get(target.__module__), "FRAMEWORK", "numpy"))
        self._directory = tempfile.TemporaryDirectory()
        self._start = time.monotonic()
        self.processes: List[Process] = []
        for rank in range(n):
            environ = {
                **os.environ,
                "PYTHONPATH": os.path.join(ROOT, "python", "src") + os.pathsep + HERE,
                "RACKWEAVE_LIBRARY": LIBRARY,
                "RACKWEAVE_ADDR": address,
                "RACKWEAVE_RANK": str(rank),
                "RACKWEAVE_WORLD_SIZE": str(n),
                "RACKWEAVE_TIMEOUT": "30",
                "OMP_NUM_THREADS": "1",
                **(env or {}),
            }
            with open(self._path(rank, "args"), "wb") as f:
                pickle.dump(tuple(args), f)
            open(self._path(rank, "output"), "wb").close()  # a test may read it before the worker runs
            task = ["call", target.__module__, target.__name__, self._path(rank, "result"), self._path(rank, "args")]
            self.processes.append(forker.fork(task, environ, self._path(rank, "output")))

    def _path(self, rank: int, what: str) -> str:
        return os.path.join(self._directory.name, f"{what}{rank}")

    def output(self, rank: int) -> str:
        with open(self._path(rank, "output"), errors="replace") as f:
            return f.read()

    def wait_for(self, rank: int, text: str) -> None:
        """Waits until a worker has printed text."""
        deadline = time.monotonic() + DEADLINE
        while text not in self.output(rank):
            if time.monotonic() > deadline or self.processes[rank].poll() is not None:
                raise AssertionError(f"worker {rank} did not print {text!r}: {self.output(rank)}")
            time.sleep(0.02)

    def finish(self) -> List[Outcome]:
        """Waits for all; a worker that hangs is killed, with a stack trace in its output."""
        ended = [0.0] * len(self.processes)

        def follow(rank: int, process: Process) -> None:
            try:
                process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # faulthandler prints where it hangs
                process.wait()
            ended[rank] = time.monotonic() - self._start

        threads = [threading.Thread(target=follow, args=item) for item in enumerate(self.processes)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        outcomes = []
        for rank, process in enumerate(self.processes):
            result = error = None
            if os.path.exists(self._path(rank, "result")):
                with open(self._path(rank, "result"), "rb") as f:
                    result, error = pickle.load(f)
            outcomes.append(Outcome(process.returncode, result, error, self.output(rank), ended[rank]))
        self._directory.cleanup()
        return outcomes


def run(target: Callable[..., Any], n: int, address: str, *args: Any, env: Optional[Dict[str, str]] = None) -> List[Any]:
    """Runs workers that must succeed; returns what they did."""
    outcomes = Workers(target, n, address, args, env).finish()
    for rank, o in enumerate(outcomes):
        if o.code != 0 or o.error:
            raise AssertionError(f"worker {rank} ended with {o.code}: {o.error}\n{o.output}")
    return [o.result for o in outcomes]


def kill_one(target: Callable[..., Any], n: int, address: str, job: str) -> List[Outcome]:
    """Kills rank 1 when all workers have printed "ready"; returns how they ended, within seconds."""
    workers = Workers(target, n, address, env={"RACKWEAVE_JOB": job})
    for rank in range(n):
        workers.wait_for(rank, "ready")
    workers.processes[1].kill()
    killed = time.monotonic()
    outcomes = workers.finish()
    took = time.monotonic() - killed
    if took >= 20:
        raise AssertionError(f"the others ended {took:.1f} s after worker 1 was killed: {outcomes}")
    return outcomes


class Case(unittest.TestCase):
    """Tests that share an aggregator, with a directory for its checkpoints and for what workers exchange by files."""

    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)
        cls.aggregator = Aggregator("--checkpoint-dir", cls.directory.name)
        cls.addClassCleanup(cls.aggregator.__exit__)

    def run_workers(self, target, n, *args):
        return run(
            target,
            n,
            self.aggregator.address,
            *args,
            env={"RACKWEAVE_JOB": f"{target.__name__}-{n}-{'-'.join(a for a in args if '/' not in a)}".rstrip("-")},
        )

    def assert_ranks_equal(self, results):
        for r in results[1:]:
            np.testing.assert_array_equal(r, results[0])


def _call(module: str, function: str, result_path: str, args_path: str) -> None:
    """Runs a worker's function."""
    with open(args_path, "rb") as f:
        args = pickle.load(f)
    result = error = None
    failure: Optional[BaseException] = None
    try:
        result = getattr(importlib.import_module(module), function)(*args)
    except BaseException as e:  # reported to the test, and raised below
        error, failure = f"{type(e).__name__}: {e}", e
    with open(result_path + ".new", "wb") as f:
        pickle.dump((result, error), f)
    os.rename(result_path + ".new", result_path)
    if failure is not None:
        raise failure


def _program(path: str, *arguments: str) -> None:
    """Runs a program."""
    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")


_TASKS = {"call": _call, "program": _program}


def _requests() -> Optional[List[str]]:
    """Forks a process for each request on standard input, and returns its task in it; None at the end, in the process itself."""
    gc.freeze()  # or collecting garbage would copy its pages
    for line in sys.stdin:
        task, env, output = json.loads(line)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            worker = os.fork()
            if worker != 0:
                os.write(write, str(worker).encode())
                os._exit(0)
            os.close(read)
            os.close(write)
            _become(env, output)
            return task
        os.close(write)
        pid = os.read(read, 100).decode()
        os.close(read)
        os.waitpid(child, 0)  # the worker has its new parent then
        print(pid, flush=True)
    return None


def _become(env: Dict[str, str], output: str) -> None:
    """Makes a fork what a process would be that was started with an environment."""
    nothing, printed = os.open(os.devnull, os.O_RDONLY), os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for opened, at in ((nothing, 0), (printed, 1), (printed, 2)):
        os.dup2(opened, at)
    os.close(nothing)
    os.close(printed)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:1] = env.get("PYTHONPATH", HERE).split(os.pathsep)
    np.random.seed()
    faulthandler.enable()


_LATER = {"torch": "torch._dynamo"}  # what a framework imports at the first step: torch 2, not 1


def _main() -> None:
    importlib.import_module(sys.argv[1])
    with contextlib.suppress(ImportError):
        importlib.import_module(_LATER.get(sys.argv[1], sys.argv[1]))
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError(f"importing {sys.argv[1]} started {threads - 1} threads, which a fork lacks: do not fork its workers")
    task = _requests()
    if task is not None:
        _TASKS[task[0]](*task[1:])


if __name__ == "__main__":
    _main()
