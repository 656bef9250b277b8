"""Workers that train on rows of a Sampler by gluon's DataLoader."""

import mxnet as mx
import numpy as np
import rackweave
import rackweave.mxnet  # noqa: F401
from rackweave.data import Sampler

ROWS = 93


def train(store, loader_workers, balance):
    """Trains, and returns the rows of each epoch, and the parameters."""
    mx.random.seed(0)
    kv = mx.kv.create(store)
    net = mx.gluon.nn.Dense(1)
    net.initialize()
    net(mx.nd.zeros((1, 2)))
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01}, kvstore=kv)
    sampler = Sampler(kv, rows=ROWS, batch=8, seed=3, balance=balance)
    sampler.follow(trainer)
    features = np.stack([np.arange(ROWS), np.arange(ROWS) % 7], 1).astype("float32")
    dataset = mx.gluon.data.ArrayDataset(features)
    loader = mx.gluon.data.DataLoader(dataset, batch_sampler=sampler, num_workers=loader_workers, thread_pool=True)
    epochs = []
    for _ in range(2):
        epochs.append([])
        for x in loader:
            weight = sampler.weight
            if weight:
                epochs[-1] += x[:, 0].asnumpy().astype(int).tolist()
            with mx.autograd.record():
                value = (net(x / ROWS) ** 2).mean() * weight
            value.backward()
            trainer.step(1 if "async" in store else kv.num_workers)
    state = sampler.state_dict() if "async" not in store else {}
    sampler.close()
    mx.nd.waitall()
    parameters = [p.data().asnumpy().ravel().tolist() for p in net.collect_params().values()]
    kv._barrier()
    return epochs, parameters, state
