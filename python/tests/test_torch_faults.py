"""rackweave.torch when something goes wrong: what each rank is told."""

from __future__ import annotations

import os
import signal
import time
import unittest

import numpy as np
import torch
import torch.nn.functional as F

import rack
import rackweave
import rackweave.torch
from test_torch import adam, batch, plain, sgd, train, weights

FRAMEWORK = "torch"


def nan(policy: str):
    torch.set_num_threads(1)
    model = plain(0)
    o = sgd(model.parameters())
    attached = rackweave.torch.attach(model, o, nonfinite=policy)
    x, y = batch(0, rackweave.rank())
    if rackweave.rank() == 1:
        x[0, 0] = float("nan")
    F.cross_entropy(model(x), y).backward()
    return attached.stats()["nonfinite"]


def differences():
    """What each rank is told when the ranks' models, types or optimizers differ."""
    odd, texts = rackweave.rank() == 1, []

    def refused(attach):
        try:
            attach()
        except rackweave.Error as e:
            texts.append(f"{type(e).__name__}: {e}")

    def optimizer():
        model = torch.nn.Linear(4, 4)
        rackweave.torch.attach(model, (adam if odd else sgd)(model.parameters()), fused=True)

    def rate():
        model = torch.nn.Linear(4, 4)
        o = torch.optim.SGD(model.parameters(), lr=0.2 if odd else 0.1)
        rackweave.torch.attach(model, o, fused=True)
        model(torch.ones(1, 4)).sum().backward()
        o.step()

    refused(lambda: rackweave.torch.attach(torch.nn.Linear(4, 5 if odd else 4)))
    refused(lambda: rackweave.torch.attach(torch.nn.Linear(4, 4).to(torch.bfloat16 if odd else torch.float32)))
    refused(optimizer)
    refused(rate)
    return texts


def loses_the_aggregator(address: str):
    torch.set_num_threads(1)
    model = rackweave.torch.ddp(plain(0))
    o = sgd(model.parameters())
    train(model, o, 3)
    print("ready", flush=True)
    try:
        for _ in range(1000):
            train(model, o, 3)
    except rackweave.ServerLostError as e:
        lost = str(e)
    rackweave.shutdown()
    print("lost", flush=True)
    while not os.path.exists(address):
        time.sleep(0.05)
    with open(address) as f:
        rackweave.init(f.read())
    model = rackweave.torch.ddp(plain(0))
    return lost, train(model, sgd(model.parameters()), 3)


def waits_for_rank_1():
    torch.set_num_threads(1)
    model = rackweave.torch.ddp(plain(0))
    o = sgd(model.parameters())
    train(model, o, 3)
    print("ready", flush=True)
    if rackweave.rank() == 1:
        time.sleep(60)
    train(model, o, 3)


def interrupted():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with it ignored
    try:
        waits_for_rank_1()
    except KeyboardInterrupt:
        return "interrupted"


def halves_without_a_process_group():
    try:
        rackweave.torch.ddp(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).bfloat16()))
    except rackweave.TensorError as e:
        return str(e)
    return ""


def mistakes():
    torch.set_num_threads(1)
    texts = []

    def refused(f):
        try:
            f()
        except rackweave.Error as e:
            texts.append(str(e))
        else:
            texts.append("")

    model = plain(0)
    frozen = torch.nn.Linear(2, 2).requires_grad_(False)
    refused(lambda: rackweave.torch.attach(frozen))
    refused(lambda: rackweave.torch.attach(model, fused=True))
    refused(lambda: rackweave.torch.attach(model, torch.optim.Adadelta(model.parameters()), fused=True))
    refused(lambda: rackweave.torch.attach(model, torch.optim.Adam(model.parameters(), amsgrad=True), fused=True))
    refused(lambda: rackweave.torch.attach(model, torch.optim.SGD(model[0].parameters(), lr=1), fused=True))
    refused(lambda: rackweave.torch.attach(model, nonfinite="perhaps"))
    refused(lambda: rackweave.torch.attach(plain(0), wire="int8"))
    hooked = rackweave.torch.ddp(torch.nn.Linear(2, 2))
    refused(lambda: rackweave.torch.ddp(hooked))
    rackweave.torch.detach(hooked)
    refused(lambda: rackweave.torch.ddp(hooked))
    refused(lambda: rackweave.torch.attach(torch.nn.Linear(2, 2).double()))
    o = torch.optim.SGD([{"params": model[:2].parameters()}, {"params": model[2:].parameters(), "lr": 0.5}], lr=1.0)
    attached = rackweave.torch.attach(model, o, fused=True)
    with torch.no_grad():
        model[0].weight.add_(1)
    refused(o.step)
    attached.broadcast_parameters()
    o.param_groups[1]["lr"] = 0.1
    refused(o.step)
    o.param_groups[1]["lr"] = 0.5
    x, y = batch(0, 0)
    F.cross_entropy(model(x), y).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    refused(o.step)
    refused(lambda: F.cross_entropy(model(x), y).backward())
    refused(lambda: rackweave.torch.attach(plain(0), nonfinite="ignore").skip_step())
    cast = torch.nn.Linear(2, 2)
    rackweave.torch.attach(cast, broadcast_buffers=False)
    refused(lambda: cast.to(torch.bfloat16)(torch.ones(1, 2, dtype=torch.bfloat16)))
    model = torch.nn.Linear(2, 2)
    o = sgd(model.parameters())
    attached = rackweave.torch.attach(model, o, fused=True)
    refused(lambda: attached.clip_grad_norm_("1"))
    model.weight.grad = torch.ones(2, 2)
    refused(o.step)
    o.zero_grad()
    with attached.no_sync():
        model(torch.ones(1, 2)).sum().backward()
    refused(o.step)
    for set_to_none in (False, True):
        o.zero_grad(set_to_none=set_to_none)
        o.step()
    o.param_groups[0]["lr"] = float("nan")
    refused(o.step)
    o.param_groups[0]["lr"] = 0.1
    o.add_param_group({"params": torch.nn.Linear(2, 2).parameters()})
    refused(o.step)
    return texts


def restores_nothing():
    model = torch.nn.Linear(2, 2)
    o = sgd(model.parameters())
    attached = rackweave.torch.attach(model, o, fused=True)
    text = ""
    for use in (lambda: attached.restore("never-saved"), lambda: attached.save("../outside")):
        try:
            use()
        except rackweave.RefusedError as e:
            text += str(e)
    model(torch.ones(1, 2)).sum().backward()
    o.step()
    return text, weights(model)


class Faults(rack.Case):
    def test_gradients_with_nan_are_counted_or_refused_by_name_and_rank(self):
        counts = self.run_workers(nan, 2, "count")
        self.assertEqual(counts[0], 0)
        self.assertGreater(counts[1], 0)
        for o in rack.Workers(nan, 2, self.aggregator.address, ("refuse",), {"RACKWEAVE_JOB": "nan-refuse"}).finish():
            for text in ("NaN or infinity", "4.", "rank 1"):
                self.assertIn(text, o.error)

    def test_ranks_with_different_models_types_or_optimizers_are_told_the_difference(self):
        for texts in self.run_workers(differences, 2):
            self.assertEqual(len(texts), 4, texts)
            for text, want in zip(texts, ("shape", "dtype.* bf16", "optimizer is", "lr is")):
                self.assertRegex(text, want)

    def test_an_aggregator_that_restarts_is_an_error_at_every_rank_and_joined_anew(self):
        address = os.path.join(self.directory.name, "address")
        with rack.Aggregator() as first:
            workers = rack.Workers(loses_the_aggregator, 2, first.address, (address,), {"RACKWEAVE_JOB": "restart"})
            for r in range(2):
                workers.wait_for(r, "ready")
            first.kill()
            for r in range(2):
                workers.wait_for(r, "lost")
        with rack.Aggregator() as second:
            with open(address + ".new", "w") as f:
                f.write(second.address)
            os.rename(address + ".new", address)
            outcomes = workers.finish()
        for o in outcomes:
            self.assertIsNone(o.error, o.output)
            self.assertRegex(o.result[0], "aggregator")
        self.assert_ranks_equal([o.result[1] for o in outcomes])

    def test_a_worker_that_dies_ends_backward_at_the_others(self):
        outcomes = rack.kill_one(waits_for_rank_1, 3, self.aggregator.address, "dies")
        for r in (0, 2):
            self.assertRegex(outcomes[r].error, "JobFailedError.*worker 1")

    def test_ctrl_c_ends_a_backward_that_waits_for_another_rank(self):
        workers = rack.Workers(interrupted, 2, self.aggregator.address, env={"RACKWEAVE_JOB": "interrupt"})
        for r in range(2):
            workers.wait_for(r, "ready")
        time.sleep(1)  # rank 0 is in backward then
        workers.processes[0].send_signal(signal.SIGINT)
        sent = time.monotonic()
        workers.processes[0].wait(rack.DEADLINE)
        self.assertLess(time.monotonic() - sent, 25)  # far from the 30 seconds after which it would give up
        workers.processes[1].kill()
        outcomes = workers.finish()
        self.assertEqual(outcomes[0].result, "interrupted", outcomes[0])
        self.assertEqual(outcomes[0].code, 0)

    def test_mistakes_are_named_with_their_remedy(self):
        (texts,) = self.run_workers(mistakes, 1)
        for text, want in zip(
            texts,
            (
                "no parameter that requires a gradient",
                "fused needs the optimizer",
                "no rule for Adadelta",
                "with amsgrad",
                "'2.weight' is not the optimizer's",
                "ignore, count, refuse",
                "'0.weight' is to travel as 'int8'",
                "hook already",
                "hook already",
                "float64",
                "'0.weight' was changed",
                "scale all groups alike",
                "was changed after backward",
                "no_sync",
                "skip_step is for fused=True",
                "'weight' is of type torch.bfloat16 on cpu, and was of torch.float32 on cpu when attached",
                "max_norm is '1': give a number above 0",
                "no backward has pushed a gradient since the last step, and 'weight' has one that the aggregator does not see: "
                "call zero",
                "and 'weight' has one that the aggregator does not see",
                "a group's lr is nan",
                "other groups than when attached",
            ),
        ):
            self.assertIn(want, text)

    def test_bfloat16_that_gloo_does_not_broadcast_is_refused_by_name(self):
        for text in self.run_workers(halves_without_a_process_group, 2):  # PyTorch 2 broadcasts it
            refusal = "tensor '1.weight' is of type torch.bfloat16, which .* does not broadcast: use rackweave.torch.attach"
            self.assertRegex(text, f"^$|{refusal}")

    def test_a_checkpoint_that_is_refused_is_an_error_of_rank_0_and_training_goes_on(self):
        (text, first), (nothing, second) = self.run_workers(restores_nothing, 2)
        self.assertRegex(text, "never-saved.*outside")
        self.assertEqual(nothing, "")
        np.testing.assert_array_equal(first, second)


if __name__ == "__main__":
    unittest.main()
