"""Trains by gluon or Module, saves the weights. Usage: train.py OUT STEPS TASK…, a task being FRONTEND-OPTIMIZER[-OPTION]."""

import sys

import numpy as np
from common import STORE, WORKERS, data, mx, network, parameters, save, seed

import rackweave

OPTIMIZERS = {
    "sgd": ("sgd", {"learning_rate": 0.01, "momentum": 0.9, "wd": 1e-3}),
    "adam": ("adam", {"learning_rate": 0.003, "wd": 1e-3}),
    "nag": ("nag", {"learning_rate": 0.02, "momentum": 0.9, "wd": 1e-3}),
    "adagrad": ("adagrad", {"learning_rate": 0.02, "wd": 1e-3}),
    "rmsprop": ("rmsprop", {"learning_rate": 0.001, "wd": 1e-3}),
    "dcasgd": ("dcasgd", {"learning_rate": 0.05, "wd": 1e-3}),
}
BATCH = 16


def gluon(task, optimizer, option, steps):
    store = mx.kv.create(STORE)
    rank = store.rank
    seed(100 if "rackweave" not in STORE or option != "seeds" else 100 + rank)
    net = network(task.replace("-", "_") + "_")
    net.initialize(mx.init.Xavier())
    net.hybridize(static_alloc=True, static_shape=option == "static")
    name, params = OPTIMIZERS[optimizer]
    trainer = mx.gluon.Trainer(net.collect_params(), name, dict(params), kvstore=store, update_on_kvstore=option != "local")
    x, y = data(rank)
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for step in range(steps):
        at = np.arange(step * BATCH, (step + 1) * BATCH) % len(x)
        with mx.autograd.record():
            value = loss(net(mx.nd.array(x[at])), mx.nd.array(y[at]))
        value.backward()
        trainer.step(BATCH * WORKERS)
        if option == "predict" and step % 3 == 0:
            net(mx.nd.array(x[:32])).wait_to_read()
    right = (net(mx.nd.array(data(0)[0])).asnumpy().argmax(1) == data(0)[1]).mean()
    return rank, dict(parameters(net), accuracy=right)


def module(task, optimizer, option, steps):
    store = mx.kv.create(STORE)
    rank = store.rank
    seed(100)
    x, y = data(rank)
    s = mx.sym.var("data")
    s = mx.sym.Activation(mx.sym.Convolution(s, num_filter=16, kernel=(3, 3), name="c1"), act_type="relu")
    s = mx.sym.Activation(mx.sym.FullyConnected(s, num_hidden=32, name="f1"), act_type="relu")
    s = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(s, num_hidden=10, name="f2"), name="softmax")
    batches = len(x) // BATCH
    net = mx.mod.Module(s)
    name, params = OPTIMIZERS[optimizer]
    net.fit(mx.io.NDArrayIter(x, y, BATCH, label_name="softmax_label"), num_epoch=max(1, steps // batches), kvstore=store,
            optimizer=name, optimizer_params=dict(params), initializer=mx.init.Xavier())
    accuracy = net.score(mx.io.NDArrayIter(*data(0), BATCH, label_name="softmax_label"), "acc")[0][1]
    return rank, dict({k: v.asnumpy() for k, v in net.get_params()[0].items()}, accuracy=accuracy)


def push(task, optimizer, option, steps):
    """Pushes gradients in 2 bits and pulls the outcome: dist_sync itself compresses neither for a Trainer nor for Module."""
    store = mx.kv.create(STORE)
    rank = store.rank
    store.set_gradient_compression({"type": "2bit", "threshold": 0.25})
    name, params = OPTIMIZERS[optimizer]
    store.set_optimizer(mx.optimizer.create(name, **params))
    r, shapes = np.random.RandomState(rank), {"one": (7,), "two": (40, 30)}
    values = {k: mx.nd.array(np.random.RandomState(9).uniform(-1, 1, s) if rank == 0 else np.zeros(s)) for k, s in shapes.items()}
    for k, v in values.items():
        store.init(k, v)
    for step in range(steps):
        if step == steps // 2:  # what was rounded off so far is kept
            mx.nd.waitall()
            store._barrier()
            store.set_optimizer(mx.optimizer.create(name, **dict(params, learning_rate=0.5)))
            store._barrier()
            values["three"] = mx.nd.array(np.random.RandomState(8).uniform(-1, 1, (5, 5)) * (rank == 0))
            store.broadcast("three", values["three"], out=values["three"])
        for k, v in values.items():
            store.push(k, mx.nd.array(r.uniform(-0.5, 0.5, v.shape)))
            store.pull(k, out=v)
    return rank, dict({k: v.asnumpy() for k, v in values.items()}, accuracy=0.0)


def moved():
    """Returns how many bytes were exchanged so far, and how many of them were copied."""
    if "rackweave" not in STORE:
        return np.zeros(2)
    mx.nd.waitall()
    stats = rackweave.stats()
    return np.array([stats.get("sent_bytes", 0) + stats.get("received_bytes", 0), stats.get("copied_bytes", 0)])


def main():
    out, steps = sys.argv[1], int(sys.argv[2])
    for task in sys.argv[3:]:
        frontend, optimizer, *option = task.split("-")
        before = moved()
        train = {"gluon": gluon, "module": module, "push": push}[frontend]
        rank, arrays = train(task, optimizer, option[0] if option else "", steps)
        save(out, task, rank, dict(arrays, moved=moved() - before))
    print("trained")


if __name__ == "__main__":
    main()
