"""RackWeave for PyTorch.

    model = rackweave.torch.ddp(model)                    # DistributedDataParallel, its gradients averaged by the aggregator

or, without DistributedDataParallel,

    rackweave.torch.attach(model, optimizer)              # gradients averaged when backward returns
    rackweave.torch.attach(model, optimizer, fused=True)  # the optimizer runs at the aggregator
"""

from __future__ import annotations

from ._attach import Attached, attach
from ._broadcast import broadcast_optimizer_state
from ._ddp import ddp, detach, stats

__all__ = ["Attached", "attach", "broadcast_optimizer_state", "ddp", "detach", "stats"]
