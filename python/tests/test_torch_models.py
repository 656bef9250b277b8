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
from torch.utils.checkpoint import checkpoint

import rack
import rackweave
import rackweave.torch
from rackweave._open import open_sessions
from test_torch import adamw, apart, gloo, normed, plain, sgd, train, weights

FRAMEWORK = "torch"
MANY = 200 if rack.LONG else 8  # an aggregator serves 64 jobs


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
    wrapped = rackweave.torch.ddp(normed(rackweave.rank()))
    alone = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), average.module, loaded]
    same = [np.array_equal(weights(m), weights(model)) for m in alone]
    alone += [copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))]
    same += [np.array_equal(weights(m), weights(wrapped)) for m in alone[-2:]]
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


class Chosen(torch.nn.Module):
    """A model that passes its input through the layers that the call names."""

    def __init__(self, checkpointed=()):
        super().__init__()
        torch.manual_seed(rackweave.rank())
        self.layers, self.checkpointed = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(4)]), checkpointed

    def forward(self, x, chosen):
        for i in chosen:
            x = checkpoint(self.layers[i], x, use_reentrant=True) if i in self.checkpointed else self.layers[i](x)
            x = torch.tanh(x)
        return x


def train_chosen(model, optimizer):
    """Layer 1 is used by ranks in turn, 2 by rank 1 alone, 3 by all in every other step, and by none between."""
    rank = rackweave.rank()
    for step in range(8):
        chosen = [0] + [1] * ((step + rank) % 2) + [2] * rank + [3] * (step % 2)
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + rank), requires_grad=True)
        optimizer.zero_grad(set_to_none=True)
        model(x, chosen).pow(2).sum().backward()
        optimizer.step()
    return weights(model)


def chosen_at_the_aggregator(optimizer, fused, checkpointed=()):
    model = Chosen(checkpointed)
    o = optimizer(model.parameters())
    attached = rackweave.torch.attach(model, o, fused=fused, find_unused_parameters=True)
    trained = train_chosen(model, o)
    attached.detach()
    return trained


def left_out_by_all(store: str):
    gloo(store)
    ways = []
    for optimizer in (adamw, sgd):
        model = DistributedDataParallel(Chosen(), find_unused_parameters=True)
        want = train_chosen(model, optimizer(model.parameters()))
        model = rackweave.torch.ddp(DistributedDataParallel(Chosen(), find_unused_parameters=True))
        hooked = train_chosen(model, optimizer(model.parameters()))
        rackweave.torch.detach(model)
        ways.append((want, hooked, *(chosen_at_the_aggregator(optimizer, fused) for fused in (False, True))))
    return ways


def reentrant():
    torch.set_num_threads(1)
    results = []
    for fused in (False, True):
        want = chosen_at_the_aggregator(sgd, fused)
        results += [(want, chosen_at_the_aggregator(sgd, fused, which)) for which in ((0, 1, 2, 3), (1, 2), (3,))]
    return results


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
    return len(open_sessions())


def dropped():
    model = torch.nn.Sequential(torch.nn.Linear(4, 2))
    rackweave.torch.attach(model)
    part = model[0]
    del model
    gc.collect()
    try:
        part(torch.ones(1, 4)).sum().backward()
    except rackweave.Error as e:
        return str(e)


def wrong_uses():
    def refusal(use):
        try:
            use()
        except (rackweave.Error, ValueError) as e:
            return str(e)
        return "nothing was refused"

    def joins():
        model = rackweave.torch.ddp(torch.nn.Linear(4, 2))
        with model.join():
            model(torch.ones(1, 4)).sum().backward()

    def shares():
        layer = torch.nn.Linear(4, 4)
        attach(layer, find_unused_parameters=True)
        x = torch.ones(1, 4, requires_grad=True)
        checkpoint(layer, checkpoint(layer, x, use_reentrant=True), use_reentrant=True).sum().backward()

    attach, ddp, push_pull = rackweave.torch.attach, rackweave.torch.ddp, rackweave.push_pull
    twice, other = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    optimizer = sgd(other.parameters())
    attached = attach(twice)
    texts = {
        "'weight' is attached already: call": refusal(lambda: ddp(twice)),
        "module '0' is a DistributedDataParallel": refusal(lambda: attach(torch.nn.Sequential(ddp(torch.nn.Linear(4, 2))))),
        "'weight' is of type torch.float64": refusal(lambda: ddp(torch.nn.Linear(4, 2).double())),
        "'weight' is on the meta device": refusal(lambda: attach(torch.nn.Linear(4, 2, device="meta"))),
        "the model is of type SGD: give a torch.nn.Module": refusal(lambda: attach(optimizer, other)),
        "the model is of type str": refusal(lambda: ddp("model")),
        "none of the model's parameters": refusal(lambda: attach(torch.nn.Linear(4, 2), optimizer)),
        "the optimizer is of type str": refusal(lambda: attach(other, "sgd", fused=True)),
        "scaler is of type float": refusal(lambda: attach(other, optimizer, fused=True, scaler=2.0)),
        "steps = rackweave.allreduce(len(loader), op=rackweave.Min)": refusal(joins),
        "a second gradient in one backward": refusal(shares),
        "'a' is of type torch.int64: use float32": refusal(lambda: push_pull(torch.ones(3, dtype=torch.int64), "a")),
        "'b' lies on a device without DLPack": refusal(lambda: push_pull(torch.ones(3, device="meta"), "b")),
        "'c' gives no DLPack capsule": refusal(lambda: push_pull(torch.ones(3).to_sparse(), "c")),
        "a tensor's name is 5: give a string": refusal(lambda: push_pull(torch.ones(3), 5)),
        "metric 'loss' is 'low': give a number": refusal(lambda: rackweave.average_metrics({"loss": "low"})),
        "metrics are of type list": refusal(lambda: rackweave.average_metrics([1.0])),
        "'weight' is attached already: call detach()": refusal(lambda: attach(twice)),
        "the model is a DistributedDataParallel": refusal(lambda: attach(ddp(torch.nn.Linear(4, 2)))),
        "tensor 'weight' is of type torch.float64": refusal(lambda: attach(torch.nn.Linear(4, 2).double())),
        "give what rackweave.torch.ddp or attach returned": refusal(lambda: rackweave.torch.stats(twice)),
    }
    attached.detach()
    attach(twice).detach()
    detached = ddp(twice)
    rackweave.torch.detach(detached)
    texts["is closed, by detach"] = refusal(lambda: detached(torch.ones(1, 4)).sum().backward())
    return texts


def without_a_group():
    try:
        rackweave.torch.ddp(torch.nn.Linear(4, 2), find_unused_parameters=True)
    except rackweave.Error as e:
        return str(e)


def parameter_sum(model, answers):
    answers.put(float(sum(p.sum() for p in model.parameters())))


def spawns():
    torch.set_num_threads(1)
    same, trained = [], []
    for fused in (False, True):
        for disturbed in (False, True):
            model = plain(rackweave.rank())
            o = sgd(model.parameters())
            rackweave.torch.attach(model, o, fused=fused)
            train(model, o, 3)
            if disturbed:
                context = torch.multiprocessing.get_context("spawn")
                answers = context.SimpleQueue()
                child = context.Process(target=parameter_sum, args=(model, answers))
                child.start()
                same.append(answers.get() == float(sum(p.sum() for p in model.parameters())))
                child.join()
            trained.append(train(model, o, 3))
    return same, trained


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
            self.assertEqual((same, sent), ([True] * 6, 0))
        self.assert_ranks_equal([trained for _, _, trained in results])

    def test_a_parameter_that_no_rank_used_has_no_gradient(self):
        for rank, (none, grad) in enumerate(self.run_workers(left_out, 2)):
            self.assertEqual(none, [False, False, True], f"rank {rank}")
            np.testing.assert_array_equal(grad, np.full(4, 1.0, np.float32))

    def test_a_parameter_that_no_rank_used_stays_as_with_gloo(self):
        results = self.run_workers(left_out_by_all, 2, self.directory.name + "/unused")
        for ways in results:
            for want, hooked, attached, fused in ways:
                np.testing.assert_array_equal(hooked, want)
                np.testing.assert_array_equal(attached, want)
                self.assertLess(apart(fused, want), 1e-6)

    def test_reentrant_checkpoints_change_no_bit(self):
        for rank, results in enumerate(self.run_workers(reentrant, 2)):
            for i, (want, checkpointed) in enumerate(results):
                np.testing.assert_array_equal(checkpointed, want, f"rank {rank}, {i}")

    def test_unused_parameters_of_ddp_need_a_process_group(self):
        for text in self.run_workers(without_a_group, 2):
            self.assertIn("call torch.distributed.init_process_group() before, or use rackweave.torch.attach", text)

    @unittest.skipUnless(rack.LONG, "RACKWEAVE_LONG is not set")
    def test_attached_models_go_to_spawned_processes_and_train_on(self):
        for same, trained in self.run_workers(spawns, 2):
            self.assertEqual(same, [True, True])
            for undisturbed, disturbed in zip(trained[::2], trained[1::2]):
                np.testing.assert_array_equal(disturbed, undisturbed)

    def test_models_that_are_dropped_leave_their_jobs(self):
        for still_open in self.run_workers(many, 2):
            self.assertLess(still_open, 3)  # torch may hold the last until the next

    @unittest.skipUnless(hasattr(torch.Tensor, "register_post_accumulate_grad_hook"), "torch is older than 2.1")
    def test_a_part_of_a_model_that_was_dropped_tells_of_it(self):
        self.assertRegex(self.run_workers(dropped, 1)[0], r"the attached model of parameter '0\.\w+' is gone: keep it")

    def test_wrong_uses_are_refused_with_the_remedy(self):
        for want, text in self.run_workers(wrong_uses, 1)[0].items():
            with self.subTest(want):
                self.assertIn(want, text)

    def test_gradients_that_are_not_finite_are_counted_and_told_of_once(self):
        self.assertEqual(self.run_workers(counts_nonfinite, 1), [(True, 1)])


if __name__ == "__main__":
    unittest.main()
