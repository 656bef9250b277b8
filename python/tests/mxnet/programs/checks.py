"""Checks of the kvstore: what they share. A program of them prints "ok" and the name of each that holds."""

import sys

import numpy as np
from common import RANK, WORKERS, mx

CHECKS = []
N = WORKERS
TOTAL = N * (N + 1) / 2  # of rank + 1 over all ranks


def check(function):
    CHECKS.append(function)
    return function


def store():
    return mx.kv.create("dist_sync_rackweave")


def mine(*shape, dtype="float32"):
    return mx.nd.full(shape, RANK + 1, dtype=dtype)


def same(array, want):
    np.testing.assert_array_equal(array.asnumpy(), np.broadcast_to(np.float32(want), array.shape))


def raises(error, text, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except error as e:
        assert text in str(e), f"{text!r} is not in {e}"
        return
    raise AssertionError(f"no {error} was raised")


class Noisy(mx.optimizer.Optimizer):
    """A user's own optimizer."""

    def create_state(self, index, weight):
        return None

    def update(self, index, weight, grad, state):
        weight[:] = weight - 0.01 * grad + 0.01 * mx.nd.array(np.random.normal(size=weight.shape))


def main():
    for function in CHECKS:
        if len(sys.argv) == 1 or function.__name__ in sys.argv[1:]:
            function()
            print("ok", function.__name__)
