"""The kvstore by itself: every check of programs/store.py, in one job."""

import re

import pytest

import jobs

NAMES = re.findall(r"@check\ndef (\w+)", (jobs.PROGRAMS / "store.py").read_text())


# Of mode stream, whose jobs are at one aggregator, or of none.
ALONE = {name for name in NAMES if "asynchronous" in name} | {"signal_handlers_are_left_alone"}


@pytest.fixture(scope="module")
def spread():
    with jobs.aggregators(2) as server:
        return jobs.rackweave(2, "store.py", *sorted(set(NAMES) - ALONE), check=False, server=server)


@pytest.mark.parametrize("name", sorted(set(NAMES) - ALONE))
def test_check_over_two_aggregators(spread, name):
    held = [rank for rank in range(2) if f"[{rank}] ok {name}\n" in spread]
    assert held == [0, 1], spread[-6000:]


@pytest.fixture(scope="module")
def printed():
    return jobs.rackweave(2, "store.py", check=False)


@pytest.mark.parametrize("name", NAMES)
def test_check(printed, name):
    held = [rank for rank in range(2) if f"[{rank}] ok {name}\n" in printed]
    assert held == [0, 1], printed[-6000:]
