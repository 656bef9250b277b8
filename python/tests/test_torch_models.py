"""What becomes of models after rackweave.torch has them: copies, pickles, static graphs, many of them, and wrong ones."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import unittest

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import rack
import rackweave
import rackweave.torch
from test_torch import batch, gloo, normed, plain, sgd, train, weights

FRAMEWORK = "torch"
MANY = 70  # more than an aggregator serves jobs


def static_graphs(store: str):
    gloo(store)
    rank = rackweave.rank()

    def said_later():
        model = DistributedDataParallel(plain(rank))
        model._set_static_graph()
        return rackweave.torch.ddp(model)

    results = []
    for make in (
        lambda: rackweave.torch.ddp(plain(rank)),
        lambda: rackweave.torch.ddp(plain(rank), static_graph=True),
        lambda: rackweave.torch.ddp(plain(rank), static_graph=True, bucket_cap_mb=0.05),
        lambda: rackweave.torch.ddp(DistributedDataParallel(plain(rank), static_graph=True)),
        said_later,
    ):
        model = make()
        results.append(train(model, sgd(model.parameters())))
        rackweave.torch.detach(model)
    return results


def copies():
    torch.set_num_threads(1)
    model = normed(rackweave.rank())
    o = sgd(model.parameters())
    attached = rackweave.torch.attach(model, o)
    train(model, o, 2)
    average = torch.optim.swa_utils.AveragedModel(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    older = "weights_only" not in torch.load.__code__.co_varnames
    loaded = torch.load(file) if older else torch.load(file, weights_only=False)
    alone = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), average.module, loaded]
    same = [np.array_equal(weights(m), weights(model)) for m in alone]
    before = attached.stats()["sent_bytes"]
    if rackweave.rank() == 0:  # copies exchange nothing, so that one rank can train them
        for m in alone:
            train(m, sgd(m.parameters()), 1)
    sent = attached.stats()["sent_bytes"] - before
    train(model, o, 2)
    average.update_parameters(model)
    # Parameters alone: running means are each rank's own after the last forward.
    return same, sent, torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy()


def left_out():
    """Layer 0 is used by all ranks, 1 by rank 1 alone, 2 by none."""
    torch.set_num_threads(1)
    model = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])
    rackweave.torch.attach(model, find_unused_parameters=True)
    x = model[0](torch.ones(2, 4))
    (model[1](x) if rackweave.rank() == 1 else x).sum().backward()
    return [layer.weight.grad is None for layer in model], model[1].bias.grad.numpy().copy()


def many():
    torch.set_num_threads(1)
    for i in range(MANY):
        model = torch.nn.Linear(4, 2)
        if i % 2:
            model = rackweave.torch.ddp(model)
        else:
            rackweave.torch.attach(model)
        model(torch.ones(1, 4)).sum().backward()
        del model
        gc.collect()
    return True


def wrong_uses():
    def refusal(use):
        try:
            use()
        except (rackweave.Error, ValueError) as e:
            return str(e)
        return "nothing was refused"

    attach = rackweave.torch.attach
    twice = torch.nn.Linear(4, 2)
    attached = attach(twice)
    texts = {
        "'weight' is attached already: call detach()": refusal(lambda: attach(twice)),
        "use rackweave.torch.ddp(model)": refusal(lambda: attach(rackweave.torch.ddp(torch.nn.Linear(4, 2)))),
        "parameter '0.weight' of module '0' has sparse gradients": refusal(
            lambda: attach(torch.nn.Sequential(torch.nn.Embedding(4, 2, sparse=True)))
        ),
        "tensor 'weight' is of type torch.float64": refusal(lambda: attach(torch.nn.Linear(4, 2).double())),
        "give what rackweave.torch.ddp or attach returned": refusal(lambda: rackweave.torch.stats(twice)),
    }
    attached.detach()
    attach(twice).detach()
    return texts


def counts_nonfinite():
    model = rackweave.torch.ddp(torch.nn.Linear(4, 2))
    with np.testing.suppress_warnings() as warned:
        log = warned.record(UserWarning, ".* holds NaN or infinity")
        for _ in range(2):
            F.cross_entropy(model(torch.full((1, 4), float("nan"))), torch.tensor([0])).backward()
    return rackweave.torch.stats(model)["nonfinite"] > 0, len(log)


class Models(rack.Case):
    def test_a_static_graph_trains_as_any_other(self):
        for results in self.run_workers(static_graphs, 2, self.directory.name + "/static"):
            self.assert_ranks_equal(results)

    def test_copies_and_pickles_are_models_of_their_own(self):
        results = self.run_workers(copies, 2)
        for same, sent, _ in results:
            self.assertEqual((same, sent), ([True] * 4, 0))
        self.assert_ranks_equal([trained for _, _, trained in results])

    def test_a_parameter_that_no_rank_used_has_no_gradient(self):
        for rank, (none, grad) in enumerate(self.run_workers(left_out, 2)):
            self.assertEqual(none, [False, False, True], f"rank {rank}")
            np.testing.assert_array_equal(grad, np.full(4, 1.0, np.float32))

    def test_models_that_are_dropped_leave_their_jobs(self):
        self.assertEqual(self.run_workers(many, 2), [True, True])

    def test_wrong_uses_are_refused_with_the_remedy(self):
        for want, text in self.run_workers(wrong_uses, 1)[0].items():
            with self.subTest(want):
                self.assertIn(want, text)

    def test_gradients_that_are_not_finite_are_counted_and_told_of_once(self):
        self.assertEqual(self.run_workers(counts_nonfinite, 1), [(True, 1)])


if __name__ == "__main__":
    unittest.main()
