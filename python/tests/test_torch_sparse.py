"""rackweave.torch with sparse gradients, against torch's own DistributedDataParallel over Gloo, and against one process.

Gloo adds up sparse gradients in the order of ranks, as the aggregator does, so sums have the same bits with any number of ranks.
"""

from __future__ import annotations

import contextlib
import os
import threading
import unittest

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import rack
import rackweave
import rackweave.torch
from test_torch import apart, gloo, weights

FRAMEWORK = "torch"
STEPS = 10
ROWS, TAGS, WIDTH = 300, 40, 6


class Words(torch.nn.Module):
    """Sparse embeddings: with padding, in bags, shared by two modules, of a width that no vector has, and frozen."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words = torch.nn.Embedding(ROWS, WIDTH, padding_idx=3, sparse=True)
        self.frozen = torch.nn.Embedding(TAGS, WIDTH, sparse=True)
        self.frozen.weight.requires_grad_(False)
        self.tags = torch.nn.EmbeddingBag(TAGS, WIDTH, mode="sum", sparse=True)
        self.again = torch.nn.Embedding(ROWS, WIDTH, sparse=True)
        self.again.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        held = self.words(ids).sum(1) + self.frozen(ids % TAGS).sum(1)
        return torch.tanh(held + self.again(ids[:, :2]).sum(1) + self.tags(ids % TAGS))


def bounded(seed: int) -> torch.nn.Module:
    """Forward bounds the rows that a rank touches, so that ranks' tables part, in torch as here."""
    torch.manual_seed(seed)
    return torch.nn.Embedding(ROWS, WIDTH, max_norm=1.5, sparse=True)


def words_and_layers(seed: int) -> torch.nn.Module:
    words = Words(seed)
    return torch.nn.Sequential(words, torch.nn.Linear(WIDTH, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def batch(step: int, rank: int) -> torch.Tensor:
    """Returns ids. Some repeat, within a bag and among ranks."""
    g = torch.Generator().manual_seed(1000 * step + rank)
    return (torch.rand(8, 5, generator=g) ** 3 * ROWS).long()


class Both:
    """Optimizers side by side: one for what has sparse gradients, one for the rest."""

    def __init__(self, model: torch.nn.Module) -> None:
        trained = [p for p in model.parameters() if p.requires_grad]
        embeds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
        sparse = {id(m.weight) for m in model.modules() if isinstance(m, embeds)}
        self.all = [torch.optim.SparseAdam([p for p in trained if id(p) in sparse], lr=0.01)]
        rest = [p for p in trained if id(p) not in sparse]
        if rest:
            self.all.append(torch.optim.Adam(rest, lr=0.01))

    def zero_grad(self) -> None:
        for o in self.all:
            o.zero_grad()

    def step(self) -> None:
        for o in self.all:
            o.step()


def trained(model: torch.nn.Module):
    return [p for p in model.parameters() if p.requires_grad]


OPTIMIZERS = {
    "sgd": lambda m: torch.optim.SGD(trained(m), lr=0.1),
    "momentum": lambda m: torch.optim.SGD(trained(m), lr=0.1, momentum=0.9, dampening=0.1),
    "nesterov": lambda m: torch.optim.SGD(trained(m), lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda m: torch.optim.Adagrad(trained(m), lr=0.1),
    "sparse adam": lambda m: torch.optim.SparseAdam(trained(m), lr=0.01),
    "both": Both,
}


def train(model, optimizer, steps=STEPS, first=0, no_sync=None):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        if no_sync:
            with no_sync():
                model(batch(step + 500, rackweave.rank())).pow(2).sum().backward()
        model(batch(step, rackweave.rank())).pow(2).sum().backward()
        optimizer.step()
    return weights(model)


def same_as_ddp(store: str):
    gloo(store)
    rank, results = rackweave.rank(), {}
    cases = [("both", words_and_layers), ("momentum", words_and_layers), ("sgd", bounded)]
    if rack.LONG or rackweave.world_size() == 2:
        cases += [(n, Words) for n in OPTIMIZERS]
    for name, make in cases:
        for accumulating in (False, True):
            ways = results[name, make.__name__, accumulating] = {}
            model = DistributedDataParallel(make(rank))
            ways["gloo"] = train(model, OPTIMIZERS[name](model), no_sync=model.no_sync if accumulating else None)
            model = rackweave.torch.ddp(DistributedDataParallel(make(rank), bucket_cap_mb=0.0001))
            ways["ddp"] = train(model, OPTIMIZERS[name](model), no_sync=model.no_sync if accumulating else None)
            rackweave.torch.detach(model)
            model = make(rank)
            attached = rackweave.torch.attach(model)
            ways["attach"] = train(model, OPTIMIZERS[name](model), no_sync=attached.no_sync if accumulating else None)
            attached.detach()
    return results


def gradient(model: torch.nn.Module, ids) -> torch.Tensor:
    """Returns the gradient of an embedding's first parameter, coalesced, as backward leaves it."""
    model.zero_grad()
    held = model(torch.tensor(ids, dtype=torch.int64))
    (held * torch.arange(1.0, held.numel() + 1).view(held.shape)).sum().backward()
    return next(model.parameters()).grad


def of_all_ranks(ids):
    """Returns in one process what ranks with these ids get: sums in the order of ranks."""
    sums = [gradient(torch.nn.Embedding(20, 3, sparse=True), i).coalesce() for i in ids]
    total = sums[0]
    for s in sums[1:]:
        total = total + s
    return (total / len(ids)).coalesce()


# Ids of each of two ranks, by step: Gloo of PyTorch 1.13 fails the process when a rank has none.
UNEVEN = [([1, 5, 1], []), ([], [0]), ([], []), ([19], [19]), (list(range(20)), [7, 7])]


def made(way: str, model: torch.nn.Module):
    """Returns what exchanges a model's gradients, and what to call for it."""
    if way == "ddp":
        return (wrapped := rackweave.torch.ddp(model)), wrapped
    return rackweave.torch.attach(model), model


def uneven():
    torch.set_num_threads(1)
    results = []
    for way in ("ddp", "attach"):
        handle, model = made(way, torch.nn.Embedding(20, 3, sparse=True))
        for ids in UNEVEN:
            grad = gradient(model, ids[rackweave.rank()])
            results.append((grad.is_coalesced(), grad._indices().numpy().copy(), grad._values().numpy().copy()))
        rackweave.torch.detach(handle)
    return results


def uneven_fused():
    """Returns the table after each step, before which other gradients were pushed and dropped."""
    torch.set_num_threads(1)
    model = torch.nn.Embedding(20, 3, sparse=True)
    o = torch.optim.SGD(model.parameters(), lr=1.0)
    attached = rackweave.torch.attach(model, o, fused=True)
    tables = [model.weight.detach().clone().numpy()]
    for ids in UNEVEN:
        gradient(model, [3, 3 + rackweave.rank()])
        attached.skip_step()
        gradient(model, ids[rackweave.rank()])
        o.step()
        tables.append(model.weight.detach().clone().numpy())
    return tables


def not_finite():
    torch.set_num_threads(1)
    counts, results = [], []
    for way in ("ddp", "attach"):
        table = torch.nn.Embedding(20, 3, sparse=True)
        handle, model = made(way, table)
        held = model(torch.tensor([2 + rackweave.rank(), 9]))
        (held * torch.tensor([[1.0], [float("nan") if rackweave.rank() else 1.0]])).sum().backward()
        results.append(table.weight.grad.to_dense().numpy().copy())
        counts.append(rackweave.torch.stats(handle)["nonfinite"])
        rackweave.torch.detach(handle)
    return counts, results


def left_out():
    """Rank 1 leaves the tags out, and both ranks the other words in step 1."""
    torch.set_num_threads(1)
    model = torch.nn.ModuleList([torch.nn.Embedding(20, 3, sparse=True) for _ in range(2)])
    rackweave.torch.attach(model, find_unused_parameters=True)
    o = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    absent = []
    for step in range(3):
        o.zero_grad(set_to_none=True)
        loss = model[0](torch.tensor([step])).sum()
        if rackweave.rank() == 0 and step != 1:
            loss = loss + model[1](torch.tensor([4])).sum()
        loss.backward()
        absent.append(model[1].weight.grad is None)
        o.step()
    return absent, weights(model)


def fused(names):
    torch.set_num_threads(1)
    return [fused_and_here(name) for name in names]


def fused_and_here(name: str):
    """Trains fused, and then with the optimizer here, on the same averages; and on after saving."""
    here = Words(rackweave.rank())
    averaging = rackweave.torch.attach(here)
    local = OPTIMIZERS[name](here)
    here_trained = train(here, local)
    model = Words(rackweave.rank())
    o = OPTIMIZERS[name](model)
    attached = rackweave.torch.attach(model, o, fused=True)
    fused_trained = train(model, o)
    states = [
        {k: (v.to_dense() if v.is_sparse else v).numpy().copy() for k, v in state.items() if isinstance(v, torch.Tensor)}
        for optimizer in (local, o)
        for state in optimizer.state_dict()["state"].values()
    ]
    attached.save("sparse-" + name.replace(" ", "-"))
    state_dicts = {k: v.clone() for k, v in model.state_dict().items()}, o.state_dict(), local.state_dict()
    first = train(model, o, 4, STEPS)
    attached.restore("sparse-" + name.replace(" ", "-"))
    again = [train(model, o, 4, STEPS)]
    for state in state_dicts[1:]:  # what the aggregator kept, and what torch's own optimizer did
        model.load_state_dict(state_dicts[0])
        o.load_state_dict(state)
        again.append(train(model, o, 4, STEPS))
    attached.detach()
    averaging.detach()
    return here_trained, fused_trained, states, first, again


def fused_side_by_side():
    torch.set_num_threads(1)
    rank, results = rackweave.rank(), []
    for together in (True, False):
        model = words_and_layers(rank)
        if together:
            attached = [rackweave.torch.attach(model)]
            o = Both(model)
        else:
            parts = Both(model)
            attached = [
                rackweave.torch.attach(model[0], parts.all[0], fused=True),
                rackweave.torch.attach(model[1:], parts.all[1], fused=True),
            ]
            o = parts
        results.append(train(model, o))
        for a in attached:
            a.detach()
    return results


def few_bytes():
    """Returns the bytes of a step in which each rank touches two of many rows."""
    torch.set_num_threads(1)
    counts = []
    for way in ("ddp", "attach", "fused"):
        model = torch.nn.Embedding(50_000, 8, sparse=True)
        o = torch.optim.SparseAdam(list(model.parameters()))
        handle, called = (rackweave.torch.attach(model, o, fused=True), model) if way == "fused" else made(way, model)
        before = rackweave.stats()
        gradient(called, [rackweave.rank(), 49_999])
        o.step()
        after = rackweave.stats()
        counts.append(sum(after[k] - before[k] for k in ("sent_bytes", "received_bytes")))
        rackweave.torch.detach(handle)
    return counts


def own_groups():
    """Trains a table of many chunks without a process group."""
    torch.set_num_threads(1)
    torch.manual_seed(rackweave.rank())
    model = rackweave.torch.ddp(torch.nn.EmbeddingBag(4000, 64, mode="sum", sparse=True))
    o = torch.optim.SparseAdam(list(model.parameters()), lr=0.01)
    for step in range(STEPS):
        o.zero_grad()
        model(batch(step, rackweave.rank()) * 13).pow(2).sum().backward()
        o.step()
    return weights(model)


def waits_for_rank_1():
    torch.set_num_threads(1)
    model = torch.nn.Embedding(20, 3, sparse=True)
    rackweave.torch.attach(model)
    print("ready", flush=True)
    if rackweave.rank() == 1:
        threading.Event().wait()
    model(torch.tensor([1])).sum().backward()


def differs():
    try:
        rackweave.torch.attach(torch.nn.Embedding(20, 3, sparse=rackweave.rank() == 0))
    except rackweave.Error as e:
        return str(e)


class Tied(torch.nn.Module):
    """Rank 1 uses the table as a dense one too; or all ranks use a table by its rows that was not declared sparse."""

    def __init__(self, declared: bool) -> None:
        super().__init__()
        self.declared = declared
        self.table = torch.nn.Embedding(20, 3, sparse=declared)

    def forward(self) -> torch.Tensor:
        weight = self.table.weight
        if not self.declared:
            return torch.nn.functional.embedding(torch.tensor([1]), weight, sparse=True).sum()
        return self.table(torch.tensor([1])).sum() + (weight.sum() if rackweave.rank() == 1 else 0)


def refused():
    torch.set_num_threads(1)
    texts = []

    def text(call):
        try:
            call()
        except RuntimeError as e:  # which torch raises, too
            texts.append(str(e))
        else:
            texts.append("nothing was refused")

    attach, table = rackweave.torch.attach, torch.nn.Embedding(9, 2, sparse=True)
    mixed = torch.nn.Sequential(table, torch.nn.Linear(2, 2))
    text(lambda: attach(table, torch.optim.Adam(table.parameters()), fused=True))
    text(lambda: attach(table, torch.optim.SGD(table.parameters(), lr=0.1, weight_decay=0.1), fused=True))
    text(lambda: attach(mixed, torch.optim.SparseAdam(list(mixed.parameters())), fused=True))
    bounded = torch.nn.Embedding(9, 2, sparse=True, max_norm=1.0)
    text(lambda: attach(bounded, torch.optim.SGD(bounded.parameters(), lr=0.1), fused=True))
    turned = torch.nn.Embedding(9, 2, sparse=True)
    turned.weight = torch.nn.Parameter(torch.zeros(2, 9).t())
    text(lambda: attach(turned))
    for declared in (True, False):
        model = Tied(declared)
        attached = attach(model)
        attached._exchange.session.barrier("attached")
        text(lambda: model().backward())
        with contextlib.suppress(rackweave.Error):
            attached.detach()
    changed = torch.nn.Embedding(9, 2, sparse=True)
    o = torch.optim.SGD(changed.parameters(), lr=0.1)
    attached = attach(changed, o, fused=True)
    changed(torch.tensor([1])).sum().backward()
    changed.weight.grad = changed.weight.grad * 2
    text(o.step)
    attached.skip_step()
    text(o.step)
    with contextlib.suppress(rackweave.Error):
        attached.detach()
    return texts


class Sparse(rack.Case):
    def test_training_equals_ddp_with_gloo(self):
        for n in (2, 4):
            results = self.run_workers(same_as_ddp, n, os.path.join(self.directory.name, f"store{n}"))
            for (name, make, accumulating), ways in results[1].items():
                for way in ("ddp", "attach"):
                    with self.subTest(f"{n} workers, {name}, {make}, {way}, accumulating: {accumulating}"):
                        if make != "bounded":
                            self.assert_ranks_equal([r[name, make, accumulating][way] for r in results])
                        if make != "words_and_layers" or n == 2:
                            np.testing.assert_array_equal(ways[way], ways["gloo"])
                        else:  # Gloo adds up dense gradients in an order of its own
                            self.assertLess(apart(ways[way], ways["gloo"]), 1e-5)

    def test_ranks_may_touch_no_rows_and_others_than_the_rest(self):
        for results in self.run_workers(uneven, 2):
            for (coalesced, ids, rows), touched in zip(results, UNEVEN + UNEVEN):
                want = of_all_ranks(touched)
                self.assertTrue(coalesced)
                np.testing.assert_array_equal(ids, want._indices().numpy())
                np.testing.assert_array_equal(rows, want._values().numpy())

    def test_fused_steps_move_the_rows_that_ranks_touched_in_them(self):
        for tables in self.run_workers(uneven_fused, 2):
            for before, after, touched in zip(tables, tables[1:], UNEVEN):
                np.testing.assert_array_equal(after, before - of_all_ranks(touched).to_dense().numpy())

    def test_rows_that_are_not_finite_travel_and_are_counted(self):
        for rank, (counts, results) in enumerate(self.run_workers(not_finite, 2)):
            self.assertEqual(counts, [rank, rank])
            for r in results:
                self.assertEqual(np.isnan(r).any(1).nonzero()[0].tolist(), [9])
                np.testing.assert_array_equal(r[:4, 0], [0, 0, 0.5, 0.5])

    def test_embeddings_that_a_rank_left_out_are_averaged_with_no_rows(self):
        results = self.run_workers(left_out, 2)
        for absent, trained in results:
            self.assertEqual(absent, [False, True, False])
            np.testing.assert_array_equal(trained, results[0][1])

    def test_fused_equals_the_optimizer_at_the_workers(self):
        names = ("sgd", "momentum", "nesterov", "adagrad", "sparse adam")
        ranks = rack.run(fused, 4 if rack.LONG else 3, self.aggregator.address, names, env={"RACKWEAVE_JOB": "fused"})
        for name, *results in zip(names, *ranks):
            for here, there, states, first, again in results:
                with self.subTest(name):
                    self.assert_ranks_equal([r[1] for r in results])
                    self.assertLess(apart(there, here), 1e-6)
                    half = len(states) // 2
                    for mine, other in zip(states[:half], states[half:]):
                        for k in mine:
                            self.assertLessEqual(np.linalg.norm(other[k] - mine[k]), 1e-5 * np.linalg.norm(mine[k]), k)
                    np.testing.assert_array_equal(first, again[0])
                    np.testing.assert_array_equal(first, again[1])
                    self.assertLess(apart(again[2], first), 1e-6)

    def test_sparse_adam_and_adam_run_fused_side_by_side(self):
        results = self.run_workers(fused_side_by_side, 2)
        for together, beside in results:
            np.testing.assert_array_equal(beside, results[0][1])
            self.assertLess(apart(beside, together), 1e-5)

    def test_a_worker_that_dies_ends_backward_at_the_others(self):
        outcomes = rack.kill_one(waits_for_rank_1, 3, self.aggregator.address, "sparse dies")
        for r in (0, 2):
            self.assertRegex(outcomes[r].error, "JobFailedError.*worker 1")

    def test_ranks_of_which_one_has_a_dense_embedding_are_told_so(self):
        for text in self.run_workers(differs, 2):
            self.assertRegex(text, "tensor \"weight\".*sparse.*worker")

    def test_a_step_moves_the_rows_that_it_touched(self):
        for counts in self.run_workers(few_bytes, 2):
            for way, count in zip(("ddp", "attach", "fused"), counts):
                self.assertLess(count, 40_000, way)  # of 1.6 MB

    def test_what_cannot_be_is_refused_by_name_with_the_remedy(self):
        for rank, texts in enumerate(self.run_workers(refused, 2)):
            self.assertIn("Adam does not take sparse gradients, as parameter 'weight' has: attach modules with sparse", texts[0])
            self.assertIn("SGD with weight_decay 0.1 does not take sparse gradients, as parameter 'weight' has: attach", texts[1])
            self.assertIn("SparseAdam does not take dense gradients, as parameter '1.weight' has", texts[2])
            self.assertIn("the model has max_norm", texts[3])
            self.assertIn("sparse gradients, whose rows are apart in it: make it contiguous", texts[4])
            weight = "the weight of an embedding with sparse=True and has a"
            self.assertIn(f"parameter 'table.weight' is {weight} dense gradient at rank 1", texts[5])
            self.assertIn(f"parameter 'table.weight' is not {weight} sparse gradient at rank", texts[6])
            self.assertIn("the gradient of 'weight' was changed after backward had pushed it", texts[7])
            self.assertIn("no backward has pushed a gradient since the last step, and 'weight' has one", texts[8])


if __name__ == "__main__":
    unittest.main()
