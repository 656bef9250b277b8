"""An optimizer's state that rank 0 alone has loaded."""

from __future__ import annotations

import unittest

import torch

import rack
import rackweave.torch
from test_torch import normed, plain, sgd, train

FRAMEWORK = "torch"
OPTIMIZERS = ("Adam", "SGD", "Adagrad")


def loaded_by_rank_0():
    torch.set_num_threads(1)
    same = []
    for name in OPTIMIZERS:
        model = plain(0, 700)  # of more than a page
        o = getattr(torch.optim, name)(model.parameters(), lr=0.01, **({"momentum": 0.9} if name == "SGD" else {}))
        if rackweave.rank() == 0:
            train(model, o, 3)
            first = next(iter(o.state.values()))
            first["integers"] = torch.arange(1000) - (1 << 62)
        rackweave.torch.broadcast_optimizer_state(o)
        mine = [(k, v) for s in o.state_dict()["state"].values() for k, v in s.items()]
        for theirs in rackweave.allgather_object(mine):
            same.append(len(mine) == len(theirs) > 0 and all(a == b and alike(x, y) for (a, x), (b, y) in zip(mine, theirs)))
    return same


def sparse_of_rank_0():
    """Returns the momentum of a sparse embedding, which is a sparse tensor, as broadcast."""
    torch.manual_seed(rackweave.rank())
    table = torch.nn.Embedding(900, 5, sparse=True)
    o = torch.optim.SGD(table.parameters(), lr=0.1, momentum=0.9)
    if rackweave.rank() == 0:
        for _ in range(2):
            table(torch.randint(0, 900, (400,))).pow(2).sum().backward()
            o.step()
    rackweave.torch.broadcast_optimizer_state(o)
    momentum = o.state[table.weight]["momentum_buffer"]
    return momentum.is_sparse, momentum.to_dense().numpy()


def alike(x, y):
    return torch.equal(torch.as_tensor(x), torch.as_tensor(y))


def wrong_uses():
    rank, model, texts = rackweave.rank(), plain(0), []
    fused = sgd((other := normed(0)).parameters())
    rackweave.torch.attach(other, fused, fused=True)
    for optimizer, root in (
        (model, 0),
        (sgd(model.parameters()), 1),
        (fused, 0),
        (torch.optim.Adam(model.parameters()) if rank else sgd(model.parameters()), 0),
        (sgd(model.parameters()) if rank else None, 0),
    ):
        try:
            rackweave.torch.broadcast_optimizer_state(optimizer, root)
        except rackweave.Error as e:
            texts.append(str(e))
    return texts


class Broadcast(rack.Case):
    def test_all_ranks_have_the_state_that_rank_0_has_loaded(self):
        for same in self.run_workers(loaded_by_rank_0, 2):
            self.assertEqual(same, [True] * 2 * len(OPTIMIZERS))

    def test_states_that_are_sparse_stay_so(self):
        results = self.run_workers(sparse_of_rank_0, 2)
        self.assertEqual([sparse for sparse, _ in results], [True, True])
        self.assert_ranks_equal([momentum for _, momentum in results])
        self.assertGreater(abs(results[0][1]).sum(), 0)

    def test_wrong_uses_are_refused_at_all_ranks(self):
        for texts in self.run_workers(wrong_uses, 2):
            self.assertEqual(len(texts), 5, texts)
            wanted = ("Optimizer", "root_rank 1", "one state for all ranks", "of Adam with groups of", "NoneType")
            for text, want in zip(texts, wanted):
                self.assertIn(want, text)


if __name__ == "__main__":
    unittest.main()
