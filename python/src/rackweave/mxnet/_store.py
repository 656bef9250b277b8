"""The kvstore: MXNet's interface over sessions of the aggregator's."""

from __future__ import annotations

import functools
import math
import os
import re
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import mxnet as mx
import numpy as np
from mxnet.kvstore import KVStoreBase

from .. import _lib, _open, _world
from .._session import Session, Tensor
from ..errors import ClosedError, ConfigError, Error
from . import _arena, _engine, _sparse, _states, _watchdog
from ._optimizers import MOMENTUM, STORAGES, Rule, repeats, rule_of
from ._values import TYPES, WrongArrayError, WrongKeyError, check, fits, on_host, pairs, spread, whole

TYPE = "dist_sync_rackweave"


class _Key:
    """One key: a tensor of the session, and the worker's arrays that belong to it."""

    def __init__(self, key: Any, array: Any, sparse: bool) -> None:
        self.key = key
        self.shape, self.dtype, self.stype = array.shape, np.dtype(array.dtype), array.stype
        self.sparse = sparse  # only rows are exchanged
        self.alone = False  # the aggregator alone has the value
        self.pushed: Any = None  # rows that are under way
        self.union: Any = None  # the rows that the last exchange brought
        self.tensor = -1
        self.exchange: Any = None
        self.value: Any = None  # the array that has the key's value
        self.own = False  # nobody else holds it
        self.merged: Any = None  # the sum, where it is not the result
        self.steps = 0  # updates that the aggregator has made
        self.checked: Tuple[Any, Any] = (None, None)  # gradient and result of the last exchange
        self.direct = False  # both can be exchanged where they are
        self.residual: Any = None  # what codecs have left for the next session

    def settle(self) -> None:
        """Waits until the key's exchanges are done. Raises what made one of rows fail."""
        self.exchange.wait()
        pushed, self.pushed = self.pushed, None
        if pushed is not None:
            pushed.wait()


class RackWeave(mx.kvstore.KVStore):
    """A kvstore whose values are summed, and updated, by a RackWeave aggregator.

    As dist_sync it sums over all devices of all workers. Optimizers that the aggregator knows run there, with hyper-parameters as
    they are at each step; others run in the workers on the sum. Both give what local training gives.
    """

    in_step = True  # all workers' gradients make one update

    def __init__(self) -> None:
        self._world = _world.world()
        self._keys: Dict[Any, _Key] = {}
        self._session: Optional[Session] = None
        self._native: Optional[_engine.Store] = None
        self._updater: Any = None
        self._rule: Optional[Rule] = None
        self._named: Dict[str, float] = {}  # the rule's hyper-parameters that the session was made with
        self._lazy = dict.fromkeys(STORAGES, False)  # by a value's storage: the rule leaves rows alone that no gradient touches
        self._codecs = self._world.settings.compress
        self._nonfinite = _nonfinite(os.environ.get("RACKWEAVE_NONFINITE", "count"))
        self._nonfinite_rows = 0
        self._barriers = 0
        self._closed = False
        self.names: Dict[Any, str] = {}  # of parameters, by the keys that a Trainer gives them
        self.sparse: Set[Any] = set()  # keys of dense values whose gradients are row_sparse, as a Trainer or a Module says

    # What MXNet asks of a store.

    @property
    def type(self) -> str:
        """The name that tells MXNet that the store sums over workers, in step."""
        return TYPE

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""
        return self._world.rank

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return self._world.world_size

    @property
    def nonfinite(self) -> int:
        """How many gradients of this worker's held NaN or infinity.

        RACKWEAVE_NONFINITE says what such a gradient does: count, or refuse, which fails the job, or ignore.
        """
        return self._nonfinite_rows + (self._native.nonfinite()[0] if self._native is not None else 0)

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Tells that the store runs optimizers."""
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return True
        raise ValueError(f"capability {capability!r}: a kvstore is asked for {KVStoreBase.OPTIMIZER!r} only")

    def set_optimizer(self, optimizer: Any) -> None:
        """Updates the values by an optimizer from now on: at the aggregator if it has the rule, else in the workers."""
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise TypeError(f"an optimizer of type {type(optimizer).__name__}: use one of mxnet.optimizer")
        _arena.move_parameters(optimizer.param_dict.values())
        self._set_updater(mx.optimizer.get_updater(optimizer))

    def _set_updater(self, updater: Any) -> None:
        """Updates the values by a function of key, sum and value from now on. Every worker calls it."""
        self._updater = updater
        self._change_rule()

    def set_gradient_compression(self, compression_params: Dict[str, Any]) -> None:
        """Compresses gradients from now on: to 2 bits as MXNet does, {"type": "2bit", "threshold": 0.5}, or by another codec.

        {"type": "int8"}, or any other text that init takes as compress, is for the answers, too. What is left out is sent later.
        Every worker calls it.
        """
        params = dict(compression_params) if isinstance(compression_params, dict) else {}
        kind = params.pop("type", None)
        if kind == "2bit":
            try:
                threshold = float(params.pop("threshold", 0.5))
            except (TypeError, ValueError):
                threshold = math.nan
            if not 0 < threshold < math.inf:
                raise ConfigError(f"gradient compression {compression_params}: use a finite threshold above 0")
            kind = f"2bit:{threshold!r}/none"
        if params or not isinstance(kind, str):
            raise ConfigError(
                f"gradient compression {compression_params}: use {{'type': '2bit', 'threshold': a number above 0}}, "
                "or a type that init takes as compress, such as int8"
            )
        changed, self._codecs = kind != self._codecs, kind
        if changed:
            self._rejoin()

    def init(self, key: Any, value: Any) -> None:
        """Gives keys rank 0's values, for pull."""
        for k, values in pairs(key, value):
            self.declare([(k, values[0])])
            entry = self._keys[k]
            if not entry.sparse or values[0].stype == "default":
                self._take(entry)
            self._broadcast(entry, values[0], [] if entry.value is None else [entry.value])

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """Gives keys rank 0's values and writes them to out, at every worker."""
        given = list(pairs(key, value, out))
        self.declare([(k, values[0]) for k, values, _ in given])
        for k, values, outs in given:
            self._broadcast(self._keys[k], values[0], outs)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Sums values over all workers and writes the sum, or the updated weight, to out, by default to value.

        Returns at once: MXNet's engine makes what reads out wait.
        """
        given = list(pairs(key, value, value if out is None else out))
        if len(given) > 1 and len({id(a) for _, values, _ in given for a in values}) < sum(len(values) for _, values, _ in given):
            self.push(key, value, priority)  # keys share arrays, which may be the results' too: all are read before one is written
            self.pull(key, value if out is None else out, priority, ignore_sparse=False)
            return
        for k, values, outs in given:
            self._exchange(k, values, outs, priority)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Sums values over all workers into the key's value, or updates it by the sum; pull reads it."""
        for k, values in pairs(key, value):
            if k not in self._keys:
                self.declare([(k, values[0])])
            entry = self._keys[k]
            if not entry.sparse:
                self._take(entry)
            self._exchange(k, values, () if entry.sparse else (entry.value,), priority)

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copies keys' values to out; leaves row_sparse arrays as they are, unless ignore_sparse is False."""
        for k, outs in pairs(key, out):
            entry = self._known(k)
            self._check()
            wanted = [a for a in outs if not ignore_sparse or getattr(a, "stype", "") != "row_sparse"]
            for array in wanted:
                check(k, array)
                fits(entry, array)
            if wanted:
                spread(_sparse.fetch(self, entry) if entry.sparse else entry.value, wanted)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Copies the rows listed in row_ids from keys' values to out, row_sparse arrays. Ids may repeat and come in any order."""
        if out is None:
            raise WrongArrayError(
                f"key {key!r}: row_sparse_pull has no array to fill: give out=, a row_sparse array of the key's shape"
            )
        if isinstance(key, (list, tuple)) and not (isinstance(row_ids, (list, tuple)) and len(row_ids) == len(key)):
            raise WrongArrayError(f"row_sparse_pull of {len(key)} keys: give as many row_ids, in a list: an NDArray for each key")
        for k, outs, ids in pairs(key, out, row_ids):
            entry = self._known(k)
            self._check()
            with mx.autograd.pause():  # a forward pass may be recorded
                _sparse.pull_rows(self, entry, outs, ids)

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Writes the optimizer's states to a file that local training reads, too. Every worker calls it, all with the same keys."""
        self._need_updater("save")
        if self._rule is not None:
            self._updater.states = _states.read(self._opened(), self._rule, self._keys.values())
            self._updater.states_synced = dict.fromkeys(self._updater.states, True)
        with open(fname, "wb") as f:
            f.write(self._updater.get_states(dump_optimizer))

    def load_optimizer_states(self, fname: str) -> None:
        """Reads the optimizer's states from a file of save_optimizer_states or of local training. Every worker calls it."""
        self._need_updater("load")
        with open(fname, "rb") as f:
            states = f.read()
        try:
            self._updater.set_states(states)
        except Exception as e:  # whatever pickle meets
            raise ConfigError(f"{fname}: {e}: give a file of save_states or save_optimizer_states") from e
        self._change_rule()
        if self._rule is not None:
            _states.write(self._opened(), self._keys.values(), self._updater.states)

    def _need_updater(self, what: str) -> None:
        if not isinstance(self._updater, mx.optimizer.Updater):
            raise ConfigError(f"cannot {what} optimizer states: the kvstore has no optimizer: call set_optimizer first")

    def _settle_rows(self) -> None:
        for entry in self._keys.values():
            if entry.pushed is not None:
                entry.settle()

    def _barrier(self) -> None:
        """Waits until all workers are here."""
        self._settle_rows()
        self._barriers += 1
        self._opened().barrier(f"kvstore-{self._barriers}")

    def close(self) -> None:
        """Waits for what is under way and leaves the aggregator. Raises what made an exchange fail, unless it was raised before."""
        self._closed = True
        self._leave()

    def __del__(self) -> None:
        """Leaves the job of a kvstore that nobody refers to, such as that of a Trainer that is gone."""
        if getattr(self, "_session", None) in _open.open_sessions():
            _open.close_dropped(self._drop)

    def _drop(self) -> None:
        try:
            self.close()
        except Error as e:
            _watchdog.warn(e)

    # Keys.

    def _known(self, key: Any) -> _Key:
        try:
            return self._keys[key]
        except KeyError:
            raise WrongKeyError(f"key {key!r} has no value: call init or broadcast with it first") from None

    def declare(self, pairs: Sequence[Tuple[Any, Any]]) -> None:
        """Registers the keys that are new, by arrays of their shape and type."""
        new = []
        for key, array in pairs:
            check(key, array)
            if key in self._keys:
                fits(self._keys[key], array)
            elif all(key != e.key for e in new):
                other = next(iter(self._keys), key)
                if isinstance(key, str) != isinstance(other, str):
                    raise WrongKeyError(f"key {key!r} beside key {other!r}: use strings for all keys of a kvstore, or numbers")
                new.append(_Key(key, array, array.stype == "row_sparse" or key in self.sparse))
        if not new:
            return
        if self._rule is not None and any(e.dtype != np.float32 for e in new):
            self._rule = None  # the aggregator would update f16 in f32
            self._rejoin()
        self._register(new)
        self._keys.update((e.key, e) for e in new)

    def _register(self, entries: Sequence[_Key]) -> None:
        tensors = [
            Tensor(
                str(e.key),
                tuple(e.shape),
                TYPES[e.dtype],
                compress=e.dtype == np.float32 and not e.sparse,
                sparse=e.sparse,
                standard=e.sparse and self._rule is not None and not self._lazy[e.stype],
            )
            for e in entries
        ]
        for entry, number in zip(entries, self._opened().register(tensors)):
            entry.tensor, entry.steps = number, 0
            entry.exchange = _engine.Exchange(number, int(np.prod(entry.shape)), entry.dtype.itemsize, self._nonfinite)
            entry.checked = (None, None)
            self._opened().codecs.take(number, entry.residual)
            entry.residual = None

    def _take(self, entry: _Key) -> None:
        """Gives a key an array of its own for its value."""
        if entry.own:
            return
        array = _arena.weight(entry.shape, entry.dtype)
        array = mx.nd.zeros(entry.shape, dtype=entry.dtype) if array is None else array
        if entry.value is not None:
            entry.value.copyto(array)
        else:
            array[:] = 0
        entry.value, entry.own, entry.alone = array, True, False

    # Exchanges.

    def _broadcast(self, entry: _Key, value: Any, outs: Sequence[Any]) -> None:
        for array in outs:
            check(entry.key, array)
            fits(entry, array)
        source = value.as_in_context(mx.cpu()).tostype("default") if self.rank == 0 else None
        if entry.sparse:
            entry.settle()
        if entry.sparse and value.stype != "default":
            result = mx.nd.empty(entry.shape, dtype=entry.dtype)
            entry.exchange.start(self._open_store(), _lib.BROADCAST, source, result)
            entry.alone = self._rule is not None
            entry.value = None if entry.alone else result
            spread(result, outs)
            return
        if not entry.own and outs:
            entry.value = outs[0]
        result = entry.value if on_host(entry.value) else self._merged(entry)
        entry.exchange.start(self._open_store(), _lib.BROADCAST, source, result)
        spread(result, (entry.value, *outs))

    def _exchange(self, key: Any, values: Sequence[Any], outs: Sequence[Any], priority: int) -> None:
        store = self._open_store()
        if key not in self._keys and self._updater is None:
            self.declare([(key, values[0])])
        entry = self._known(key)
        if entry.sparse:
            _sparse.push(self, entry, values, priority)
            if outs:
                self.pull(key, outs, priority, ignore_sparse=False)
            return
        if entry.checked[0] is not values[0] or entry.checked[1] is not outs[0] or len(values) > 1 or len(outs) > 1:
            for array in (*values, *outs):
                check(key, array)
                fits(entry, array)
            if any(array.stype != "default" for array in (*values, *outs)):
                self._take(entry)
                self._exchange(key, [v.tostype("default") for v in values], (entry.value,), priority)
                spread(entry.value, outs)
                return
            entry.checked = (values[0], outs[0])
            entry.direct = len(values) == 1 and on_host(values[0]) and on_host(outs[0])
        source = values[0] if entry.direct else self._sum(entry, values)
        if self._updater is None:
            if entry.value is not outs[0]:
                entry.value, entry.own = outs[0], False
            result = outs[0] if entry.direct else entry.merged
            entry.exchange.start(store, _lib.PUSHPULL, source, result, priority)
        elif self._rule is not None:
            target = entry.value if entry.own else outs[0]
            result = target if entry.direct else entry.merged
            entry.exchange.start(store, _lib.PUSHPULL, source, result, priority, self._hyper(entry))
            if result is not target:
                result.copyto(target)
        else:
            merged, result = self._merged(entry), entry.value
            entry.exchange.start(store, _lib.PUSHPULL, source, merged, priority)
            self._update(entry, merged, outs)
            return
        if len(outs) > 1 or result is not outs[0]:
            spread(result, outs)

    def _update(self, entry: _Key, merged: Any, outs: Sequence[Any] = ()) -> None:
        """Updates a key's value by a sum, here."""
        self._updater(entry.key, merged.as_in_context(entry.value.context), entry.value)
        if repeats(self._optimizer()):
            spread(entry.value, outs)
        else:
            self._broadcast(entry, entry.value, outs)

    def _optimizer(self) -> Any:
        return getattr(self._updater, "optimizer", None)

    def _sum(self, entry: _Key, values: Sequence[Any]) -> Any:
        """Sums the values of this worker's devices."""
        merged = self._merged(entry)
        mx.nd.add_n(*(v.as_in_context(mx.cpu()) for v in values), out=merged)
        return merged

    def _merged(self, entry: _Key) -> Any:
        """Returns the key's array for sums that are not its value."""
        if entry.merged is None:
            merged = _arena.gradient(entry.shape, entry.dtype)
            entry.merged = mx.nd.zeros(entry.shape, dtype=entry.dtype) if merged is None else merged
        return entry.merged

    # Sessions.

    def _opened(self) -> Session:
        self._open_store()
        assert self._session is not None
        return self._session

    def _open_store(self) -> _engine.Store:
        """Returns the session's exchanges; the first call joins. Raises what made the session fail."""
        if self._session is None:
            if self._closed:
                raise ClosedError("the kvstore is closed: make another by mxnet.kvstore.create")
            self._session = self._join()
            self._session.explain = functools.partial(_explained, self._keys, self.names)  # holds no kvstore, which may go first
            self._native = _engine.Store(self._session)
            _watchdog.follow(self._session, self._native)
        assert self._native is not None
        try:
            self._session.check()
        except Error:
            self._native.told = True
            raise
        return self._native

    def _check(self) -> None:
        """Raises what made an exchange fail."""
        if self._native is not None:
            self._native.check()

    def _join(self) -> Session:
        if self._rule is None:
            return self._world.session(**self._coding())
        return self._world.session(mode="eager", optimizer=self._rule.name, hyper=self._named, **self._coding())

    def _coding(self) -> Dict[str, Any]:
        return {"compress": self._codecs, "as_is": self._codecs.startswith("2bit")}  # as MXNet's, which knows no learning rate

    def _hyper(self, entry: _Key) -> List[float]:
        """Counts an update of the key and returns what to tell the aggregator for it."""
        assert self._rule is not None
        entry.steps += 1
        hyper = self._rule.hyper(self._updater.optimizer, entry.key, entry.steps)
        if self._named.get("momentum") == 0:
            hyper[MOMENTUM] = 0.0  # as MXNet's updater, which makes a momentum's state at the first update or never
        return hyper

    def _change_rule(self) -> None:
        """Follows a change of optimizer, whose states begin anew: in another session where this one has states, or another rule."""
        optimizer, entries = self._optimizer(), self._keys.values()
        rule = rule_of(optimizer) if all(e.dtype == np.float32 for e in entries) else None
        named = rule.named(optimizer) if rule is not None else {}
        lazy = {stype: rule is not None and rule.lazy(optimizer, stype) for stype in STORAGES}
        same = rule is self._rule and named == self._named and (lazy == self._lazy or not any(e.sparse for e in entries))
        kept = same and not any(e.steps for e in entries)
        self._rule, self._named, self._lazy = rule, named, lazy
        if not kept:
            self._rejoin()

    def _rejoin(self) -> None:
        """Goes on in another session, with the values as they are."""
        if self._session is None:
            return
        entries = list(self._keys.values())
        for entry in entries:
            if entry.alone:
                entry.value, entry.alone, entry.own = whole(_sparse.fetch(self, entry)), False, False
        self._leave(to_go_on=True)
        if not entries:
            return
        self._register(entries)
        for entry in entries:
            if entry.value is not None:
                self._broadcast(entry, entry.value, [entry.value] if entry.value.stype == "default" else [])

    def _leave(self, to_go_on: bool = False) -> None:
        session, native = self._session, self._native
        if session is None or native is None:
            return
        _watchdog.settle(session, native)
        self._session = self._native = None
        try:
            if not native.told:
                native.check()
                self._settle_rows()
            for entry in self._keys.values() if to_go_on else ():
                entry.residual = session.codecs.residual(entry.tensor)
        finally:
            session.close()
            native.close()


_SAYS = ("lr", "wd", "rescale_grad", "clip_gradient", "momentum or beta1", "beta2, gamma1 or lamda1", "epsilon or beta")


def _explained(keys: Dict[Any, _Key], names: Dict[Any, str], text: str) -> str:
    """Adds to an error that names a key what parameter that is, and what this rank told of it where ranks told different things."""
    found = re.search(r'(?:tensor|key) "?([^\s",;]+)', text)
    key = next((k for k in (*keys, *names) if found and str(k) == found[1]), None)
    if key in names:
        text += f"; {key} is parameter {names[key]!r} here"
    if key in keys and "other hyper-parameters" in text:
        told = ", ".join(f"{name} {value:g}" for name, value in zip(_SAYS, keys[key].exchange.hyper) if value)
        text += f"; this rank sent {told}: give all ranks the same optimizer, multipliers and batch size"
    return text


def _nonfinite(name: str) -> int:
    try:
        return {"ignore": _engine.IGNORE, "count": _engine.COUNT, "refuse": _engine.REFUSE}[name]
    except KeyError:
        raise ConfigError(f"RACKWEAVE_NONFINITE is {name!r}: use count, refuse or ignore") from None
