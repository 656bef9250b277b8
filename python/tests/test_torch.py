"""rackweave.torch against torch itself: the same models, data and seeds, trained both ways."""

from __future__ import annotations

import io
import json
import os
import tempfile
import unittest

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import rack
import rackweave
import rackweave.torch

FRAMEWORK = "torch"
STEPS = 12
LONG = 40 if rack.LONG else 15
FEATURES, CLASSES, BATCH = 32, 10, 16


# All activations are smooth: where ReLU's argument is next to nothing, the last bit of a sum decides on a whole gradient.


def plain(seed: int, hidden: int = 300) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, hidden),
        torch.nn.Tanh(),
        torch.nn.Linear(hidden, hidden),
        torch.nn.Tanh(),
        torch.nn.Linear(hidden, CLASSES),
    )


def wide(seed: int) -> torch.nn.Module:
    """Its last layers' gradients are large enough to be sent by themselves."""
    first = plain(seed, 1500)
    return torch.nn.Sequential(first, torch.nn.Linear(CLASSES, 8000), torch.nn.Tanh(), torch.nn.Linear(8000, CLASSES))


def normed(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 64), torch.nn.BatchNorm1d(64), torch.nn.Tanh(), torch.nn.Linear(64, CLASSES)
    )


def convolutional(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Unflatten(1, (2, 4, 4)),
        torch.nn.Conv2d(2, 8, 3, padding=1),
        torch.nn.Tanh(),
        torch.nn.Flatten(),
        torch.nn.Linear(128, CLASSES),
    ).to(memory_format=torch.channels_last)


def batch(step: int, rank: int, size: int = BATCH):
    g = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(size, FEATURES, generator=g), torch.randint(0, CLASSES, (size,), generator=g)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3)


def nesterov(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-3, weight_decay=1e-3)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def rmsprop(parameters):
    return torch.optim.RMSprop(parameters, lr=1e-3)


def weights(model: torch.nn.Module) -> np.ndarray:
    state = [t.detach().reshape(-1).to(torch.float32) for t in model.state_dict().values() if t.is_floating_point()]
    return torch.cat(state).numpy().copy()


def train(model, optimizer, steps=STEPS, rank=None, sizes=None, after_backward=None, scheduler=None):
    rank = rackweave.rank() if rank is None else rank
    for step in range(steps):
        x, y = batch(step, rank, sizes[rank] if sizes and step == steps - 1 else BATCH)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if after_backward:
            after_backward()
        optimizer.step()
        if scheduler:
            scheduler.step()
    return weights(model)


def gloo(store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rackweave.rank(), world_size=rackweave.world_size())


def same_as_ddp(store: str):
    gloo(store)
    rank = rackweave.rank()
    results = {}
    cases = [("uneven last batch", plain, sgd, [16, 5, 9, 3]), ("batchnorm", normed, sgd, None)]
    if rack.LONG or rackweave.world_size() == 2:
        cases += [("sgd", plain, sgd, None), ("adam", plain, adam, None), ("channels last", convolutional, sgd, None)]
    for name, make, optimizer, sizes in cases:
        ways = results[name] = {}
        model = DistributedDataParallel(make(rank))
        ways["gloo"] = train(model, optimizer(model.parameters()), LONG, sizes=sizes)
        model = rackweave.torch.ddp(DistributedDataParallel(make(rank)))
        ways["ddp"] = train(model, optimizer(model.parameters()), LONG, sizes=sizes)
        model = make(rank)
        attached = rackweave.torch.attach(model, o := optimizer(model.parameters()))
        ways["attach"] = train(model, o, LONG, sizes=sizes)
        attached.detach()
    return results


def own_groups():
    torch.set_num_threads(1)
    model = rackweave.torch.ddp(normed(rackweave.rank()))  # no process group: parameters and buffers come by RackWeave, too
    trained = train(model, sgd(model.parameters()))
    again = rackweave.torch.ddp(normed(rackweave.rank()))
    return trained, train(again, sgd(again.parameters()))


def fused(names):
    torch.set_num_threads(1)
    return [fused_and_here(globals()[name]) for name in names]


def fused_and_here(optimizer):
    """Trains fused, and then with the optimizer here, on the same averages."""
    local = plain(rackweave.rank())
    o = optimizer(local.parameters())
    averaging = rackweave.torch.attach(local, o)
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 3, 0.5), torch.optim.lr_scheduler.ExponentialLR(o, 0.99)]

    class Both:
        def step(self):
            for s in schedulers:
                s.step()

    here = train(local, o, LONG, after_backward=lambda: torch.nn.utils.clip_grad_norm_(local.parameters(), 0.5), scheduler=Both())
    model = plain(rackweave.rank())
    o = optimizer(model.parameters())
    before = torch.optim.lr_scheduler.StepLR(o, 3, 0.5)
    attached = rackweave.torch.attach(model, o, fused=True)
    after = torch.optim.lr_scheduler.ExponentialLR(o, 0.99)

    def clip():
        attached.clip_grad_norm_(0.5)

    schedulers[:] = [before, after]
    trained = train(model, o, LONG, after_backward=clip, scheduler=Both())
    result = trained, attached.grad_norm, attached.stats()["copied_bytes"], here
    attached.detach()
    averaging.detach()
    return result


def single(name: str, n: int):
    """The whole batch in one process."""
    torch.set_num_threads(1)
    model = plain(0)
    o = globals()[name](model.parameters())
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 3, 0.5), torch.optim.lr_scheduler.ExponentialLR(o, 0.99)]
    norm = 0.0
    for step in range(LONG):
        parts = [batch(step, rank) for rank in range(n)]
        o.zero_grad()
        F.cross_entropy(model(torch.cat([x for x, _ in parts])), torch.cat([y for _, y in parts])).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()
        o.step()
        for s in schedulers:
            s.step()
    return weights(model), norm


def compressed(text: str):
    """Returns accuracy and bytes of models that train with a codec, of raw ones beside them, and the weights of the first."""
    torch.set_num_threads(1)
    results = []
    for way in ("ddp", "attach", "fused", "half"):
        for compress in (text, ""):
            model = plain(0).to(torch.bfloat16 if way == "half" else torch.float32)
            o = sgd(model.parameters())
            if way == "ddp":
                trained = handle = rackweave.torch.ddp(model, compress=compress)
            else:
                trained, handle = model, rackweave.torch.attach(
                    model, o, fused=way == "fused", compress=compress, find_unused_parameters=way == "attach"
                )
            for step in range(STEPS):
                x, y = batch(step, rackweave.rank())
                o.zero_grad()
                F.cross_entropy(trained(x.to(next(model.parameters()).dtype)).float(), y).backward()
                o.step()
            results.append((way, weights(model), rackweave.torch.stats(handle)["sent_bytes"]))
            rackweave.torch.detach(handle)
    return results


def accumulate():
    torch.set_num_threads(1)
    rank, results = rackweave.rank(), []
    for way in ("ddp", "attach", "fused", "attach without no_sync"):
        model = plain(rank)
        o = sgd(model.parameters())
        if way == "ddp":
            model = rackweave.torch.ddp(model)
            no_sync = model.no_sync
        else:
            attached = rackweave.torch.attach(model, o, fused=way == "fused")
            no_sync = attached.no_sync
        for step in range(4):
            o.zero_grad()
            for part in range(3):
                x, y = batch(10 * step + part, rank)
                if part < 2 and "without" not in way:
                    with no_sync():
                        (F.cross_entropy(model(x), y) / 3).backward()
                else:
                    (F.cross_entropy(model(x), y) / 3).backward()
            o.step()
        results.append(weights(model))
    return results


def several_models():
    torch.set_num_threads(1)
    rank = rackweave.rank()
    pairs = []
    for i in range(2):
        a, b = plain(10 * i + rank), rackweave.torch.ddp(normed(10 * i + rank))
        oa, ob = sgd(a.parameters()), adam(b.parameters())
        rackweave.torch.attach(a, oa)
        pairs.append((a, oa, b, ob))
    for step in range(5):
        for a, oa, b, ob in pairs:
            x, y = batch(step, rank)
            oa.zero_grad()
            ob.zero_grad()
            (F.cross_entropy(a(x), y) + F.cross_entropy(b(x), y)).backward()
            oa.step()
            ob.step()
    # Parameters alone: b's running means are each rank's own after the last forward.
    return [torch.nn.utils.parameters_to_vector(m.parameters()).detach().numpy() for a, _, b, _ in pairs for m in (a, b)]


def loaders():
    torch.set_num_threads(1)
    rank = rackweave.rank()
    data = torch.utils.data.TensorDataset(*batch(0, rank, 128))
    model = plain(rank)
    o = sgd(model.parameters())
    rackweave.torch.attach(model, o, fused=True)
    wrapped = rackweave.torch.ddp(plain(rank))
    ow = sgd(wrapped.parameters())
    seen = 0
    for _ in range(2):
        for x, y in torch.utils.data.DataLoader(data, batch_size=32, num_workers=2):
            o.zero_grad()
            ow.zero_grad()
            F.cross_entropy(model(x), y).backward()
            F.cross_entropy(wrapped(x), y).backward()
            o.step()
            ow.step()
            seen += len(x)
    return seen, weights(model), weights(wrapped)


def unused():
    torch.set_num_threads(1)
    rank = rackweave.rank()
    model = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])
    o = sgd(model.parameters())
    rackweave.torch.attach(model, o, find_unused_parameters=True)
    for step in range(3):
        o.zero_grad()
        model[(step + rank) % 2](torch.ones(2, 4)).sum().backward()
        o.step()
    return weights(model)


def traced(directory: str):
    os.environ["RACKWEAVE_TRACE"] = directory
    torch.set_num_threads(1)
    model = rackweave.torch.ddp(wide(rackweave.rank()), bucket_cap_mb=4)
    train(model, sgd(model.parameters()), 6)
    attached = rackweave.torch.attach(other := wide(rackweave.rank()))
    train(other, sgd(other.parameters()), 6)
    attached.detach()
    rackweave.shutdown()


def frozen():
    """Two layers that are frozen, one of another type and order, and one that trains."""
    return [frozen_of(way) for way in ("ddp", "attach", "fused")]


def frozen_of(way: str):
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3).double(), torch.nn.Linear(300, 4), torch.nn.Linear(4, 2))
    model[1].weight = torch.nn.Parameter(torch.randn(300, 4).t())
    for p in model[:2].parameters():
        p.requires_grad_(False)
    o = sgd(model[2].parameters())
    handle = rackweave.torch.ddp(model) if way == "ddp" else rackweave.torch.attach(model, o, fused=way == "fused")
    result = weights(model)
    rackweave.torch.detach(handle)
    return result


def copied_share():
    torch.set_num_threads(1)
    rank, shares = rackweave.rank(), {}
    for way in ("ddp", "attach", "fused"):
        model = plain(rank, 1500)
        if way == "ddp":
            model = rackweave.torch.ddp(model)
        o = sgd(model.parameters())
        attached = rackweave.torch.attach(model, o, fused=way == "fused") if way != "ddp" else None
        train(model, o, 4)
        before = rackweave.stats()
        train(model, o, 6)
        after = rackweave.stats()
        moved = sum(after[k] - before[k] for k in ("sent_bytes", "received_bytes"))
        shares[way] = (after["copied_bytes"] - before["copied_bytes"]) / moved
        if attached:
            attached.detach()
    return shares


def checkpoint():
    torch.set_num_threads(1)
    model = plain(rackweave.rank())
    o = adam(model.parameters())
    attached = rackweave.torch.attach(model, o, fused=True)
    train(model, o, 4)
    attached.save("four")
    states = io.BytesIO()
    torch.save([model.state_dict(), o.state_dict()], states)
    first = train(model, o, 4)
    attached.restore("four")
    second = train(model, o, 4)
    attached.detach()

    states.seek(0)
    model_state, optimizer_state = torch.load(states)
    other = plain(7)
    o = adam(other.parameters())
    rackweave.torch.attach(other, o, fused=True)
    other.load_state_dict(model_state)
    o.load_state_dict(optimizer_state)
    third = train(other, o, 4)

    local = plain(8)  # goes on with its own optimizer
    o = adam(local.parameters())
    rackweave.torch.attach(local, o)
    local.load_state_dict(model_state)
    o.load_state_dict(optimizer_state)
    return first, second, third, train(local, o, 4)


def gradient_scaler():
    """torch 2.3's for CPUs; before, torch had one for GPUs alone, which is disabled here."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    return torch.cuda.amp.GradScaler(enabled=False)


def scaled():
    """Trains with a GradScaler. Where it works, rank 1's gradient overflows in step 3."""
    return {way: scaled_by(way) for way in ("ddp", "attach", "fused")}


def scaled_by(way: str):
    torch.set_num_threads(1)
    rank, scaler = rackweave.rank(), gradient_scaler()
    model = plain(rank)
    o = sgd(model.parameters())
    clip = lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # noqa: E731
    if way == "ddp":
        model = rackweave.torch.ddp(model)
    else:
        attached = rackweave.torch.attach(model, o, fused=way == "fused", scaler=scaler if way == "fused" else None)
        clip = (lambda: attached.clip_grad_norm_(0.5)) if way == "fused" else clip
    kept = True
    for step in range(8):
        x, y = batch(step, rank)
        overflow = scaler.is_enabled() and step == 3
        before = weights(model)
        o.zero_grad()
        scaler.scale(F.cross_entropy(model(x * 1e38 if overflow and rank == 1 else x), y)).backward()
        if step % 2:
            scaler.unscale_(o)
            clip()
        scaler.step(o)
        scaler.update()
        kept = kept and np.array_equal(before, weights(model)) == overflow
    return weights(model), scaler.get_scale(), kept


def strided():
    """A parameter that does not fill its memory, and a gradient of other strides than its parameter's."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(6, 4)
    model.weight = torch.nn.Parameter(torch.arange(48.0).view(4, 12)[:, ::2])
    model.bias = torch.nn.Parameter(torch.zeros(4))
    rackweave.torch.attach(model)
    model(torch.full((2, 6), 1.0 + rackweave.rank())).sum().backward()
    turned = torch.nn.Parameter(torch.zeros(3, 5))
    holder = torch.nn.ParameterList([turned])
    rackweave.torch.attach(holder)
    (turned.t() * torch.arange(15.0).view(5, 3) * (1 + rackweave.rank())).sum().backward()
    return model.weight.grad.numpy().copy(), turned.grad.numpy().copy()


def close(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-9))


def apart(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


class Torch(rack.Case):
    def test_training_equals_ddp_with_gloo(self):
        for n in (2, 4):
            results = self.run_workers(same_as_ddp, n, os.path.join(self.directory.name, f"store{n}"))
            for name, ways in results[0].items():
                for way in ("ddp", "attach"):
                    with self.subTest(f"{n} workers, {name}, {way}"):
                        if name != "batchnorm":  # its running means are each rank's own after the last forward
                            self.assert_ranks_equal([r[name][way] for r in results])
                        self.assertLess(close(ways[way], ways["gloo"]), 1e-5)

    def test_without_a_process_group_all_goes_by_rackweave_and_repeats_bit_by_bit(self):
        for first, again in self.run_workers(own_groups, 2):
            np.testing.assert_array_equal(first, again)

    def test_fused_equals_one_process_with_the_whole_batch(self):
        names = ("sgd", "nesterov", "adam", "adamw", "rmsprop")
        ranks = rack.run(fused, 2, self.aggregator.address, names, env={"RACKWEAVE_JOB": "fused"})
        for name, *results in zip(names, *ranks):
            with self.subTest(name):
                self.assert_ranks_equal([w for w, _, _, _ in results])
                trained, last_norm, copied, here = results[0]
                want, norm = single(name, 2)
                # Single weights of the adaptive rules are further apart, where a gradient is nearly nothing.
                self.assertLess(apart(trained, here), 1e-5)
                self.assertLess(apart(trained, want), 1e-5)
                self.assertAlmostEqual(last_norm, norm, delta=1e-4 * norm)
                self.assertEqual(copied, 0)

    def test_one_word_compresses_what_a_model_exchanges(self):
        ranks = rack.run(compressed, 2, self.aggregator.address, "int4", env={"RACKWEAVE_JOB": "compressed"})
        for i in range(0, len(ranks[0]), 2):
            (way, coded, sent), (_, raw, whole) = ranks[0][i : i + 2]
            with self.subTest(way):
                self.assert_ranks_equal([r[i][1] for r in ranks])
                self.assertLess(sent, whole * (0.5 if way == "half" else 0.4))  # with the first parameters
                self.assertLess(close(coded, raw), 0.1)
                self.assertGreater(close(coded, raw), 0)

    def test_gradients_accumulate(self):
        results = self.run_workers(accumulate, 2)
        for way, w in enumerate(results[0]):
            np.testing.assert_array_equal(w, results[1][way])
            self.assertLess(close(w, results[0][0]), 1e-5, way)

    def test_several_models_train_side_by_side(self):
        a, b = self.run_workers(several_models, 2)
        for mine, other in zip(a, b):
            np.testing.assert_array_equal(mine, other)
        for first, second in zip(a[:2], a[2:]):
            self.assertGreater(close(first, second), 1e-3)

    def test_data_loaders_fork_workers(self):
        results = self.run_workers(loaders, 2)
        for seen, model, wrapped in results:
            self.assertEqual(seen, 256)
            np.testing.assert_array_equal(model, results[0][1])
            np.testing.assert_array_equal(wrapped, results[0][2])

    def test_parameters_that_a_rank_left_out_are_averaged_with_zeros(self):
        self.assert_ranks_equal(self.run_workers(unused, 2))

    def test_a_timeline_shows_exchanges_that_begin_and_end_within_backward(self):
        with tempfile.TemporaryDirectory() as directory:
            self.run_workers(traced, 2, directory)
            for rank in range(2):
                with open(os.path.join(directory, f"rank-{rank}.json")) as f:
                    events = json.load(f)["traceEvents"]
                backward = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"].startswith("backward")]
                waits = [e for e in events if e["name"] == "wait for gradients"]
                begins = {e["id"]: e["ts"] for e in events if e["ph"] == "b" and e["name"].startswith("pushpull")}
                ends = {e["id"]: e["ts"] for e in events if e["ph"] == "e"}
                self.assertEqual(len(backward), 12)
                self.assertEqual(len(waits), 12)
                self.assertEqual(len(begins), 2 * 6 * 10)  # both ways, steps, parameters
                for way in (backward[:6], backward[6:]):
                    within = [i for i, at in begins.items() if any(a <= at < b for a, b in way)]
                    done = [i for i in within if any(a <= begins[i] and ends[i] < b for a, b in way)]
                    self.assertGreater(len(within), 6)
                    self.assertGreater(len(done), 0)

    def test_parameters_without_gradients_become_those_of_rank_0(self):
        first, second = self.run_workers(frozen, 2)
        for way, one, other in zip(("ddp", "attach", "fused"), first, second):
            np.testing.assert_array_equal(one, other, way)

    def test_less_than_a_twentieth_of_the_bytes_is_copied(self):
        for shares in self.run_workers(copied_share, 2):
            for way, share in shares.items():
                self.assertLess(share, 0.05, way)

    def test_checkpoints_at_the_aggregator_and_of_torch_bring_parameters_and_state_back(self):
        for first, restored, loaded, local in self.run_workers(checkpoint, 2):
            np.testing.assert_array_equal(first, restored)
            np.testing.assert_array_equal(first, loaded)
            self.assertLess(close(local, first), 1e-4)

    def test_a_gradient_scaler_leaves_the_same_steps_out_at_all_ranks(self):
        expect = 2.0**10 * 0.5 * 2 if gradient_scaler().is_enabled() else 1.0  # an overflow, and four steps without one
        ways, ranks = {}, self.run_workers(scaled, 2)
        for way in ("ddp", "attach", "fused"):
            results = [r[way] for r in ranks]
            self.assert_ranks_equal([w for w, _, _ in results])
            self.assertEqual([(scale, kept) for _, scale, kept in results], 2 * [(expect, True)], way)
            ways[way] = results[0][0]
        np.testing.assert_array_equal(ways["ddp"], ways["attach"])
        self.assertLess(close(ways["fused"], ways["attach"]), 1e-5)

    def test_tensors_that_are_not_contiguous_are_averaged_as_they_are(self):
        for weight, turned in self.run_workers(strided, 2):
            np.testing.assert_array_equal(weight, np.full((4, 6), 3.0, "f4"))
            np.testing.assert_array_equal(turned, 1.5 * np.arange(15.0, dtype="f4").reshape(5, 3).T)


if __name__ == "__main__":
    unittest.main()
