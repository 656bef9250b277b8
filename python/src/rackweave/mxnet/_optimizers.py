"""MXNet's optimizers that the aggregator runs itself: which they are, and what they tell it at each step."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Dict, List, Optional, Tuple

import mxnet as mx

Places = Tuple[float, float, float]  # momentum or beta 1; beta 2, alpha or lambda 1; epsilon or beta
SCALE, MOMENTUM = 2, 4  # places of a control record
STORAGES = ("default", "row_sparse")  # of weights


@dataclasses.dataclass(frozen=True)
class Rule:
    """An update rule of the aggregator's.

    Attributes:
        name: the rule's, for Join.
        names: what the places are called there; empty: the rule does not have it.
        places: reads them from an optimizer.
        corrects: the learning rate is multiplied by a factor that depends on the step's number.
        lazy: whether an optimizer leaves rows alone that a row_sparse gradient does not have, by the storage of the weight.
        pack: makes the state that MXNet's updater keeps of the arrays that the aggregator keeps.
    """

    name: str
    names: Tuple[str, str, str]
    places: Callable[[Any], Places]
    pack: Callable[[List[Any]], Any]
    lazy: Callable[[Any, str], bool] = lambda o, stype: False
    corrects: bool = False

    def named(self, optimizer: Any) -> Dict[str, float]:
        """Returns the hyper-parameters that say which states are kept, for Join."""
        return {name: value for name, value in zip(self.names, self.places(optimizer)) if name}

    def hyper(self, optimizer: Any, key: Any, steps: int) -> List[float]:
        """Counts an update of key and returns what to tell the aggregator for it, as MXNet's own updater would compute it.

        steps is how many updates of key the aggregator has made, with this one.
        """
        optimizer._update_count(key)
        lr, wd = optimizer._get_lr(key), optimizer._get_wd(key)
        first, second, epsilon = self.places(optimizer)
        count = optimizer._index_update_count[key]
        if self.corrects and count != steps:
            lr *= _correction(first, second, count) / _correction(first, second, steps)
        return [lr, wd, optimizer.rescale_grad, optimizer.clip_gradient or 0.0, first, second, epsilon, 0.0]


def _correction(beta1: float, beta2: float, count: int) -> float:
    """Returns what Adam multiplies the learning rate by."""
    return math.sqrt(1.0 - beta2**count) / (1.0 - beta1**count)


def _single(arrays: List[Any]) -> Any:
    return arrays[0] if arrays else None


def _lazy(optimizer: Any, stype: str) -> bool:
    return bool(optimizer.lazy_update)


_RULES = {
    mx.optimizer.SGD: Rule("sgd_mxnet", ("momentum", "", ""), lambda o: (o.momentum, 0.0, 0.0), _single, _lazy),
    mx.optimizer.NAG: Rule("nag_mxnet", ("momentum", "", ""), lambda o: (o.momentum, 0.0, 0.0), _single),
    mx.optimizer.Adam: Rule("adam_mxnet", ("beta1", "beta2", "eps"), lambda o: (o.beta1, o.beta2, o.epsilon), tuple, _lazy, True),
    mx.optimizer.AdaGrad: Rule(
        "adagrad_mxnet", ("", "", "eps"), lambda o: (0.0, 0.0, o.float_stable_eps), _single, lambda o, stype: True
    ),
    mx.optimizer.RMSProp: Rule("rmsprop_mxnet", ("", "alpha", "eps"), lambda o: (0.0, o.gamma1, o.epsilon), tuple),
    mx.optimizer.Ftrl: Rule(
        "ftrl_mxnet", ("", "lambda1", "beta"), lambda o: (0.0, o.lamda1, o.beta), tuple, lambda o, stype: stype == "row_sparse"
    ),
}


def rule_of(optimizer: Any) -> Optional[Rule]:
    """Returns the rule that does what the optimizer does; None: there is none, the workers must update.

    A class that a user derived from MXNet's may do anything, so it has none.
    """
    rule = _RULES.get(type(optimizer))
    if isinstance(optimizer, mx.optimizer.RMSProp) and (optimizer.centered or optimizer.clip_weights):
        return None
    return rule


def repeats(optimizer: Any) -> bool:
    """Reports whether all workers get the same weights from an optimizer that each of them runs.

    SGLD draws random numbers. A class that is not MXNet's may do anything.
    """
    return type(optimizer).__module__.startswith("mxnet.") and not isinstance(optimizer, mx.optimizer.SGLD)


def by_storage(optimizer: Any) -> bool:
    """Reports whether a row_sparse gradient may update a row_sparse weight otherwise than a dense one.

    MXNet's own do the same to both, but for these two; one of them, Test, does not take a row_sparse one.
    """
    own = type(optimizer).__module__.startswith("mxnet.")
    return not own or isinstance(optimizer, (mx.optimizer.Ftrl, mx.optimizer.contrib.GroupAdaGrad))
