"""Row_sparse arrays and the rest of MXNet's KVStore: every check of programs/sparse.py, in one job."""

import re

import pytest

import jobs

NAMES = re.findall(r"@check\ndef (\w+)", (jobs.PROGRAMS / "sparse.py").read_text())

ALIKE = [name for name in NAMES if "asynchronous" not in name]  # jobs of mode stream are at one aggregator


@pytest.fixture(scope="module")
def printed():
    return jobs.rackweave(2, "sparse.py", check=False)


@pytest.fixture(scope="module")
def spread():
    with jobs.aggregators(2) as server:
        return jobs.rackweave(2, "sparse.py", *ALIKE, check=False, server=server)


@pytest.mark.parametrize("name", NAMES)
def test_check(printed, name):
    held = [rank for rank in range(2) if f"[{rank}] ok {name}\n" in printed]
    assert held == [0, 1], printed[-6000:]


@pytest.mark.parametrize("name", ALIKE)
def test_check_over_two_aggregators(spread, name):
    held = [rank for rank in range(2) if f"[{rank}] ok {name}\n" in spread]
    assert held == [0, 1], spread[-6000:]
