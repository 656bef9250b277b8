"""Times a torch DataLoader whose rows rackweave.data deals, against one with torch's own sampler.

    rackweave run -n 1 -- python3 python/bench/data_loader.py
    rackweave run -n 1 -- python3 python/bench/data_loader.py --workers 2

Both load every row of the same data set once, in batches, by turns. Each batch is done when it was loaded, as if a step took none.
A ratio above 1 means that the dealt loader is faster. The last line has the median of the rounds. What a batch costs more does not
depend on what a row costs: with --side 64 rows cost so little that it shows.
"""

from __future__ import annotations

import argparse
import statistics
import time
import zlib

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

import rackweave.data


class Images(Dataset):
    """Images that are kept compressed, all the same one."""

    def __init__(self, rows: int, side: int) -> None:
        smooth = torch.rand(3, 1, side) + torch.rand(3, side, 1) + 0.05 * torch.rand(3, side, side)
        self.rows, self.shape = rows, smooth.shape
        self.packed = zlib.compress((smooth * 120).byte().numpy().tobytes())

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int):
        pixels = torch.frombuffer(bytearray(zlib.decompress(self.packed)), dtype=torch.uint8)
        return pixels.view(self.shape).float().div_(255), row % 10


def seconds(loader: DataLoader, after) -> float:
    start = time.perf_counter()
    for _ in loader:
        after()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1600)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--side", type=int, default=224, help="of an image")
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
    more = [args.batch * (1 / r["rackweave.data"] - 1 / r["torch's sampler"]) for r in rates[1:]]
    print(
        f"rackweave.data loads at {statistics.median(ratios):.3f} of the local loader's rate, and takes "
        f"{1e6 * statistics.median(more):.0f} us more for a batch; medians of {args.rounds} rounds"
    )


if __name__ == "__main__":
    main()
