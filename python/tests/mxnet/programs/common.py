"""What the training programs share."""

import os
import sys

import numpy as np

STORE = os.environ.get("TEST_KVSTORE", "dist_sync_rackweave")
if "rackweave" in STORE:
    import rackweave.mxnet  # noqa: F401  (the one changed line)
import mxnet as mx

if os.environ.get("DMLC_ROLE", "worker") != "worker":  # a fork of a process that imported MXNet, which asks this then
    mx.kvstore.kvstore_server._init_kvstore_server_module()

RANK = int(os.environ.get("DMLC_WORKER_ID", os.environ.get("RACKWEAVE_RANK", "-1")))
WORKERS = int(os.environ.get("DMLC_NUM_WORKER", os.environ.get("RACKWEAVE_WORLD_SIZE", "1")))


def data(rank, size=512, seed=7):
    """Returns a worker's share of a small classification problem: images of 8x8 pixels and their classes."""
    r = np.random.RandomState(seed)
    x = r.uniform(-1, 1, (size, 1, 8, 8)).astype(np.float32)
    y = (x.reshape(size, 64) @ r.normal(size=(64, 10))).argmax(1).astype(np.float32)
    return x[rank::WORKERS], y[rank::WORKERS]


def network(prefix="net_"):
    """Returns a convolutional net with BatchNorm, and layers that learn their shape from the first batch.

    Its activations are smooth: a kink would blow up the last bits, in which sums of another order differ.
    """
    net = mx.gluon.nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(mx.gluon.nn.Conv2D(16, 3, padding=1, activation="tanh"))
        net.add(mx.gluon.nn.BatchNorm())
        net.add(mx.gluon.nn.Conv2D(16, 3, activation="tanh"))
        net.add(mx.gluon.nn.Dense(32, activation="tanh"), mx.gluon.nn.Dense(10))
    return net


def seed(value):
    mx.random.seed(value)
    np.random.seed(value)


def save(out, task, rank, arrays):
    np.savez(os.path.join(out, f"{task}.{rank}.npz"), **arrays)


def parameters(net):
    return {p.name: p.data().asnumpy() for p in net.collect_params().values() if p.grad_req != "null"}
