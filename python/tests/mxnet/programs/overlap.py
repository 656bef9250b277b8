"""Trains a net whose backward pass takes its time, for a timeline. Usage: overlap.py LAYERS STEPS."""

import sys

from common import mx, seed

import rackweave


def main():
    layers, steps = map(int, sys.argv[1:])
    store = mx.kv.create("dist_sync_rackweave")
    seed(store.rank)
    net = mx.gluon.nn.Sequential()
    net.add(*(mx.gluon.nn.Conv2D(32, 3, padding=1, activation="relu", in_channels=32, use_bias=False) for _ in range(layers)))
    net.initialize(mx.init.Xavier())
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore=store)
    x = mx.nd.random.uniform(shape=(16, 32, 32, 32))
    for _ in range(steps):
        with mx.autograd.record():
            value = net(x).mean()
        value.backward()
        trainer.step(1)
        mx.nd.waitall()
    rackweave.shutdown()


if __name__ == "__main__":
    main()
