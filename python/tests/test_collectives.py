"""Objects, and arrays of any type, over all workers."""

from __future__ import annotations

import dataclasses
import os
import time
import unittest
import unittest.mock

import numpy as np

import rack
import rackweave
from rackweave import _collectives

N = 3


def all_of_them():
    rank = rackweave.rank()
    big = os.urandom(1) * (200_000 * rank + 1)  # of several rounds, and of a byte
    rows = np.arange(2 * (rank + 1), dtype=np.int64).reshape(rank + 1, 2) + (1 << 60)
    gathered = rackweave.allgather_object({"rank": rank, "big": big})
    kept = rows.copy()
    out = {
        "root": rackweave.broadcast_object(("of", rank), root_rank=1),
        "ranks": [g["rank"] for g in gathered],
        "own": gathered[rank]["big"] == big,
        "lengths": [len(g["big"]) for g in gathered],
        "rows": rackweave.allgather(rows),
        "sum": rackweave.allreduce(np.float64(0.1) * np.ones(3) * (rank + 1), op=rackweave.Sum),
        "average": rackweave.allreduce(rank),
        "int": rackweave.allreduce(np.array([1 << 62, -rank], np.int64), op=rackweave.Min),
        "max": rackweave.allreduce(float(rank), op=rackweave.Max),
        "metrics": rackweave.average_metrics({"loss": 0.5 * rank, "accuracy": 1.0}),
        "count": rackweave.allreduce(rank > 0, op=rackweave.Sum),
        "nothing": rackweave.allgather_object(None),
        "kept": bool((rows == kept).all()),
    }
    return out


def refusals():
    rank = rackweave.rank()
    texts = []
    for call in (
        lambda: rackweave.allreduce(np.zeros(2 + rank), op=rackweave.Sum),
        lambda: rackweave.broadcast_object(1) if rank else rackweave.allgather_object(1),
        lambda: rackweave.allreduce(np.zeros(2, "f4" if rank else "f8")),
        lambda: rackweave.average_metrics({"loss" if rank else "accuracy": 1}),
        lambda: rackweave.allreduce(1, op="median"),
        lambda: rackweave.allreduce("text"),
        lambda: rackweave.broadcast_object(1, root_rank=9),
        lambda: rackweave.allgather_object((lambda: 0) if rank else 1),
        lambda: rackweave.allgather(np.array([None]) if rank else np.zeros(1)),
        lambda: rackweave.average_metrics({"loss": None if rank else 1.0}),
        lambda: list(rackweave.join(1 // 0 for _ in "x") if rank else rackweave.join([1])),
    ):
        began = time.monotonic()
        try:
            call()
        except (rackweave.Error, ZeroDivisionError) as e:
            texts.append((str(e), time.monotonic() - began))
    return texts, rackweave.allreduce(1, op=rackweave.Sum)


def uneven():
    rank = rackweave.rank()
    return list(rackweave.join(range(3 + 2 * rank))), list(rackweave.join(iter(()) if rank else [1]))


CALLS = ("allgather_object", "allreduce", "average_metrics", "broadcast_object", "join")


def one_does_not_call(name, over):
    """Rank 1 makes no call within the others' time."""
    session = rackweave.world().exchange(False)
    rackweave.barrier()
    session._bounded_by(dataclasses.replace(session.settings, timeout=1.0))
    if rackweave.rank() == 1:
        until = time.monotonic() + 30
        while not os.path.exists(over) and time.monotonic() < until:
            time.sleep(0.01)
    began = time.monotonic()
    try:
        getattr(rackweave, name)({"a": 1} if name == "average_metrics" else [1]) if name != "join" else next(rackweave.join([1]))
    except rackweave.Error as e:
        open(over, "w").close()
        return str(e), time.monotonic() - began
    return "", 0.0


def dies():
    rackweave.allgather_object(1)  # after this every rank has joined
    print("ready", flush=True)
    for _ in range(10_000 if rackweave.rank() != 1 else 3):
        rackweave.allgather_object(1)
    time.sleep(60)  # until it is killed


class Collectives(rack.Case):
    def test_all_ranks_get_what_all_gave(self):
        results = self.run_workers(all_of_them, N)
        for r in results:
            self.assertEqual(r["root"], ("of", 1))
            self.assertEqual((r["ranks"], r["own"], r["kept"]), ([0, 1, 2], True, True))
            self.assertEqual(r["lengths"], [1, 200_001, 400_001])
            want = np.concatenate([np.arange(2 * n, dtype=np.int64).reshape(n, 2) + (1 << 60) for n in (1, 2, 3)])
            np.testing.assert_array_equal(r["rows"], want)
            np.testing.assert_array_equal(r["sum"], (np.float64(0.1) * 1 + np.float64(0.1) * 2) + np.float64(0.1) * 3)
            self.assertEqual((r["average"], r["max"], r["count"]), (1.0, 2.0, 2))
            np.testing.assert_array_equal(r["int"], np.array([1 << 62, -2]))
            self.assertEqual(r["metrics"], {"loss": 0.5, "accuracy": 1.0})
            self.assertEqual(r["nothing"], [None] * N)

    def test_ranks_that_call_something_else_are_named_at_all(self):
        for texts, after in self.run_workers(refusals, 2):
            self.assertEqual(after, 2)
            for (text, took), want in zip(
                texts,
                (
                    "rank 0 called allreduce (sum) of float64 of shape (2,), and rank 1 allreduce (sum) of float64 of shape (3,)",
                    "rank 0 called allgather_object, and rank 1 broadcast_object from rank 0",
                    "of float64 of shape (2,), and rank 1 allreduce (average) of float32",
                    "average_metrics of accuracy, and rank 1 average_metrics of loss",
                    "op 'median': use rackweave.Sum",
                    "allreduce of type <U4",
                    "root_rank 9: use a rank from 0 to 1",
                    "an object of type function that does not pickle",
                    "an array of type object: use numbers, or allgather_object",
                    "average_metrics: ",
                    "by zero",
                ),
            ):
                self.assertIn(want, text)
                self.assertLess(took, 25)  # far from the 30 seconds after which it would give up
            self.assertEqual(len(texts), 11)

    def test_uneven_data_ends_with_the_shortest(self):
        for results in self.run_workers(uneven, N):
            self.assertEqual(results, ([0, 1, 2], []))

    def test_a_rank_that_does_not_call_is_named_with_the_call(self):
        jobs = {}
        for name in CALLS:
            env = {"RACKWEAVE_JOB": f"no-call-{name}"}
            over = os.path.join(self.directory.name, name)
            jobs[name] = rack.Workers(one_does_not_call, 2, self.aggregator.address, (name, over), env)
        for name, job in jobs.items():
            for outcome in job.finish():
                self.assertIsNone(outcome.error, outcome)
                text, took = outcome.result
                self.assertIn(name, text)
                self.assertIn("worker", text)
                self.assertLess(took, 25)  # 1, and not 30

    def test_a_rank_that_dies_is_an_error_at_the_others(self):
        outcomes = rack.kill_one(dies, N, self.aggregator.address, "collective-death")
        for rank in (0, 2):
            self.assertIn("JobFailedError", outcomes[rank].error)

    def test_an_error_keeps_its_type_and_what_it_knows(self):
        errors = (
            rackweave.NativeError("submit", -5),
            rackweave.ServerLostError("it is gone"),
            rackweave.RefusedError("no", "code"),
            rackweave.JobFailedError("it failed", 3),
            rackweave.WaitTimeoutError("no answer for tensor 'rackweave.heads'"),
        )
        for error in errors:
            with unittest.mock.patch.object(_collectives, "_gather", side_effect=error):
                with self.assertRaisesRegex(type(error), "a call") as caught:
                    _collectives.gather(None, "a call", b"")
            self.assertEqual(caught.exception.__dict__, error.__dict__)
            self.assertNotIn("rackweave.heads", str(caught.exception))

    def test_a_local_rank_comes_from_the_launcher(self):
        for env, want in (({"LOCAL_RANK": "3"}, 3), ({"OMPI_COMM_WORLD_LOCAL_RANK": "1"}, 1), ({"SLURM_LOCALID": "0"}, 0)):
            with unittest.mock.patch.dict(os.environ, env, clear=True):
                self.assertEqual(rackweave.local_rank(), want)
        with unittest.mock.patch.dict(os.environ, {}, clear=True):
            with self.assertRaisesRegex(rackweave.ConfigError, "LOCAL_WORLD_SIZE"):
                rackweave.local_size()


if __name__ == "__main__":
    unittest.main()
