"""rackweave.data: which rows workers train on, by torch's DataLoader."""

from __future__ import annotations

import os
import tempfile
import time
import unittest

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

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
