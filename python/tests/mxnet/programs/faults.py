"""Workers that something goes wrong for; each is a process of its own, run by rack.py."""

import os
import signal
import time

import numpy as np
from common import data, mx, network

import rackweave


def steps(kv, n):
    """Exchanges until it fails."""
    array = mx.nd.ones((5000,))
    for step in range(n):
        kv.pushpull("g", array)
        array.wait_to_read()
        if step == 2:
            print("under way", flush=True)
        time.sleep(0.01)


def store():
    return mx.kv.create("dist_sync_rackweave")


def one_dies(rank):
    """Trains; one worker is killed in the middle of the second epoch."""
    kv, batch = store(), 16
    x, y = data(kv.rank)
    net = network("dies_")
    net.initialize(mx.init.Xavier())
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", kvstore=kv)
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for epoch in range(1000):
        for at in range(0, len(x), batch):
            if epoch == 1 and at == 5 * batch and kv.rank == rank:
                os.kill(os.getpid(), signal.SIGKILL)
            with mx.autograd.record():
                value = loss(net(mx.nd.array(x[at : at + batch])), mx.nd.array(y[at : at + batch]))
            value.backward()
            trainer.step(batch * kv.num_workers)
            value.wait_to_read()


def one_is_late(rank):
    kv = store()
    array = mx.nd.ones((1000,))
    kv.pushpull("g", array)
    array.wait_to_read()
    if kv.rank == rank:
        time.sleep(6)
    kv.pushpull("g", array)
    array.wait_to_read()  # it returns, and says nothing
    kv.pull("g", array)


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
    kv.close()


def trained(units, batch):
    net = mx.gluon.nn.Dense(units, in_units=2, prefix="net_")
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore=store())
    with mx.autograd.record():
        out = net(mx.nd.ones((1, 2)))
    out.backward()
    trainer.step(batch)
    rackweave.mxnet.detach(trainer)


def models_of_trainers_differ():
    trained(units=1 + rackweave.rank(), batch=1)


def batches_differ():
    trained(units=1, batch=1 + rackweave.rank())


def one_has_nan(rank):
    kv = store()
    array = mx.nd.ones((5000,))
    for step in range(1000):
        if step == 3 and kv.rank == rank:
            array[4321] = float("nan")
        kv.pushpull("g", array, out=mx.nd.ones((5000,)))
        mx.nd.waitall()


def ends_without_a_result(rank):
    """Exchanges for the last time, with a worker that dies, and looks at nothing."""
    kv = store()
    array = mx.nd.ones((1000,))
    kv.pushpull("g", array)
    array.wait_to_read()
    if kv.rank == rank:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    kv.pushpull("g", array)


def no_aggregator():
    store().pushpull("g", mx.nd.ones((10,)))


def gradients_are_left_under_way():
    """Ends without having waited."""
    kv, array = store(), mx.nd.ones((100000,))
    for _ in range(20):
        kv.pushpull("g", array)
    return float(np.float32(1))
