"""Frameworks on top of torch's DistributedDataParallel, trained over Gloo and with the aggregator's sums: the same bits."""

from __future__ import annotations

import importlib.util
import os
import unittest

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import rack
import rackweave
import rackweave.torch
from test_torch import batch, gloo, plain, sgd, train, weights

FRAMEWORK = "torch"
STEPS = 6
MISSING = [name for name in ("accelerate", "transformers", "lightning") if importlib.util.find_spec(name) is None]
SKIP = f"not installed: {', '.join(MISSING)}" if MISSING else ""
SKIP = SKIP if os.environ.get("RACKWEAVE_LONG") else "RACKWEAVE_LONG is not set"


def samples():
    return [dict(zip(("x", "labels"), (t[0] for t in batch(i, 7, 1)))) for i in range(2 * STEPS * 4)]


class Judged(torch.nn.Module):
    """A model that returns its loss."""

    def __init__(self):
        super().__init__()
        self.layers = plain(0)

    def forward(self, x, labels):
        return {"loss": F.cross_entropy(self.layers(x), labels)}


def accelerated(hook, directory):
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Judged()
    model, optimizer, loader = accelerator.prepare(
        model, sgd(model.parameters()), torch.utils.data.DataLoader(samples(), batch_size=4)
    )
    model = hook(model)
    for item in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**item)["loss"])
            accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    return weights(accelerator.unwrap_model(model))


def by_transformers(hook, directory):
    import transformers

    class Hooked(transformers.TrainerCallback):
        def on_train_begin(self, *_, **__):
            hook(trainer.model_wrapped)

    settings = transformers.TrainingArguments(
        directory,
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,
    )
    trainer = transformers.Trainer(Judged(), settings, train_dataset=samples(), callbacks=[Hooked()])
    trainer.train()
    return weights(trainer.model)


def by_lightning(hook, directory):
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.judged = Judged()

        def training_step(self, item, _):
            return self.judged(**item)["loss"]

        def configure_optimizers(self):
            return sgd(self.parameters())

    class Strategy(DDPStrategy):
        def configure_ddp(self):
            super().configure_ddp()
            hook(self.model)

    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=rackweave.world_size(),
        strategy=Strategy(process_group_backend="gloo"),
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(samples(), batch_size=4))
    return weights(module)


def compiled(hook, directory):
    model = hook(DistributedDataParallel(plain(0), bucket_cap_mb=0.1))
    return train(torch.compile(model, backend="aot_eager"), sgd(model.parameters()), STEPS)


def checkpointed(hook, directory):
    import torch.distributed.checkpoint as dcp

    model = hook(DistributedDataParallel(plain(0)))
    optimizer = sgd(model.parameters())
    train(model, optimizer, STEPS)
    dcp.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=directory)
    other = hook(DistributedDataParallel(plain(1)))
    state = {"model": other.state_dict(), "optimizer": optimizer.state_dict()}
    dcp.load(state, checkpoint_id=directory)
    other.load_state_dict(state["model"])
    optimizer = sgd(other.parameters())
    optimizer.load_state_dict(state["optimizer"])
    return train(other, optimizer, STEPS)


def both(framework, store):
    rank, size = str(rackweave.rank()), str(rackweave.world_size())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=size, LOCAL_WORLD_SIZE=size, MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    gloo(store)  # needs neither address nor port
    hooked = []

    def hook(model):
        hooked.append(rackweave.torch.ddp(model))
        return hooked[-1]

    over_gloo = globals()[framework](lambda model: model, store + ".gloo")
    aggregated = globals()[framework](hook, store + ".rackweave")
    return over_gloo, aggregated, rackweave.torch.stats(hooked[-1])["sent_bytes"]


@unittest.skipIf(SKIP, SKIP)
class Frameworks(rack.Case):
    def same_bits(self, framework):
        results = self.run_workers(both, 2, framework, f"{self.directory.name}/{framework}")
        for over_gloo, aggregated, sent in results:
            np.testing.assert_array_equal(aggregated, over_gloo)
            self.assertGreater(sent, 0)
        self.assert_ranks_equal([aggregated for _, aggregated, _ in results])
        self.assertGreater(float(np.abs(results[0][0] - weights(plain(0))).max()), 1e-3)

    def test_accelerate_trains_to_the_same_bits(self):
        self.same_bits("accelerated")

    def test_the_trainer_of_transformers_trains_to_the_same_bits(self):
        self.same_bits("by_transformers")

    def test_lightning_trains_to_the_same_bits(self):
        self.same_bits("by_lightning")

    def test_a_compiled_model_trains_to_the_same_bits(self):
        self.same_bits("compiled")

    def test_a_model_goes_on_from_a_distributed_checkpoint_with_the_same_bits(self):
        self.same_bits("checkpointed")


if __name__ == "__main__":
    unittest.main()
