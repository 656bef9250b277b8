"""Which rows workers train on, by gluon's DataLoader."""

import pytest
from test_faults import aggregator, workers  # noqa: F401  aggregator is a fixture

ROWS = 93


def trained(address, store, n, loader_workers, balance=False):
    job = workers("train", address, store, loader_workers, balance, n=n, module="rows")
    outcomes = job.finish()
    for rank, o in enumerate(outcomes):
        assert o.code == 0 and not o.error, (rank, o)
    return [o.result for o in outcomes]


@pytest.mark.parametrize("n, loader_workers, balance", [(1, 0, False), (2, 2, True), (4, 2, False)])
def test_workers_train_on_each_row_of_an_epoch_once(aggregator, n, loader_workers, balance):  # noqa: F811
    results = trained(aggregator.address, "dist_sync_rackweave", n, loader_workers, balance)
    for epoch in range(2):
        assert sorted(row for epochs, _, _ in results for row in epochs[epoch]) == list(range(ROWS))
    for _, parameters, state in results:
        assert parameters == results[0][1]
        assert int(state["cursor"]) == ROWS and int(state["epoch"]) == 1 and "returned" not in state, state


@pytest.mark.parametrize("loader_workers", [0, 2])
def test_asynchronous_workers_train_on_each_row_of_two_epochs_once_each(aggregator, loader_workers):  # noqa: F811
    results = trained(aggregator.address, "dist_async_rackweave", 2, loader_workers)
    rows = sorted(row for epochs, _, _ in results for epoch in epochs for row in epoch)
    assert rows == sorted([*range(ROWS), *range(ROWS)])
