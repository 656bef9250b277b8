"""Parameters and gradients of gluon and Module in arena memory, which the aggregator reads and writes in place.

A forward pass in predict mode may leave a convolution's weight in oneDNN's own layout. The exchange puts that right before it
reads or writes (plain_layout in mxnet.c), which needs a weight's array to have the weight's shape. A gradient is a view of a flat
array: oneDNN does not write its own layout into a view.

What cannot be in the arena stays in ordinary memory, and is copied: row_sparse arrays, contexts but cpu(0), types but f32 and f16.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, Iterable, List, Optional

import mxnet as mx
import numpy as np
from mxnet.gluon import parameter as _parameter
from mxnet.module import executor_group as _executor_group

from . import _engine


def weight(shape: Any, dtype: Any) -> Optional[mx.nd.NDArray]:
    """Returns an array for a weight in the arena, its content undefined; None where there can be none."""
    return _engine.allocate(shape, dtype)


def gradient(shape: Any, dtype: Any) -> Optional[mx.nd.NDArray]:
    """Returns an array of zeros for a gradient in the arena; None where there can be none."""
    flat = _engine.allocate((int(np.prod(shape)),), dtype)
    if flat is None:
        return None
    flat[:] = 0
    return flat.reshape(tuple(shape))


def _movable(array: Any) -> bool:
    return array is not None and array.stype == "default" and array.context == mx.cpu(0) and not _engine.in_arena(array)


def _moved(array: Any, allocate: Any) -> Any:
    """Returns the array's copy in the arena; the array itself where it cannot be there or is already."""
    copy = allocate(array.shape, array.dtype) if _movable(array) else None
    if copy is None:
        return array
    if isinstance(array, mx.np.ndarray):
        copy = copy.as_np_ndarray()
    copy[:] = array
    return copy


def move_parameter(parameter: Any) -> bool:
    """Moves a gluon Parameter that has a gradient into the arena and reports whether its arrays changed."""
    if not parameter._data or not parameter._grad or parameter._stype != "default" or parameter._grad_stype != "default":
        return False
    with mx.autograd.pause():
        data = [_moved(a, weight) for a in parameter._data]
        grad = [_moved(a, gradient) for a in parameter._grad]
    if all(a is b for a, b in zip(data + grad, parameter._data + parameter._grad)):
        return False
    fresh = [a._fresh_grad for a in parameter._data]
    parameter._data, parameter._grad = data, grad
    mx.autograd.mark_variables(data, grad, parameter.grad_req)
    for array, was in zip(data, fresh):
        array._fresh_grad = was
    return True


def move_parameters(parameters: Iterable[Any]) -> None:
    """Moves gluon Parameters that were made before this module was imported.

    Graphs that a HybridBlock has compiled with static_shape hold on to the arrays they were made with, so they are compiled again.
    """
    moved = {id(p) for p in parameters if move_parameter(p)}
    if not moved:
        return
    for block in list(_hybrid_blocks()):
        if any(id(p) in moved for p in block.collect_params().values()):
            block._clear_cached_op()


def _hybrid_blocks() -> Iterable[Any]:
    import gc

    return (o for o in gc.get_objects() if isinstance(o, mx.gluon.HybridBlock))


def _after(method: Any) -> Any:
    """Wraps a method of Parameter so that what it made moves into the arena."""

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        method(self, *args, **kwargs)
        move_parameter(self)

    return wrapper


def _bind(method: Any) -> Any:
    """Wraps DataParallelExecutorGroup._bind_ith_exec so that parameters and gradients are made in the arena.

    MXNet looks for the arrays of what is not a parameter in a pool by name and size. The arena's arrays are put there, and the
    parameters' names are hidden while it looks. It refuses that where one is row_sparse, and then makes all arrays itself.
    """

    @functools.wraps(method)
    def wrapper(self: Any, i: int, data_shapes: Any, label_shapes: Any, shared_group: Any) -> Any:
        if self.contexts[i] != mx.cpu(0) or not self.for_training:
            return method(self, i, data_shapes, label_shapes, shared_group)
        pool: Dict[str, Any] = self.shared_data_arrays[i]
        trained = [name for name in self.param_names if self.grad_req.get(name, "null") != "null"]
        shapes = _shapes(self.symbol, list(data_shapes) + list(label_shapes or []))
        pooled: List[str] = []
        for name in trained:
            if name not in shapes:
                continue
            for entry, allocate in ((name, weight), ("grad of " + name, gradient)):
                if entry not in pool or pool[entry].shape != shapes[name]:
                    array = allocate(shapes[name], np.float32)
                    if array is None:
                        break
                    array[:] = 0
                    pool[entry] = array
            else:
                pooled.append(name)
        names = self.param_names
        self.param_names = [name for name in names if name not in pooled]
        try:
            return method(self, i, data_shapes, label_shapes, shared_group)
        except RuntimeError:
            for name in pooled:
                del pool[name], pool["grad of " + name]
        finally:
            self.param_names = names
        return method(self, i, data_shapes, label_shapes, shared_group)

    return wrapper


def _shapes(symbol: Any, inputs: List[Any]) -> Dict[str, Any]:
    """Returns the shapes of a symbol's f32 arguments, by name, for inputs with shapes and types."""
    arguments = symbol.list_arguments()
    shapes, _, _ = symbol.infer_shape(**{d.name: d.shape for d in inputs})
    types, _, _ = symbol.infer_type(**{d.name: d.dtype for d in inputs})
    if shapes is None or types is None:
        return {}
    return {name: tuple(shape) for name, shape, dtype in zip(arguments, shapes, types) if dtype == np.float32}


def install() -> None:
    """Makes gluon and Module allocate in the arena from now on."""
    _parameter.Parameter._init_grad = _after(_parameter.Parameter._init_grad)
    _parameter.Parameter.cast = _after(_parameter.Parameter.cast)
    group = _executor_group.DataParallelExecutorGroup
    group._bind_ith_exec = _bind(group._bind_ith_exec)
