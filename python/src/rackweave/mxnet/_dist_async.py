"""The kvstore of dist_async: each worker's gradient updates the weights by itself, when it comes."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Set

from .._session import Session
from ..errors import ConfigError
from ._optimizers import SCALE
from ._store import RackWeave, _Key

TYPE = "dist_async_rackweave"


class RackWeaveAsync(RackWeave):
    """A kvstore whose values each worker updates by itself, without waiting for the others.

    As of dist_async, a step is called with this worker's own batch size, and an update takes the learning rate as it is. The
    optimizer must be one that the aggregator knows. The keys of a step are those that are exchanged before one of them is again.
    """

    in_step = False

    def __init__(self) -> None:
        super().__init__()
        self._exchanged: Set[Any] = set()  # in this step

    @property
    def type(self) -> str:
        """The name that tells MXNet that the workers do not keep step."""
        return TYPE

    def _exchange(self, key: Any, values: Sequence[Any], outs: Sequence[Any], priority: int) -> None:
        if self._updater is None:
            raise ConfigError(f"{TYPE}: there is no optimizer: call set_optimizer first, or use dist_sync_rackweave")
        if key in self._exchanged:
            self._settle_rows()
            self._open_store().end_step(e.exchange for e in self._keys.values())
            self._exchanged.clear()
        super()._exchange(key, values, outs, priority)
        self._exchanged.add(key)

    def _join(self) -> Session:
        if self._rule is None:
            optimizer = "there is none" if self._updater is None else f"it is {type(self._optimizer()).__name__}"
            raise ConfigError(
                f"{TYPE}: the aggregator runs the optimizer, and {optimizer}: set SGD, NAG, Adam, AdaGrad, RMSProp or Ftrl and "
                "float32 weights before there are values, or use dist_sync_rackweave"
            )
        self._exchanged.clear()
        named: Dict[str, Any] = {"optimizer": self._rule.name, "hyper": self._named}
        return self._world.session(mode="stream", policy="asp:rate=1", **named, **self._coding())

    def _hyper(self, entry: _Key) -> List[float]:
        hyper = super()._hyper(entry)
        hyper[SCALE] /= self.num_workers  # the aggregator takes a gradient for all workers' sum
        return hyper
