"""Training by RackWeave gives what MXNet's dist_sync gives: the same script, seeds and data."""

import numpy as np
import pytest

import jobs

STEPS = 100
TASKS = ["gluon-sgd", "module-adam", "gluon-dcasgd", "module-sgd"]
TOLERANCE = 1e-5  # of the weights' norm; dist_sync sums in the order of arrival


@pytest.fixture(scope="module", params=[2, 4], ids=["2 workers", "4 workers"])
def trained(request, tmp_path_factory):
    """Returns the weights by task and rank: of dist_sync, and of two runs of RackWeave."""
    workers = request.param

    def read(folder):
        return {t: [dict(np.load(folder / f"{t}.{r}.npz")) for r in range(workers)] for t in TASKS}

    folders = [tmp_path_factory.mktemp(name) for name in ("native", "once", "again")]
    for task in TASKS:  # one store to a run: dist_sync's servers keep the keys
        jobs.native(workers, "train.py", folders[0], STEPS, task, TEST_KVSTORE="dist_sync")
    for folder in folders[1:]:
        jobs.rackweave(workers, "train.py", folder, STEPS, *TASKS)
    return [read(folder) for folder in folders]


def weights(result):
    return {k: v for k, v in result.items() if k != "accuracy"}


@pytest.mark.parametrize("task", TASKS)
def test_weights_equal_those_of_dist_sync(trained, task):
    native, once, _ = trained
    want = weights(native[task][0])
    difference = np.concatenate([(once[task][0][name] - w).ravel() for name, w in want.items()])
    assert np.linalg.norm(difference) <= TOLERANCE * np.linalg.norm(np.concatenate([w.ravel() for w in want.values()]))


@pytest.mark.parametrize("task", TASKS)
def test_accuracy_equals_that_of_dist_sync(trained, task):
    native, once, _ = trained
    assert [r["accuracy"] for r in once[task]] == [r["accuracy"] for r in native[task]]


@pytest.mark.parametrize("task", TASKS)
def test_ranks_are_bit_equal(trained, task):
    _, once, _ = trained
    for other in once[task][1:]:
        for name, want in weights(once[task][0]).items():
            np.testing.assert_array_equal(other[name], want)


@pytest.mark.parametrize("task", TASKS)
def test_two_runs_are_bit_equal(trained, task):
    _, once, again = trained
    for name, want in weights(once[task][0]).items():
        np.testing.assert_array_equal(again[task][0][name], want)
