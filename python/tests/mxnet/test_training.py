"""Training by RackWeave gives what MXNet's dist_sync gives: the same script, seeds and data.

The sum of two gradients has one result, so with two workers all weights are equal bit by bit. Of more workers dist_sync adds up in
the order of arrival: two of its own runs differ, and training magnifies that. What it magnifies it to is measured.
"""

import numpy as np
import pytest

import jobs

STEPS = 100
TASKS = {
    # In predict mode convolutions leave their weights in oneDNN's own layout, and dist_sync's weights lie in no arena.
    2: ["gluon-sgd-predict", "gluon-sgd-static", "gluon-adam", "gluon-dcasgd", "module-sgd", "module-adam"],
    4: ["gluon-sgd", "gluon-adam", "gluon-dcasgd", "module-sgd"],
}
CASES = [(workers, task) for workers, tasks in TASKS.items() for task in tasks]
TOLERANCE = 1e-5
NOISE = 4  # times what two runs of dist_sync differ by, where that is more


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns what trains a number of workers, once: their results by task and rank, of dist_sync and of RackWeave twice."""
    done = {}

    def native(workers):
        folder = tmp_path_factory.mktemp("native")
        for task in TASKS[workers]:  # one store to a run: dist_sync's servers keep the keys
            jobs.native(workers, "train.py", folder, STEPS, task, TEST_KVSTORE="dist_sync")
        return folder

    def ours(workers):
        folder = tmp_path_factory.mktemp("rackweave")
        jobs.rackweave(workers, "train.py", folder, STEPS, *TASKS[workers])
        return folder

    def train(workers):
        if workers not in done:
            folders = {"native": native(workers), "once": ours(workers), "again": ours(workers)}
            if workers > 2:
                folders["native again"] = native(workers)
            done[workers] = {
                way: {t: [dict(np.load(folder / f"{t}.{r}.npz")) for r in range(workers)] for t in TASKS[workers]}
                for way, folder in folders.items()
            }
        return done[workers]

    return train


def weights(result):
    return {k: v for k, v in result.items() if k not in ("accuracy", "moved")}


def difference(a, b):
    """Returns how far two tensors are apart, relative to their norm."""
    return np.linalg.norm((a - b).ravel()) / np.linalg.norm(b.ravel())


@pytest.mark.parametrize("workers,task", CASES)
def test_weights_equal_those_of_dist_sync(trained, workers, task):
    runs = trained(workers)
    once, native = runs["once"][task][0], runs["native"][task][0]
    for name, want in weights(native).items():
        if workers == 2:
            np.testing.assert_array_equal(once[name], want)
        else:
            noise = difference(runs["native again"][task][0][name], want)
            assert difference(once[name], want) <= max(TOLERANCE, NOISE * noise), (name, noise)


@pytest.mark.parametrize("workers,task", CASES)
def test_accuracy_equals_that_of_dist_sync(trained, workers, task):
    runs = trained(workers)
    assert [r["accuracy"] for r in runs["once"][task]] == [r["accuracy"] for r in runs["native"][task]]


@pytest.mark.parametrize("workers,task", CASES)
def test_ranks_are_bit_equal(trained, workers, task):
    first, *others = trained(workers)["once"][task]
    for other in others:
        for name, want in weights(first).items():
            np.testing.assert_array_equal(other[name], want)


@pytest.mark.parametrize("workers,task", CASES)
def test_two_runs_are_bit_equal(trained, workers, task):
    runs = trained(workers)
    for name, want in weights(runs["once"][task][0]).items():
        np.testing.assert_array_equal(runs["again"][task][0][name], want)


@pytest.mark.parametrize("workers,task", CASES)
def test_less_than_a_twentieth_of_the_bytes_is_copied(trained, workers, task):
    for result in trained(workers)["once"][task]:
        exchanged, copied = result["moved"]
        assert exchanged > 0 and copied <= 0.05 * exchanged, (exchanged, copied)
