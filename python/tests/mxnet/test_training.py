"""Training by RackWeave gives what MXNet's dist_sync gives: the same script, seeds and data.

The sum of two gradients has one result, so with two workers all weights are equal bit by bit. Of more workers dist_sync adds up in
the order of arrival: two of its own runs differ, and training magnifies that. What it magnifies it to is measured.
"""

import numpy as np
import pytest

import jobs

STEPS = 20
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
    """Returns what gives the results of a way of training, by rank; each is trained once. Ways are native, once and again."""
    folders = {}

    def train(way, workers, task):
        # One store to a run of dist_sync: its servers keep the keys.
        tasks = [task] if "native" in way else TASKS[workers]
        run = (way, workers, *tasks)
        if run not in folders:
            folders[run] = folder = tmp_path_factory.mktemp("trained")
            if "native" in way:
                jobs.native(workers, "train.py", folder, STEPS, task, TEST_KVSTORE="dist_sync")
            else:
                jobs.rackweave(workers, "train.py", folder, STEPS, *tasks)
        return [dict(np.load(folders[run] / f"{task}.{r}.npz")) for r in range(workers)]

    return train


@pytest.mark.parametrize("workers", [1, 4])
def test_gradients_in_2_bits_give_the_weights_of_dist_sync(workers, tmp_path):
    ours, native = tmp_path / "ours", tmp_path / "native"
    ours.mkdir()
    native.mkdir()
    jobs.rackweave(workers, "train.py", ours, 10, "push-sgd")
    jobs.native(workers, "train.py", native, 10, "push-sgd", TEST_KVSTORE="dist_sync")
    for rank in range(workers):
        got, want = (weights(dict(np.load(d / f"push-sgd.{rank}.npz"))) for d in (ours, native))
        assert got.keys() == want.keys() and len(got) == 3
        for name in want:
            np.testing.assert_array_equal(got[name], want[name])


def weights(result):
    return {k: v for k, v in result.items() if k not in ("accuracy", "moved")}


def difference(a, b):
    """Returns how far two tensors are apart, relative to their norm."""
    return np.linalg.norm((a - b).ravel()) / np.linalg.norm(b.ravel())


@pytest.mark.parametrize("workers,task", CASES)
def test_weights_equal_those_of_dist_sync(trained, workers, task):
    once, native = (trained(way, workers, task)[0] for way in ("once", "native"))
    for name, want in weights(native).items():
        if workers == 2:
            np.testing.assert_array_equal(once[name], want)
        elif (far := difference(once[name], want)) > TOLERANCE:
            noise = difference(trained("native again", workers, task)[0][name], want)
            assert far <= NOISE * noise, (name, far, noise)


@pytest.mark.parametrize("workers,task", CASES)
def test_accuracy_equals_that_of_dist_sync(trained, workers, task):
    once, native = (trained(way, workers, task) for way in ("once", "native"))
    assert [r["accuracy"] for r in once] == [r["accuracy"] for r in native]


@pytest.mark.parametrize("workers,task", CASES)
def test_ranks_are_bit_equal(trained, workers, task):
    first, *others = trained("once", workers, task)
    for other in others:
        for name, want in weights(first).items():
            np.testing.assert_array_equal(other[name], want)


@pytest.mark.parametrize("workers,task", CASES)
def test_two_runs_are_bit_equal(trained, workers, task):
    once, again = (trained(way, workers, task)[0] for way in ("once", "again"))
    for name, want in weights(once).items():
        np.testing.assert_array_equal(again[name], want)


@pytest.mark.parametrize("workers,task", CASES)
def test_less_than_a_twentieth_of_the_bytes_is_copied(trained, workers, task):
    for result in trained("once", workers, task):
        exchanged, copied = result["moved"]
        assert exchanged > 0 and copied <= 0.05 * exchanged, (exchanged, copied)
