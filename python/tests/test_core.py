"""The package without a framework: numpy arrays, settings, and what goes wrong."""

from __future__ import annotations

import array
import contextlib
import dataclasses
import gc
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import weakref
from unittest import mock

import numpy as np

import rack
import rackweave
from rackweave import __main__, _aggregators, _buffers, _host, _settings, _trace
from rackweave._control import Control

SHAPE = (300, 177)


def gradient(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype("f4")


def in_rank_order(n: int) -> np.ndarray:
    total = gradient(0)
    for k in range(1, n):
        total = total + gradient(k)
    return total


def traced(directory: str):
    """Returns what the timeline holds while this worker goes on, and after it has."""
    os.environ["RACKWEAVE_TRACE"] = directory
    path, seen, until = os.path.join(directory, f"rank-{rackweave.rank()}.json"), [], time.monotonic() + 30
    for name in ("early", "late"):
        rackweave.push_pull(np.ones(1000, np.float32), name)
        while f"pushpull {name}" not in seen and time.monotonic() < until:
            time.sleep(0.02)
            if os.path.exists(path):
                seen = timeline(path)
    rackweave.push_pull(np.ones(1000, np.float32), "last")
    rackweave.shutdown()
    return seen, timeline(path)


def timeline(path: str):
    """Lists the names of a timeline's events; empty while it is written."""
    try:
        with open(path, encoding="utf-8") as f:
            return [event["name"] for event in json.load(f)["traceEvents"]]
    except ValueError:
        return []


def out_of_step():
    w = rackweave.init(policy="ssp:s=0", timeout=60)
    s = w.session(mode="stream", optimizer="sgd_torch", hyper={"lr": 0.25, "scale": 0.5})
    t = s.register([rackweave.Tensor("w", (5000,))])[0]
    ones, params, steps = np.ones(5000, "f4"), np.zeros(5000, "f4"), 6
    for step in range(steps):
        if step == 3 and w.rank == 0:
            was = s.set_policy("ssp:s=1")
            s.report_loss(0.5)
            s.report_loss(float("nan"))
            for bad in ("ssp:z=1", "ssp:s=-1", "nothing"):
                try:
                    s.set_policy(bad)
                except rackweave.RefusedError as e:
                    assert "use 0 to" in str(e) or "did you mean" in str(e), e
                else:
                    raise AssertionError(f"{bad} was taken")
            assert was == "ssp:s=0", was
        s.push_pull(t, ones, params).wait()
        following, pull = s.end_step()
        assert following == step + 1
        assert pull or step >= 3
        if pull:
            s.pull(t, params).wait()
    s.barrier("end")
    s.pull(t, params).wait()
    assert (params == -0.125 * steps * w.world_size).all(), params
    rackweave.shutdown()
    return "ok"


def exchange():
    rackweave.init()
    rank, n = rackweave.rank(), rackweave.world_size()
    summed = gradient(rank)
    rackweave.push_pull(summed, "sum")
    average = gradient(rank)
    rackweave.push_pull(average, "mean", average=True)
    arena = np.frombuffer(rackweave.alloc(4 * SHAPE[0] * SHAPE[1]), "f4").reshape(SHAPE)
    before = rackweave.stats()["copied_bytes"]
    for _ in range(3):
        arena[:] = gradient(rank)
        rackweave.push_pull(arena, "arena")
    copied = rackweave.stats()["copied_bytes"] - before
    out = np.zeros(SHAPE, "f4")
    rackweave.push_pull(gradient(rank), "out", out=out)
    half = gradient(rank).astype("f2")
    rackweave.push_pull(half, "half")
    bits = (np.arange(1 << 16, dtype="u4") * 65521).view("f4") if rank == 0 else np.zeros(1 << 16, "f4")
    rackweave.broadcast(bits, "bits")
    plain = array.array("f", [rank, 1, 2])
    rackweave.push_pull(plain, "plain")
    handles = [rackweave.push_pull(np.full(5, rank, "f4"), f"many{i}", wait=False) for i in range(20)]
    for h in handles:
        h.wait()
    rackweave.barrier()
    assert all(h.done() for h in handles)
    return {
        "sum": np.array_equal(summed, in_rank_order(n)),
        "mean": np.array_equal(average, in_rank_order(n) * np.float32(1 / n)),
        "arena": np.array_equal(arena, in_rank_order(n)),
        "copied": copied,
        "out": np.array_equal(out, in_rank_order(n)),
        "half": half.tobytes(),
        "bits": np.array_equal(bits.view("u4"), np.arange(1 << 16, dtype="u4") * 65521),
        "plain": list(plain) == [sum(range(n)), n, 2 * n],
    }


def handlers():
    def now():
        # Signals 32 and 33 are the C library's own, which every program with threads handles.
        with open("/proc/self/status") as f:
            return [int(line.split()[1], 16) & ~(3 << 31) for line in f if line.startswith(("SigBlk", "SigIgn", "SigCgt"))]

    before = now()
    exchange()
    return before, now()


def fork_in_flight():
    rackweave.init()
    x = gradient(rackweave.rank())
    rackweave.push_pull(x, "x")
    if rackweave.rank() == 0:
        time.sleep(1)  # the others' operations are under way meanwhile
    y = gradient(rackweave.rank())
    handle = rackweave.push_pull(y, "y", wait=False)
    session = rackweave.world().exchange(False)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            session.push_pull(0, x)
            text = "no error"
        except rackweave.Error as e:
            text = f"{type(e).__name__}: {e}"
        os.write(write, text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    handle.wait()
    rackweave.push_pull(x, "x")
    return os.read(read, 1000).decode(), np.array_equal(y, in_rank_order(rackweave.world_size()))


def die_or_wait():
    rackweave.init()
    x = gradient(rackweave.rank())
    rackweave.push_pull(x, "x")
    print("ready", flush=True)
    if rackweave.rank() == 1:
        time.sleep(60)
    rackweave.push_pull(x, "x")


def late():
    rackweave.init()
    x = gradient(rackweave.rank())
    rackweave.push_pull(x, "the weight")
    session = rackweave.world().exchange(False)
    while rackweave.rank() == 1:
        session.check()
        time.sleep(0.01)
    session._bounded_by(dataclasses.replace(session.settings, timeout=2.0))
    rackweave.push_pull(x, "the weight")


def of_a_run(run: str, folder: str):
    """Sums; rank 1 of the first run joins once both ranks of the second were refused, so that the first run cannot have ended."""
    os.environ["RACKWEAVE_RUN"] = run
    rackweave.init(token="of both")
    joined, refused = os.path.join(folder, "joined"), [os.path.join(folder, "refused-%d" % r) for r in range(2)]

    def wait(*paths):
        while not all(map(os.path.exists, paths)):
            time.sleep(0.01)

    def tell_of_rank_0():
        control = Control(os.environ["RACKWEAVE_ADDR"], token="of both")
        while not control.call("Status", {}, 10).get("jobs"):
            time.sleep(0.01)
        open(joined, "w").close()

    if run == "second":
        wait(joined)
    elif rackweave.rank() == 1:
        wait(*refused)
    else:
        threading.Thread(target=tell_of_rank_0, daemon=True).start()
    x = np.full(4, {"first": 1, "second": 10}[run] + rackweave.rank(), "f4")
    try:
        rackweave.push_pull(x, "x")
    except rackweave.RefusedError as e:
        open(refused[rackweave.rank()], "w").close()
        return str(e)
    return x.tolist()


def drops_sessions(n: int):
    w = rackweave.init()
    for _ in range(n):
        s = w.session()
        x = np.ones(4, "f4")
        s.push_pull(s.register([rackweave.Tensor("x", (4,))])[0], x).wait()
    return x.tolist()


def differ():
    rackweave.init()
    rackweave.push_pull(np.zeros(10 + rackweave.rank(), "f4"), "odd one")


def join_alone():
    rackweave.init(timeout=2, world_size=3)
    rackweave.push_pull(np.zeros(4, "f4"), "x")


def no_server():
    rackweave.init("http://127.0.0.1:1")
    rackweave.push_pull(np.zeros(4, "f4"), "x")


def leave_by_exception():
    rackweave.init()
    x = np.zeros(1000, "f4")
    rackweave.push_pull(x, "x")
    if rackweave.rank() == 1:
        raise ValueError("a bug of the user's")
    rackweave.push_pull(x, "x")


def interrupted(over: str):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with it ignored
    rackweave.init()
    x = np.zeros(1000, "f4")
    rackweave.push_pull(x, "x")
    if rackweave.rank() == 1:
        while not os.path.exists(over):
            time.sleep(0.01)
        return 0.0
    start = time.monotonic()
    try:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        rackweave.push_pull(x, "x")
    except KeyboardInterrupt:
        open(over, "w").close()
        return time.monotonic() - start


def polls_and_ends():
    rackweave.init()
    x = np.ones(100000, "f4")
    if rackweave.rank() == 1:
        handle = rackweave.push_pull(x, "x", wait=False)
        while not handle.done():
            time.sleep(0.001)
        return float(x[0])
    rackweave.push_pull(x, "x")
    time.sleep(1.5)  # the other ends meanwhile
    rackweave.world().exchange(False).check()
    return float(x[0])


class Array(array.array):
    """An array that can be referred to weakly."""


def submits_a_busy_tensor():
    rackweave.init()
    x = Array("f", [1.0] * 1000)
    rackweave.push_pull(x, "x")
    if rackweave.rank() == 1:
        time.sleep(1)
        rackweave.push_pull(x, "x")
        return True
    alive = weakref.ref(x)
    handle = rackweave.push_pull(x, "x", wait=False)
    try:
        rackweave.push_pull(array.array("f", [2.0] * 1000), "x", wait=False)
    except rackweave.Error:
        del x
        gc.collect()
        kept = alive() is not None
        handle.wait()
        return kept


class Exchange(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.aggregator = rack.Aggregator()
        cls.addClassCleanup(cls.aggregator.__exit__)

    def test_four_workers_get_the_bits_of_a_sum_in_rank_order(self):
        for provider in ("shm", "tcp"):
            with self.subTest(provider):
                env = {"RACKWEAVE_JOB": "exchange-" + provider, "RACKWEAVE_PROVIDER": provider}
                results = rack.run(exchange, 4, self.aggregator.address, env=env)
                for r in results:
                    for what in ("sum", "mean", "arena", "out", "bits", "plain"):
                        self.assertTrue(r[what], what)
                    self.assertEqual(r["half"], results[0]["half"])
                    if provider == "shm":
                        self.assertEqual(r["copied"], 0)

    def test_a_timeline_grows_while_its_worker_runs(self):
        with tempfile.TemporaryDirectory() as directory:
            for seen, whole in rack.run(traced, 2, self.aggregator.address, directory, env={"RACKWEAVE_JOB": "traced"}):
                self.assertEqual(seen[0], "process_name")
                self.assertEqual(seen[1:], ["pushpull early"] * 2 + ["pushpull late"] * 2)
                self.assertEqual(whole, [*seen, "pushpull last", "pushpull last"])

    def test_two_runs_under_one_name_never_add_each_others_gradients(self):
        with tempfile.TemporaryDirectory() as folder:
            env = {"RACKWEAVE_JOB": "two-runs"}
            first, second = (rack.Workers(of_a_run, 2, self.aggregator.address, [run, folder], env) for run in ("first", "second"))
            sums, refused = ([o.result for o in workers.finish()] for workers in (first, second))
        self.assertEqual(sums, [[3.0] * 4] * 2)
        for text in refused:
            self.assertIn('is of run "first"', str(text))
            self.assertIn("set RACKWEAVE_JOB", str(text))

    def test_sessions_that_nobody_refers_to_leave_their_jobs(self):
        env = {"RACKWEAVE_JOB": "dropped"}
        for x in rack.run(drops_sessions, 2, self.aggregator.address, 200, env=env):
            self.assertEqual(x, [2.0] * 4)

    def test_workers_of_mode_stream_end_their_own_steps(self):
        for provider in ("shm", "tcp"):
            env = {"RACKWEAVE_JOB": "stream-" + provider, "RACKWEAVE_PROVIDER": provider}
            self.assertEqual(rack.run(out_of_step, 3, self.aggregator.address, env=env), ["ok"] * 3)

    def test_no_signal_handler_or_mask_changes(self):
        for before, after in rack.run(handlers, 2, self.aggregator.address, env={"RACKWEAVE_JOB": "handlers"}):
            self.assertEqual(before, after)

    def test_fork_with_operations_in_flight_leaves_the_parent_alone(self):
        for text, right in rack.run(fork_in_flight, 2, self.aggregator.address, env={"RACKWEAVE_JOB": "fork"}):
            self.assertIn("ForkedError", text)
            self.assertIn("rackweave.init()", text)
            self.assertTrue(right)

    def test_a_worker_that_dies_is_an_error_at_every_rank_within_seconds(self):
        outcomes = rack.kill_one(die_or_wait, 3, self.aggregator.address, "death")
        for r in (0, 2):
            self.assertIn("JobFailedError", outcomes[r].error)
            self.assertIn("worker 1", outcomes[r].error)

    def test_a_rank_that_is_late_is_named_with_the_tensor(self):
        outcomes = rack.Workers(late, 2, self.aggregator.address, env={"RACKWEAVE_JOB": "late"}).finish()
        self.assertIn("WaitTimeoutError", outcomes[0].error)
        self.assertIn("'the weight'", outcomes[0].error)
        self.assertIn("rank 1", outcomes[0].error)
        self.assertIn("JobFailedError", outcomes[1].error)

    def test_ranks_that_declare_different_tensors_are_told_which(self):
        for o in rack.Workers(differ, 2, self.aggregator.address, env={"RACKWEAVE_JOB": "differ"}).finish():
            self.assertIn("odd one", o.error)

    def test_a_join_in_vain_names_the_missing_ranks(self):
        (o,) = rack.Workers(join_alone, 1, self.aggregator.address, env={"RACKWEAVE_JOB": "alone"}).finish()
        self.assertIn("WaitTimeoutError", o.error)
        self.assertRegex(o.error, "1, 2|1 and 2")

    def test_an_exception_in_one_rank_ends_the_others_with_its_text(self):
        outcomes = rack.Workers(leave_by_exception, 2, self.aggregator.address, env={"RACKWEAVE_JOB": "exception"}).finish()
        self.assertIn("JobFailedError", outcomes[0].error)
        self.assertIn("a bug of the user's", outcomes[0].error)

    def test_a_worker_that_polled_its_operation_leaves_in_peace(self):
        outcomes = rack.Workers(polls_and_ends, 2, self.aggregator.address, env={"RACKWEAVE_JOB": "polls"}).finish()
        self.assertEqual([o.result for o in outcomes], [2.0, 2.0], [o.error for o in outcomes])

    def test_memory_of_an_operation_is_kept_when_another_of_its_tensor_is_refused(self):
        outcomes = rack.Workers(submits_a_busy_tensor, 2, self.aggregator.address, env={"RACKWEAVE_JOB": "busy"}).finish()
        self.assertEqual([o.result for o in outcomes], [True, True], [o.error for o in outcomes])

    def test_ctrl_c_ends_a_wait(self):
        with tempfile.TemporaryDirectory() as directory:
            over = os.path.join(directory, "over")
            waited, _ = rack.run(interrupted, 2, self.aggregator.address, over, env={"RACKWEAVE_JOB": "interrupt"})
        self.assertLess(waited, 25)  # far from the 30 seconds after which it would give up


class Faults(unittest.TestCase):
    def test_without_an_aggregator_the_address_and_the_remedy_are_named(self):
        (o,) = rack.Workers(no_server, 1, "").finish()
        for text in ("ServerLostError", "127.0.0.1:1", "rackweave serve"):
            self.assertIn(text, o.error)

    def test_an_aggregator_that_is_killed_is_an_error_at_every_rank(self):
        with rack.Aggregator() as aggregator:
            workers = rack.Workers(die_or_wait, 2, aggregator.address, env={"RACKWEAVE_JOB": "kill"})
            for r in range(2):
                workers.wait_for(r, "ready")
            aggregator.kill()
            workers.processes[1].send_signal(signal.SIGTERM)  # it sleeps
            outcomes = workers.finish()
            self.assertIn("ServerLostError", outcomes[0].error)

    def test_a_library_of_another_version_is_refused(self):
        for library, text in ((os.path.join(rack.HERE, "nowhere.so"), "make lib"), ("libc.so.6", "same release")):
            (o,) = rack.Workers(no_server, 1, "", env={"RACKWEAVE_LIBRARY": library}).finish()
            self.assertIn("LibraryError", o.error)
            self.assertIn(text, o.error)

    def test_a_library_with_another_major_version_of_the_c_interface_is_refused(self):
        with tempfile.TemporaryDirectory() as directory:
            library = os.path.join(directory, rackweave._lib.SONAME)
            source = f"unsigned rw_abi_version(void) {{ return {rackweave._lib.ABI_MAJOR + 1}u << 16 | 3; }}"
            subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=source, text=True, check=True)
            (o,) = rack.Workers(no_server, 1, "", env={"RACKWEAVE_LIBRARY": library}).finish()
        for text in ("LibraryError", library, f"version {rackweave._lib.ABI_MAJOR + 1}.3", "of the same release"):
            self.assertIn(text, o.error)

    def test_racks_are_awaited_once_the_ranks_of_the_own_are_there(self):
        racks = [{"name": "a", "own": True, "awaitedChunks": "1"}, {"name": "b", "awaitedChunks": "2"}, {"name": "c"}]
        for chunks, text in (("0", "; the aggregator waits for rack 'b'"), ("3", "; the aggregator waits for rank 1")):
            job = {"members": [{}, {"rank": 1, "awaitedChunks": chunks}], "racks": racks}
            with mock.patch.object(_aggregators.Aggregators, "status", return_value=[job]):
                self.assertEqual(_aggregators.Aggregators.__new__(_aggregators.Aggregators).awaited("j", 0), text)


class Timeline(unittest.TestCase):
    def test_a_directory_that_cannot_be_written_is_told_of_once(self):
        said = io.StringIO()
        with mock.patch.dict(os.environ, {"RACKWEAVE_TRACE": "/dev/null/there"}), mock.patch.object(
            _trace, "_broken", False, create=True
        ), contextlib.redirect_stderr(said):
            for _ in range(3):
                _trace.write(0)
        self.assertEqual(said.getvalue().count("name a directory that can be written"), 1, said.getvalue())


class Settings(unittest.TestCase):
    def test_settings_of_a_wrong_type_are_named(self):
        for given, text in (
            ({"timeout": "5"}, "timeout is '5': give seconds"),
            ({"rank": "0"}, "rank is '0': give a whole number"),
            ({"address": 5}, "address is 5: give a string"),
            ({"token": b"secret"}, "token is of type bytes: give a string"),
        ):
            with self.assertRaisesRegex(rackweave.ConfigError, text):
                _settings.read({"RACKWEAVE_ADDR": "aggregator:7077", "RANK": "0", "WORLD_SIZE": "2"}, **given)
        with self.assertRaisesRegex(rackweave.ConfigError, "without a path"):
            _settings.read({"RACKWEAVE_ADDR": "http://aggregator:7077/path", "RANK": "0", "WORLD_SIZE": "2"})

    def test_ranks_are_read_from_what_launchers_set(self):
        base = {"RACKWEAVE_ADDR": "aggregator:7077"}
        for env, rank, size in (
            ({"RACKWEAVE_RANK": "1", "RACKWEAVE_WORLD_SIZE": "2", "RANK": "5", "WORLD_SIZE": "8"}, 1, 2),
            ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, 5, 8),
            ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, 3, 4),
            ({"PMI_RANK": "3", "PMI_SIZE": "4"}, 3, 4),
            ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_JOB_ID": "77"}, 0, 16),
            ({"DMLC_WORKER_ID": "2", "DMLC_NUM_WORKER": "3", "DMLC_ROLE": "worker"}, 2, 3),
        ):
            s = _settings.read({**base, **env})
            self.assertEqual((s.rank, s.world_size, s.address), (rank, size, "http://aggregator:7077"))
        self.assertEqual(_settings.read({**base, "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_ID": "77"}).job, "77")

    def test_a_run_is_told_from_others_by_what_launchers_set(self):
        base = {"RACKWEAVE_ADDR": "aggregator:7077", "RANK": "0", "WORLD_SIZE": "2"}
        at = {"MASTER_ADDR": "node-1", "MASTER_PORT": "29500"}
        for env, job, run in (
            ({}, "default", ""),
            (at, "default", "node-1:29500"),
            ({**at, "TORCHELASTIC_RUN_ID": "none"}, "default", "node-1:29500"),
            ({**at, "TORCHELASTIC_RUN_ID": "resnet"}, "resnet", "node-1:29500"),
            ({**at, "RACKWEAVE_RUN": "x"}, "default", "x"),
            ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}, "7", "7:1"),
            ({**at, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}, "7", "7:1 node-1:29500"),
            ({**at, "MASTER_ADDR": "127.0.0.1"}, "default", f"127.0.0.1:29500 {_host.identity()}"),
        ):
            s = _settings.read({**base, **env})
            self.assertEqual((s.job, s.run), (job, run))

    def test_a_token_goes_in_clear_to_another_host_only_if_told(self):
        rank = {"RANK": "0", "WORLD_SIZE": "1", "RACKWEAVE_TOKEN": "secret"}
        for address, insecure, goes in (
            ("http://127.0.0.1:1", "", True),
            ("http://localhost:1", "", True),
            ("http://[::1]:1", "", True),
            ("https://192.0.2.1:1", "", True),
            ("http://192.0.2.1:1", "1", True),
            ("http://192.0.2.1:1", "", False),
            ("192.0.2.1:1", "0", False),
            ("192.0.2.1:1", "maybe", False),
            ("http://127.0.0.1.page.example:1", "", False),
        ):
            s = _settings.read({**rank, "RACKWEAVE_ADDR": address, "RACKWEAVE_INSECURE": insecure})
            Control(s.address, token="", insecure=s.insecure)
            if goes:
                Control(s.address, s.ca, s.token, s.insecure)
                continue
            with self.assertRaises(rackweave.ConfigError) as caught:
                Control(s.address, s.ca, s.token, s.insecure)
            self.assertIn("use https://", str(caught.exception))
            self.assertNotIn("secret", str(caught.exception))

    def test_what_is_missing_or_wrong_is_named_with_a_remedy(self):
        rank = {"RACKWEAVE_RANK": "0", "RACKWEAVE_WORLD_SIZE": "2"}
        for env, text in (
            ({"RACKWEAVE_ADDR": "aggregator"}, "rackweave run"),
            (rank, "RACKWEAVE_ADDR"),
            ({**rank, "RACKWEAVE_ADDR": "ftp://aggregator"}, "http://aggregator:7077"),
            ({**rank, "RACKWEAVE_ADDR": "http://aggregator:99999"}, "http://aggregator:99999"),
            ({**rank, "RACKWEAVE_ADDR": "aggregator:port"}, "http://aggregator:port"),
            ({**rank, "RACKWEAVE_ADDR": "aggregator", "RACKWEAVE_RANK": "2"}, "rank 2 of 2"),
            ({**rank, "RACKWEAVE_ADDR": "aggregator", "RACKWEAVE_RANK": "two"}, "RACKWEAVE_RANK is 'two'"),
            ({**rank, "RACKWEAVE_ADDR": "aggregator", "RACKWEAVE_TIMEOUT": "0"}, "timeout of 0"),
            ({**rank, "RACKWEAVE_ADDR": "aggregator", "RACKWEAVE_TOKEN": "secret\n"}, "printable ASCII"),
            ({**rank, "RACKWEAVE_ADDR": "aggregator", "RACKWEAVE_TOKEN": "secrét"}, "printable ASCII"),
        ):
            with self.assertRaises(rackweave.ConfigError) as caught:
                _settings.read(env)
            self.assertIn(text, str(caught.exception))
            self.assertNotIn("secr", str(caught.exception))

    def test_an_aggregator_is_asked_also_by_one_that_has_no_rank(self):
        with mock.patch.dict(os.environ, {"RACKWEAVE_ADDR": "http://127.0.0.1:1"}, clear=True):
            found = __main__.found()
        self.assertIn("rank is unknown", found["settings_error"])
        self.assertIn("is it running", found["aggregators"]["http://127.0.0.1:1"])

    def test_the_status_says_whether_the_aggregator_can_be_used(self):
        for env, status in ({}, 0), ({"RACKWEAVE_ADDR": "http://127.0.0.1:1"}, 1), ({"RACKWEAVE_ADDR": "ftp://a"}, 1):
            with mock.patch.dict(os.environ, env), mock.patch.object(sys, "argv", ["rackweave"]):
                with contextlib.redirect_stdout(io.StringIO()):
                    self.assertEqual(__main__.main(), status, env)


class Buffers(unittest.TestCase):
    def test_memory_is_found_without_a_copy(self):
        a = np.arange(6, dtype="f4").reshape(2, 3)

        class DLPackOnly:
            def __init__(self, array):
                self._array = array

            def __dlpack__(self, **_):
                return self._array.__dlpack__()

            def __dlpack_device__(self):
                return self._array.__dlpack_device__()

        for x in (a, memoryview(a), DLPackOnly(a)):
            b = _buffers.as_buffer(x)
            self.assertEqual((b.address, b.shape, b.dtype, b.nbytes, b.writable), (a.ctypes.data, (2, 3), "f32", 24, True))
        scalar = np.zeros((), "f2")
        self.assertEqual(_buffers.as_buffer(scalar).shape, ())
        self.assertEqual(_buffers.as_buffer(a[1:]).address, a.ctypes.data + 12)

    def test_what_cannot_be_exchanged_is_refused_by_name(self):
        read_only = np.zeros(3, "f4")
        read_only.flags.writeable = False
        self.assertFalse(_buffers.as_buffer(read_only).writable)
        for x, text in (
            (np.zeros((4, 4), "f4").T[:2], "not contiguous"),
            (np.zeros(4, "f8"), "<f8"),
            (np.zeros(4, "i4"), "float32"),
            (b"1234", "use float32"),
            ("text", "offers no memory"),
            ([1.0], "offers no memory"),
        ):
            with self.assertRaises(rackweave.TensorError) as caught:
                _buffers.as_buffer(x, "w")
            self.assertIn(text, str(caught.exception))
            self.assertIn("'w'", str(caught.exception))


if __name__ == "__main__":
    sys.exit(unittest.main())
