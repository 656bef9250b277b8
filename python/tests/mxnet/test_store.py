"""The kvstore by itself: every check of programs/store.py, in one job."""

import re

import pytest

import jobs

NAMES = re.findall(r"@check\ndef (\w+)", (jobs.PROGRAMS / "store.py").read_text())


@pytest.fixture(scope="module")
def printed():
    return jobs.rackweave(2, "store.py", check=False)


@pytest.mark.parametrize("name", NAMES)
def test_check(printed, name):
    held = [rank for rank in range(2) if f"[{rank}] ok {name}\n" in printed]
    assert held == [0, 1], printed[-6000:]
