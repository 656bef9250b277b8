"""Times a training step without any exchange, through torch's own Gloo, and in the three ways of RackWeave.

    rackweave run -n 4 -- python3 python/bench/torch_ddp.py

All ways train the same model in the same processes, by turns: a block of steps each, several rounds. A step is zero_grad, forward,
backward and the optimizer's step. Times are medians of the rounds' milliseconds per step at the slowest rank; the ratios to a step
without exchange are medians of the rounds' own, so that what else the machine does meanwhile touches all ways alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Callable, Dict, List, Sequence, Tuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import rackweave.torch

CLASSES = 10
ROWS = 1_000_000


def perceptron(width: int, layers: int) -> torch.nn.Module:
    hidden = [layer for _ in range(layers) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*hidden, torch.nn.Linear(width, CLASSES))


def convolutional() -> torch.nn.Module:
    """The network of examples/torch_digits.py."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, CLASSES),
    )  # fmt: skip


def deep() -> torch.nn.Module:
    """Much to compute and little to send."""
    convolutions = [torch.nn.Conv2d(3 if i == 0 else 64, 64, 3, padding=1) for i in range(4)]
    layers = [layer for c in convolutions for layer in (c, torch.nn.BatchNorm2d(64), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, CLASSES))


class Ids(torch.nn.Module):
    """Turns a batch into numbers of rows, different ones in each step."""

    step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        return ((x.abs() * ROWS).long() + 7919 * self.step) % ROWS


def embedding() -> torch.nn.Module:
    """Returns a sparse table. Each rank touches one of a hundred rows."""
    return torch.nn.Sequential(Ids(), torch.nn.EmbeddingBag(ROWS, 64, mode="sum", sparse=True), torch.nn.Linear(64, CLASSES))


WAYS = ("none", "Gloo", "ddp", "attach", "fused")
attached: List[object] = []  # an exchange ends with it


# For each network what makes it, the shape of one sample, and the samples of a rank's batch.
NETWORKS: Dict[str, Tuple[Callable[[], torch.nn.Module], Tuple[int, ...], int]] = {
    "mlp-small": (lambda: perceptron(64, 1), (64,), 32),
    "conv": (convolutional, (1, 8, 8), 32),
    "conv-deep": (deep, (3, 16, 16), 8),
    "mlp-4mb": (lambda: perceptron(512, 4), (512,), 16),
    "mlp-17mb": (lambda: perceptron(1024, 4), (1024,), 16),
    "mlp-67mb": (lambda: perceptron(2048, 4), (2048,), 16),
    "embedding": (embedding, (20,), 500),
}


def stepper(name: str, way: str) -> Callable[[], None]:
    """Returns a step of training a network."""
    make, shape, size = NETWORKS[name]
    torch.manual_seed(dist.get_rank())
    model = make()
    if way in ("Gloo", "ddp"):
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if way == "ddp":
        model = rackweave.torch.ddp(model)
    elif way in ("attach", "fused"):
        attached.append(rackweave.torch.attach(model, optimizer, fused=way == "fused"))
    x, y = torch.randn(size, *shape), torch.randint(0, CLASSES, (size,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def timed(step: Callable[[], None], steps: int) -> float:
    """Returns the milliseconds per step of a block, at the slowest rank."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    took = torch.tensor([1000 * (time.perf_counter() - start) / steps])
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item()


def compare(name: str, ways: Sequence[str], rounds: int, seconds: float) -> Dict[str, List[float]]:
    """Returns the rounds' times of each way."""
    steps = {way: stepper(name, way) for way in ways}
    for step in steps.values():
        timed(step, 5)  # buckets are made anew, and memory settles
    count = max(3, int(1000 * seconds / max(timed(step, 5) for step in steps.values())))
    times: Dict[str, List[float]] = {way: [] for way in ways}
    for turn in range(rounds):
        for way in ways if turn % 2 == 0 else reversed(ways):
            times[way].append(timed(steps[way], count))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=0.4, help="of each way in each round, about")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    first = args.ways[0]
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} workers, torch {torch.__version__}, {args.rounds} rounds by turns")
        print(f"ms per step, and over {first}'s")
        print(f"{'network':>10} {'MB':>6} {first:>9} " + " ".join(f"{way:>16}" for way in args.ways[1:]), flush=True)
    for name in args.networks:
        megabytes = 4e-6 * sum(p.numel() for p in NETWORKS[name][0]().parameters())
        times = compare(name, args.ways, args.rounds, args.seconds)
        if dist.get_rank() == 0:
            row = f"{name:>10} {megabytes:6.1f} {statistics.median(times[first]):9.2f}"
            for way in args.ways[1:]:
                ratio = statistics.median(b / a for a, b in zip(times[first], times[way]))
                row += f" {statistics.median(times[way]):9.2f} {ratio:5.2f}x"
            print(row, flush=True)
    dist.barrier()  # rank 0 keeps the others' rendezvous


if __name__ == "__main__":
    main()
