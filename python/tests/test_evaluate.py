"""An evaluator beside a job: it captures the parameters of running steps, and reports losses."""

from __future__ import annotations

import functools
import os
import tempfile
import time
import unittest
from unittest import mock

import numpy as np

import rack
import rackweave
from rackweave import _evaluate

SHAPES = {"weight": (300, 70), "bias": (70,), "scale": ()}
JOB = {"job": "evaluated", "token": "secret", "timeout": 20.0}
ENV = {"RACKWEAVE_TOKEN": "secret", "RACKWEAVE_JOB": "evaluated"}


def gradient(rank: int, step: int, name: str) -> np.ndarray:
    draw = np.random.default_rng([rank, step, sorted(SHAPES).index(name)])
    return np.asarray(draw.standard_normal(SHAPES[name]), "f4")


def trained(until: str, stops: tuple, mode: str = "eager", options: dict = {}):
    """Trains until a file is there, and reads the state where it stops at some steps."""
    session = rackweave.init().session(mode=mode, optimizer="adam_torch", **options)
    numbers = session.register([rackweave.Tensor(n, s) for n, s in SHAPES.items()])
    states, last = {}, max(stops, default=0)
    step = 0
    while step < last or not stops:
        step += 1
        gradients = [gradient(session.rank, step, n) for n in SHAPES]
        handles = [session.push_pull(t, g, np.empty(g.shape, "f4")) for t, g in zip(numbers, gradients)]
        for h in handles:
            h.wait()
        time.sleep(0.002)
        if stops and step in stops:
            session.barrier(f"stop-{step}")
            states[step] = [session.read_state(t, 0) for t in numbers]
            session.barrier(f"go-{step}")
        if not stops and step % 50 == 0:  # rank 0 sees the file, and all end alike
            end = np.array([float(os.path.exists(until)) if session.rank == 0 else 0.0], "f4")
            rackweave.push_pull(end, "end")
            if end[0]:
                break
    return states


def failing():
    session = rackweave.init().session(mode="eager", optimizer="sgd_torch")
    (t,) = session.register([rackweave.Tensor("w", (3,))])
    for _ in range(4):
        session.push_pull(t, np.ones(3, "f4"), np.empty(3, "f4")).wait()
        time.sleep(0.1)
    raise RuntimeError("out of memory")


def fused(until: str):
    import torch

    import rackweave.torch

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rackweave.torch.attach(model, optimizer, fused=True)
    while not os.path.exists(until):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.002)


class EvaluateTest(unittest.TestCase):
    def _captured(self, aggregators: list, workers: int, mode: str = "eager", **options) -> None:
        address = ",".join(a.address for a in aggregators)
        with tempfile.TemporaryDirectory() as folder:
            until, got = os.path.join(folder, "until"), {}

            def function(step: int, parameters: dict) -> object:
                got[step] = [np.array(parameters[n]) for n in SHAPES]
                if len(got) == 5:
                    open(until, "w").close()
                return {"loss": 1.0 / step, "groups": [0.5]} if len(got) % 2 else None

            running = rack.Workers(trained, workers, address, (until, (), mode, options), ENV)
            count = rackweave.evaluate(function, address=address, **JOB)
            for outcome in running.finish():
                self.assertIsNone(outcome.error, outcome.output)
        self.assertGreaterEqual(count, 5)
        stops = tuple(sorted(got))
        env = {**ENV, "RACKWEAVE_JOB": "stopped"}
        for states in rack.run(trained, workers, address, "", stops, mode, options, env=env):
            for step in stops:
                self.assertEqual([x.tobytes() for x in got[step]], states[step], f"step {step}")

    def test_what_it_evaluates_is_what_a_stopped_run_has(self) -> None:
        with rack.Aggregator() as a:
            self._captured([a], 2)

    def test_it_asks_all_aggregators_of_a_job(self) -> None:
        with rack.Aggregator("--cores", "1") as a, rack.Aggregator("--cores", "1") as b:
            self._captured([a, b], 2)

    def test_it_ends_with_the_job(self) -> None:
        with rack.Aggregator() as a:
            running = rack.Workers(failing, 1, a.address, (), ENV)
            with self.assertRaisesRegex(rackweave.JobFailedError, "out of memory|is gone|gave up"):
                rackweave.evaluate(lambda step, parameters: None, every=0.05, address=a.address, **JOB)
            running.finish()
            with self.assertRaisesRegex(rackweave.RefusedError, "no job here has this token"):
                rackweave.evaluate(lambda step, parameters: None, address=a.address, **{**JOB, "timeout": 0.5})

    def test_it_follows_a_job_that_goes_back_to_a_checkpoint(self) -> None:
        asked, at = [], iter([90, None, 4, None, None])

        def capture(controls: list, job: str, step: int, timeout: float) -> tuple:
            asked.append(step)
            now = next(at)
            if now is None:
                raise rackweave.WaitTimeoutError("no such step in time")
            return now, {}

        evaluate = functools.partial(rackweave.evaluate, lambda step, parameters: None, address="http://127.0.0.1:1", job="j")
        with mock.patch.object(_evaluate, "_capture", capture):
            with self.assertRaises(rackweave.WaitTimeoutError):
                evaluate(steps=10)
        self.assertEqual(asked, [0, 100, 0, 14, 0])

    def test_what_a_function_may_return_is_named(self) -> None:
        for told in ("abc", [1, 2], {}, {"los": 1.0}, {"loss": None}, {"groups": 3}, {"loss": 1.0, "groups": [None]}):
            with self.assertRaisesRegex(rackweave.ConfigError, "for step 7: return a number, None, or a dict"):
                _evaluate._report(mock.Mock(), "j", 7, told, 1)

    def test_it_takes_parameters_by_the_names_of_a_module(self) -> None:
        with rack.Aggregator() as a, tempfile.TemporaryDirectory() as folder:
            until, names = os.path.join(folder, "until"), []

            def function(step: int, parameters: dict) -> float:
                names.append({n: x.shape for n, x in parameters.items()})
                if len(names) == 2:
                    open(until, "w").close()
                return float(parameters["0.bias"].sum())

            running = rack.Workers(fused, 1, a.address, (until,), ENV, framework="torch")
            rackweave.evaluate(function, address=a.address, **JOB)
            for outcome in running.finish():
                self.assertIsNone(outcome.error, outcome.output)
        shapes = {"0.weight": (3, 4), "0.bias": (3,), "1.weight": (3,), "1.bias": (3,), "2.weight": (1, 3), "2.bias": (1,)}
        self.assertEqual(names[-1], shapes)


if __name__ == "__main__":
    unittest.main()
