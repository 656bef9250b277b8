"""Runs an aggregator and worker processes for tests.

A worker is a function of a test module, run in a process of its own: it returns something that pickles, or raises.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import pickle
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


class Workers:
    """Processes that run one function, with ranks from 0."""

    def __init__(
        self, target: Callable[..., Any], n: int, address: str, args: Sequence[Any] = (), env: Optional[Dict[str, str]] = None
    ):
        self._directory = tempfile.TemporaryDirectory()
        self._start = time.monotonic()
        self.processes: List[subprocess.Popen] = []
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
            command = [
                sys.executable,
                os.path.join(HERE, "rack.py"),
                target.__module__,
                target.__name__,
                self._path(rank, "result"),
            ]
            with open(self._path(rank, "args"), "wb") as f:
                pickle.dump(tuple(args), f)
            with open(self._path(rank, "output"), "w") as output:
                self.processes.append(
                    subprocess.Popen([*command, self._path(rank, "args")], env=environ, stdout=output, stderr=output)
                )

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

        def follow(rank: int, process: subprocess.Popen) -> None:
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


def _main() -> None:
    import faulthandler

    faulthandler.enable()
    module, function, result_path, args_path = sys.argv[1:]
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


if __name__ == "__main__":
    _main()
