"""Trains a convolutional network on handwritten digits with DistributedDataParallel.

    rackweave run -n 4 -- python3 examples/torch_digits.py               # gradients through RackWeave
    rackweave run -n 4 -- python3 examples/torch_digits.py --gloo        # through torch's own Gloo
    rackweave run -n 4 -- python3 examples/torch_digits.py --attach      # without DistributedDataParallel
    rackweave run -n 4 -- python3 examples/torch_digits.py --fused       # the same, with the optimizer at the aggregator
    rackweave run -n 4 -- python3 examples/torch_digits.py --data queue  # with rows that the aggregator deals

The same script runs under torchrun with RACKWEAVE_ADDR set, and under mpirun and srun if RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT are set as torch's process group needs them. The digits come with scikit-learn.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

import rackweave.data
import rackweave.torch


def digits():
    """Returns the training and the test set: every fifth image is for the test."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images / 16.0, dtype=torch.float32).view(-1, 1, 8, 8)
    y = torch.tensor(labels)
    test = torch.arange(len(x)) % 5 == 0
    return TensorDataset(x[~test], y[~test]), TensorDataset(x[test], y[test])


def network():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10),
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--gloo", action="store_true", help="average gradients with Gloo, for comparison")
    ways.add_argument("--attach", action="store_true", help="exchange the gradients of the plain network")
    ways.add_argument("--fused", action="store_true", help="as --attach, with the optimizer at the aggregator")
    parser.add_argument("--data", choices=("shards", "queue"), default="shards", help="of a worker: its share, or the next rows")
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")

    plain = network()
    model = plain if args.attach or args.fused else DistributedDataParallel(plain)
    if model is not plain and not args.gloo:
        model = rackweave.torch.ddp(model)  # <-- the one changed line

    train, test = digits()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    if model is plain:
        rackweave.torch.attach(model, optimizer, fused=args.fused)  # <-- or this one, without DistributedDataParallel
    shares = DistributedSampler(train, shuffle=True)
    sampler = BatchSampler(shares, 32, drop_last=False)
    if args.data == "queue":
        sampler = rackweave.data.Sampler(rows=len(train), batch=32, seed=1)  # <-- the one line for rows
        sampler.follow(optimizer)
    loader = DataLoader(train, batch_sampler=sampler)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=args.epochs * len(loader), cycle_momentum=False)
    start, steps = time.perf_counter(), 0
    for epoch in range(args.epochs):
        shares.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            weight = sampler.weight if args.data == "queue" else 1.0  # of a batch that is smaller than other workers'
            (F.cross_entropy(model(x), y) * weight).backward()
            optimizer.step()
            scheduler.step()
            steps += 1
    seconds = time.perf_counter() - start

    model.eval()
    with torch.no_grad():
        x, y = test.tensors
        accuracy = (plain(x).argmax(1) == y).float().mean().item()
    if dist.get_rank() == 0:
        way, step = "Gloo" if args.gloo else "RackWeave", 1000 * seconds / steps
        print(f"{way:>9}: {dist.get_world_size()} workers, {steps} steps of {step:.1f} ms, test accuracy {100 * accuracy:.2f} %")
        if not args.gloo:
            moved = rackweave.stats()
            share = 1 - moved["copied_bytes"] / (moved["sent_bytes"] + moved["received_bytes"])
            print(f"           {100 * share:.1f} % of the bytes to and from the aggregator were not copied here")
    dist.barrier()  # rank 0 keeps the others' rendezvous


if __name__ == "__main__":
    main()
