"""rackweave.data: which rows workers train on, by torch's DataLoader."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
import unittest

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import rack
import rackweave
import rackweave.torch
from rackweave.data import Sampler

FRAMEWORK = "torch"
ROWS = 157


class Numbers(Dataset):
    """A data set whose rows are their numbers."""

    def __init__(self, rows: int = ROWS) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int):
        return row, torch.tensor([float(row % 7), 1.0])


def train(loader_workers: int, way: str, epochs: int):
    """Trains, and returns the rows of each epoch and the sums of weights * rows."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    attached = rackweave.torch.attach(model, optimizer, fused=way == "fused")
    sampler = Sampler(attached, rows=ROWS, batch=8, seed=3, deal="fixed" if way == "fixed" else "queue")
    loader = DataLoader(Numbers(), batch_sampler=sampler, num_workers=loader_workers)
    if way != "by hand":
        sampler.follow(optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    rows = []
    for epoch in range(epochs):
        rows.append([])
        for ids, x in loader:
            assert sampler.epoch == epoch
            if sampler.weight:
                rows[-1] += ids.tolist()
            optimizer.zero_grad()
            (model(x).square().mean() * sampler.weight).backward()
            optimizer.step()
            if way == "by hand":
                sampler.done()
        scheduler.step()
        assert sampler.over
    assert len(loader) == -(-ROWS // (8 * rackweave.world_size()))
    attached.detach()
    return rows, [p.detach().numpy().copy() for p in model.parameters()]


def stream(path: str):
    """Trains in a stream, and returns its rows. Rank 1 keeps them in a file, and stops with batches in hand."""
    session = rackweave.world().session(mode="stream", optimizer="sgd_torch", policy="asp", hyper={"lr": 1.0})
    session.register([rackweave.Tensor("counts", (ROWS,))])
    counts = np.zeros(ROWS, "float32")
    session.broadcast(0, counts).wait()

    def step(ids: torch.Tensor) -> None:
        gradient = np.zeros(ROWS, "float32")
        gradient[ids.numpy()] = -1
        session.push_pull(0, gradient, counts).wait()
        session.end_step()
        sampler.done()

    sampler = Sampler(session, rows=ROWS, batch=8, ahead=3)
    loader = DataLoader(Numbers(), batch_sampler=sampler, num_workers=2)
    rows = []
    if session.rank == 1:
        for ids, _ in loader:
            if len(rows) >= 16:
                break
            rows += ids.tolist()
            step(ids)
        sampler.flush()
        with open(os.path.join(path, "rows"), "w") as f:
            json.dump(rows, f)
        print("ready", flush=True)
        time.sleep(rack.DEADLINE)
    while not os.path.exists(os.path.join(path, "killed")):
        time.sleep(0.01)
    while not sampler.over:
        for ids, _ in loader:
            rows += ids.tolist()
            step(ids)
    session.pull(0, counts).wait()
    return rows, counts.tolist()


def count(path: str, resume: str, steps: int):
    """Trains parameters that count how often each row was applied, and returns them when the epoch is over.

    resume: from a checkpoint of the aggregator, which has the rows (rows) or leaves them to a state_dict (state); or not.
    """
    session = rackweave.world().session(mode="eager", optimizer="sgd_torch", hyper={"lr": 1.0})
    session.register([rackweave.Tensor("counts", (ROWS,))])
    counts = np.zeros(ROWS, "float32")
    session.broadcast(0, counts).wait()
    sampler = Sampler(session, rows=ROWS, batch=8, seed=5)
    if resume:
        session.barrier("begin")
        if session.rank == 0:
            session.restore("middle")
        session.barrier("restored")
        session.pull(0, counts).wait()
    if resume == "state":
        with open(os.path.join(path, "state")) as f:
            sampler.load_state_dict(json.load(f))
    for step, (ids, _) in enumerate(DataLoader(Numbers(), batch_sampler=sampler, num_workers=2)):
        gradient = np.zeros(ROWS, "float32")
        gradient[ids.numpy()] = -1 if sampler.weight else 0
        session.push_pull(0, gradient, counts).wait()
        sampler.done()
        if step == 3 and not resume:
            session.barrier("before")
            if session.rank == 0:
                session.save("middle")
                with open(os.path.join(path, "state"), "w") as f:
                    json.dump(sampler.state_dict(), f)
            session.barrier("after")
        if step == steps:
            print("ready", flush=True)
            time.sleep(rack.DEADLINE)
    session.barrier("end")
    return counts.tolist()


def both():
    """Begins with a sampler, and goes on with another of the same set.

    Returns the rows that were done, and the first one's error.
    """
    first, second = Sampler(rows=ROWS, batch=8), Sampler(rows=ROWS, batch=8)
    rows, batches = [], iter(first)
    for _ in range(3):
        rows += next(batches)
        first.done()
    next(batches)  # in hand
    for batch in second:
        rackweave.barrier()
        rows += batch
        second.done()
    try:
        next(batches)
    except rackweave.ClosedError as e:
        return rows, f"{type(e).__name__}: {e}"


class Arguments(unittest.TestCase):
    def test_wrong_ones_are_named_with_a_remedy(self):
        for name, value, remedy in (
            ("rows", 0, "give one of them"),
            ("rows", -1, "from 0 to"),
            ("rows", 1.5, "whole number"),
            ("batch", 0, "from 1 to"),
            ("batch", True, "whole number"),
            ("seed", -1, "from 0 to"),
            ("ahead", 257, "from 1 to 256"),
            ("favour", math.nan, "from 0 to 10"),
            ("favour", math.inf, "from 0 to 10"),
            ("digest", "xy", "hexadecimal"),
            ("manifest", "m", "give one of them"),
            ("deal", 1, "a string"),
            ("balance", 1, "True or False"),
            ("at", 5, "give a session"),
        ):
            with self.subTest(name=name, value=value):
                with self.assertRaisesRegex(rackweave.ConfigError, f"(?s){name} .*{remedy}"):
                    Sampler(**{"rows": 10, name: value})


class Faults(rack.Case):
    def test_rows_of_a_killed_worker_of_a_stream_are_trained_on_once(self):
        with tempfile.TemporaryDirectory() as path:
            workers = rack.Workers(stream, 2, self.aggregator.address, [path], {"RACKWEAVE_JOB": "killed"})
            workers.wait_for(1, "ready")
            workers.processes[1].kill()
            open(os.path.join(path, "killed"), "w").close()
            outcomes = workers.finish()
            self.assertIsNone(outcomes[0].error, outcomes[0])
            with open(os.path.join(path, "rows")) as f:
                first = json.load(f)
        self.assertEqual(len(first), 16)
        rows, counts = outcomes[0].result
        self.assertEqual(sorted(first + rows), list(range(ROWS)))
        self.assertEqual(len(set(counts)), 1, counts)

    def test_a_job_killed_in_an_epoch_applies_each_row_once_from_its_checkpoint_on(self):
        with tempfile.TemporaryDirectory() as path:
            env = {"RACKWEAVE_JOB": "counted"}
            workers = rack.Workers(count, 2, self.aggregator.address, [path, "", 6], env)
            for rank in range(2):
                workers.wait_for(rank, "ready")
            for process in workers.processes:
                process.kill()
            workers.finish()
            for way in ("rows", "state"):
                for counts in rack.run(count, 2, self.aggregator.address, path, way, -1, env=env):
                    self.assertEqual(counts, [1.0] * ROWS, way)

    def test_of_two_samplers_of_a_set_the_first_says_so_and_reports_nothing(self):
        (rows, error), = rack.run(both, 1, self.aggregator.address, env={"RACKWEAVE_JOB": "both"})
        self.assertEqual(sorted(rows), list(range(ROWS)))
        self.assertRegex(error, "ClosedError: set 'train' is dealt to another Sampler of this session: give each a set")


class Loaders(rack.Case):
    def test_workers_train_on_each_row_of_an_epoch_once(self):
        for n, loader_workers, way in ((1, 0, "by hand"), (2, 2, "follow"), (4, 0, "follow"), (2, 2, "fixed"), (2, 0, "fused")):
            with self.subTest(n=n, loader_workers=loader_workers, way=way):
                env = {"RACKWEAVE_JOB": f"once-{n}-{way}".replace(" ", "-")}
                results = rack.run(train, n, self.aggregator.address, loader_workers, way, 2, env=env)
                orders = []
                for epoch in range(2):
                    orders.append([rows[epoch] for rows, _ in results])
                    self.assertEqual(sorted(sum(orders[-1], [])), list(range(ROWS)))
                self.assertNotEqual(*orders)
                for _, parameters in results:
                    for a, b in zip(parameters, results[0][1]):
                        self.assertEqual(a.tolist(), b.tolist())


if __name__ == "__main__":
    unittest.main()
