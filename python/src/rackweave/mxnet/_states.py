"""Optimizer states between the aggregator and MXNet's updater, whose files local training reads and writes."""

from __future__ import annotations

import itertools
from typing import Any, Dict, Iterable, List

import mxnet as mx
import numpy as np

from .._session import Session
from ..errors import ConfigError, OutOfRangeError
from ._optimizers import Rule
from ._values import whole


def read(session: Session, rule: Rule, entries: Iterable[Any]) -> Dict[Any, Any]:
    """Returns the states of keys that were updated, as MXNet's updater keeps them."""
    states = {}
    for entry in entries:
        if entry.steps == 0:
            continue
        entry.settle()
        arrays = [mx.nd.array(x.reshape(entry.shape)) for x in _arrays(session, entry.tensor)]
        if entry.alone:  # the value is row_sparse, and so are the states
            arrays = [whole(x) for x in arrays]
        states[entry.key] = rule.pack(arrays)
    return states


def _arrays(session: Session, tensor: int) -> Iterable[np.ndarray]:
    for number in itertools.count(1):  # 0 is the parameters
        try:
            yield np.frombuffer(session.read_state(tensor, number), "<f4")
        except OutOfRangeError:
            return


def write(session: Session, entries: Iterable[Any], states: Dict[Any, Any]) -> None:
    """Gives the aggregator states as MXNet's updater keeps them. Every rank calls it with the same; rank 0 sends them."""
    entries = list(entries)
    for entry in entries:
        entry.settle()
    for entry in entries:
        for array in _listed(states.get(entry.key)):
            if array.shape != entry.shape:
                raise ConfigError(
                    f"key {entry.key!r} has shape {entry.shape} and its optimizer state {array.shape}: the file is of another model"
                )
    session.barrier("before-loading-states")
    if session.rank == 0:
        for entry in entries:
            for number, array in enumerate(_listed(states.get(entry.key)), 1):
                session.write_state(entry.tensor, number, array.astype("float32").asnumpy().astype("<f4").tobytes())
    session.barrier("after-loading-states")


def _listed(state: Any) -> List[Any]:
    if state is None:
        return []
    return list(state) if isinstance(state, (list, tuple)) else [state]
