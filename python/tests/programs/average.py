"""Trains a little with rackweave.torch and prints the rank and a digest of the weights: the same for whoever starts it.

Given the word group it trains in DistributedDataParallel, with a process group.
"""

import hashlib
import os
import sys

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

import rackweave.torch

GROUP = sys.argv[1:] == ["group"]

torch.set_num_threads(1)
torch.manual_seed(rackweave.rank())
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
if GROUP:
    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(model)
model = rackweave.torch.ddp(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(5):
    optimizer.zero_grad()
    model(torch.full((4, 16), step + rackweave.rank() + 1.0)).sum().backward()
    optimizer.step()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
os.write(1, f"rank {rackweave.rank()} of {rackweave.world_size()}: {digest}\n".encode())  # in one piece
if GROUP:
    torch.distributed.destroy_process_group()
