"""Workers that something goes wrong for; each is a process of its own, run by rack.py."""

import os
import time

import numpy as np

import rackweave
import rackweave.mxnet
import mxnet as mx


def steps(kv, n, at=None):
    """Exchanges until it fails; calls at before each step."""
    array = mx.nd.ones((5000,))
    for step in range(n):
        if at:
            at(step)
        kv.pushpull("g", array)
        array.wait_to_read()
        if step == 2:
            print("under way", flush=True)
        time.sleep(0.01)


def store():
    return mx.kv.create("dist_sync_rackweave")


def one_dies(rank):
    kv = store()

    def at(step):
        if step == 5 and kv.rank == rank:
            os._exit(7)

    steps(kv, 100000, at)


def one_is_late(rank):
    kv = store()
    array = mx.nd.ones((1000,))
    kv.pushpull("g", array)
    array.wait_to_read()
    if kv.rank == rank:
        time.sleep(6)
    kv.pushpull("g", array)
    array.wait_to_read()


def goes_on():
    steps(store(), 100000)


def models_differ():
    kv = store()
    kv.pushpull("weight", mx.nd.ones((10 + kv.rank,)))


def types_differ():
    kv = store()
    kv.pushpull("weight", mx.nd.ones((10,), dtype="float16" if kv.rank else "float32"))


def optimizers_differ():
    kv = store()
    kv.set_optimizer(mx.optimizer.create("adam" if kv.rank else "sgd"))
    kv.broadcast("weight", mx.nd.ones((10,)), out=mx.nd.ones((10,)))


def learning_rates_differ():
    kv = store()
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.1 * (1 + kv.rank)))
    array = mx.nd.ones((10,))
    kv.broadcast("weight", array, out=array)
    kv.pushpull("weight", array, out=array)
    array.wait_to_read()


def no_aggregator():
    store().pushpull("g", mx.nd.ones((10,)))


def gradients_are_left_under_way():
    """Ends without having waited."""
    kv, array = store(), mx.nd.ones((100000,))
    for _ in range(20):
        kv.pushpull("g", array)
    return float(np.float32(1))
