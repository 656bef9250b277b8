"""Times a torch DataLoader whose rows rackweave.data deals, against one with torch's own sampler.

    rackweave run -n 1 -- python3 python/bench/data_loader.py
    rackweave run -n 1 -- python3 python/bench/data_loader.py --workers 2

Both load every row of the same data set once, in batches, by turns. Each batch is done when it was loaded, as if a step took none.
A ratio above 1 means that the dealt loader is faster. The last line has the median of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

import rackweave.data


class Images(Dataset):
    """Images that are made by a little arithmetic, as decoding does."""

    def __init__(self, rows: int, side: int) -> None:
        self.rows, self.base = rows, torch.rand(3, side, side)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int):
        return (self.base * (row % 255) - 0.5).clamp_(0, 1), row % 10


def seconds(loader: DataLoader, after) -> float:
    start = time.perf_counter()
    for _ in loader:
        after()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=6400)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--side", type=int, default=64, help="of an image")
    parser.add_argument("--workers", type=int, default=0, help="processes that load")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dataset = Images(args.rows, args.side)
    own = DataLoader(dataset, batch_sampler=BatchSampler(RandomSampler(dataset), args.batch, False), num_workers=args.workers)
    sampler = rackweave.data.Sampler(rows=len(dataset), batch=args.batch)
    dealt = DataLoader(dataset, batch_sampler=sampler, num_workers=args.workers)
    ways = [("torch's sampler", own, lambda: None), ("rackweave.data", dealt, sampler.done)]
    rates = []
    for i in range(args.rounds + 1):  # the first sets up
        rates.append({name: args.rows / seconds(loader, after) for name, loader, after in ways})
        ways.reverse()  # what another program of the machine takes hits both
        if i > 0:
            print(f"round {i}: " + ", ".join(f"{name} {rate:.0f} rows/s" for name, rate in sorted(rates[i].items())))
    ratios = [r["rackweave.data"] / r["torch's sampler"] for r in rates[1:]]
    print(f"rackweave.data loads at {statistics.median(ratios):.3f} of the local loader's rate, median of {args.rounds} rounds")


if __name__ == "__main__":
    main()
