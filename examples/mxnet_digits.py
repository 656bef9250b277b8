"""Trains a convolutional network on handwritten digits with gluon.

    rackweave run -n 4 -- python3 examples/mxnet_digits.py               # gradients and optimizer through RackWeave
    rackweave run -n 4 -- python3 examples/mxnet_digits.py --dist-sync   # through MXNet's own dist_sync, with one server
    rackweave run -n 4 -- python3 examples/mxnet_digits.py --data queue  # with rows that the aggregator deals

The same script runs under mpirun and srun with RACKWEAVE_ADDR set. The digits come with scikit-learn.
"""

import argparse
import os
import subprocess
import sys
import time

import numpy as np
from sklearn.datasets import load_digits


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--dist-sync", action="store_true", help="train with MXNet's own kvstore, for comparison")
    ways.add_argument("--data", choices=("shards", "queue"), default="shards", help="of a worker: its share, or the next rows")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--width", type=int, default=4096, help="of the hidden layer, which holds most of what is exchanged")
    return parser.parse_args()


def start_dist_sync():
    """Makes this process a worker of dist_sync; the first also starts its scheduler and its server."""
    os.environ.update(DMLC_PS_ROOT_URI="127.0.0.1", DMLC_PS_ROOT_PORT=os.environ["MASTER_PORT"], DMLC_NODE_HOST="127.0.0.1",
                      DMLC_NUM_SERVER="1", DMLC_NUM_WORKER=os.environ["WORLD_SIZE"])  # fmt: skip
    if os.environ["RANK"] == "0":
        for role in ("scheduler", "server"):
            subprocess.Popen([sys.executable, "-c", "import mxnet"], env=dict(os.environ, DMLC_ROLE=role))
    os.environ["DMLC_ROLE"] = "worker"


def digits():
    """Returns the training and the test set: every fifth image is for the test."""
    images, labels = load_digits(return_X_y=True)
    x, y = (images / 16.0).reshape(-1, 1, 8, 8).astype(np.float32), labels.astype(np.float32)
    test = np.arange(len(x)) % 5 == 0
    return (x[~test], y[~test]), (x[test], y[test])


def network(nn, width):
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(32, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"),
        nn.Conv2D(64, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(),
        nn.Dense(width, activation="relu"), nn.Dense(10),
    )  # fmt: skip
    return net


def main():
    args = arguments()
    if args.dist_sync:
        start_dist_sync()
        import mxnet as mx

        store = "dist_sync"
    else:
        import mxnet as mx
        import rackweave.data
        import rackweave.mxnet  # noqa: F401  <-- the one changed line, with the store's name below

        store = "dist_sync_rackweave"
    kv = mx.kv.create(store)
    mx.random.seed(1)

    net = network(mx.gluon.nn, args.width)
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True)
    (x, y), (test_x, test_y) = digits()
    batch = 32
    share = len(x) // kv.num_workers // batch  # batches of each worker, in each epoch
    optimizer = {"learning_rate": 0.05, "momentum": 0.9, "wd": 1e-4}
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", optimizer, kvstore=kv)
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    if args.data == "queue":
        sampler = rackweave.data.Sampler(kv, rows=len(x), batch=batch, seed=1)  # <-- the one line for rows
        sampler.follow(trainer)

    start, steps, images = 0.0, 0, 0  # that are timed
    for epoch in range(args.epochs):
        order = np.random.RandomState(epoch).permutation(len(x))[kv.rank :: kv.num_workers]
        for chosen in sampler if args.data == "queue" else np.split(order[: share * batch], share):
            weight = sampler.weight if args.data == "queue" else 1.0  # of a batch that is smaller than other workers'
            with mx.autograd.record():
                value = loss(net(mx.nd.array(x[chosen])), mx.nd.array(y[chosen])).mean() * weight
            value.backward()
            trainer.step(kv.num_workers)
            if not start:  # the first step sets up: it is not timed
                mx.nd.waitall()
                start = time.perf_counter()
            else:
                steps, images = steps + 1, images + len(chosen)
    mx.nd.waitall()
    seconds = time.perf_counter() - start

    accuracy = (net(mx.nd.array(test_x)).asnumpy().argmax(1) == test_y).mean()
    if kv.rank == 0:
        way = "dist_sync" if args.dist_sync else "RackWeave"
        print(
            f"{way:>9}: {kv.num_workers} workers, {steps} steps of {1000 * seconds / steps:.1f} ms, "
            f"{images * kv.num_workers / seconds:.0f} images/s, test accuracy {100 * accuracy:.2f} %"
        )
        if not args.dist_sync:
            moved = rackweave.stats()
            share = moved["copied_bytes"] / (moved["sent_bytes"] + moved["received_bytes"])
            print(f"           {100 * (1 - share):.1f} % of the bytes were exchanged where they lay, uncopied")
    kv._barrier()


if __name__ == "__main__":
    main()
