"""rackweave.data with a service beside an aggregator: rackweave data serve."""

from __future__ import annotations

import os
import subprocess
import tempfile
import types
import unittest
from typing import List
from unittest import mock

import rack
import rackweave
from rackweave.data import Sampler

ROWS = 157


class Beside:
    """A running service, which can be killed and started again."""

    def __init__(self, journal: str) -> None:
        self._journal = journal
        self.address = "http://127.0.0.1:0"
        self.start()

    def start(self) -> None:
        listen = self.address.replace("http://", "")
        command = [rack.BINARY, "data", "serve", "--listen", listen, "--journal", self._journal, "--until-eof"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def kill(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Services(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.service = Beside(os.path.join(directory.name, "journal"))
        self.addCleanup(lambda: self.service.kill())

    def sampler(self, rank: int, workers: int, **options: object) -> Sampler:
        env = {"RACKWEAVE_RANK": str(rank), "RACKWEAVE_WORLD_SIZE": str(workers), "RACKWEAVE_TIMEOUT": "30"}
        with mock.patch.dict(os.environ, env):
            sampler = Sampler(self.service.address, rows=ROWS, seed=1, **{"batch": 8, **options})
        self.addCleanup(sampler.close)
        return sampler

    def test_a_killed_service_goes_on_from_its_journal(self):
        for asynchronous, workers in ((False, 2), (True, 1)):
            samplers = [self.sampler(r, workers, asynchronous=asynchronous, set=f"set{asynchronous}") for r in range(workers)]
            rows: List[int] = []
            for epoch in range(2):
                left = [iter(s) for s in samplers]
                for step in range(100):
                    if step == 4:
                        self.service.kill()
                        self.service.start()
                    for s in list(left):
                        batch = next(s, None)
                        if batch is None:
                            left.remove(s)
                            continue
                        rows += batch if s.weight else []
                        if step != 3:  # in hand when the service is killed
                            s.done()
                    if step == 4:
                        for s in left:
                            s.done()
                self.assertFalse(left)
            self.assertEqual(sorted(rows), sorted([*range(ROWS), *range(ROWS)]))

    def test_a_run_after_the_last_of_an_epoch_trains_on_the_next(self):
        for epoch in range(2):
            sampler = self.sampler(0, 1)
            rows = [row for batch in sampler for row in (batch, sampler.done())[0]]
            self.assertEqual((sorted(rows), sampler.epoch), (list(range(ROWS)), epoch))
            sampler.close()

    def test_a_batch_without_rows_has_as_many_as_others_and_no_weight(self):
        first, second = (iter(self.sampler(r, 2, batch=ROWS)) for r in range(2))
        self.assertEqual((sorted(next(first)), first.weight > 0), (list(range(ROWS)), True))
        self.assertEqual((next(second), second.weight), (list(range(ROWS)), 0))

    def test_a_trainer_whose_workers_do_not_wait_needs_a_set_of_such_workers(self):
        for store in ("dist_async_rackweave", types.SimpleNamespace(in_step=False)):
            trainer = types.SimpleNamespace(step=lambda: None, _kvstore_params={"kvstore": store})
            with self.assertRaisesRegex(rackweave.ConfigError, "give the kvstore to both"):
                self.sampler(0, 1).follow(trainer)
            self.sampler(0, 1, asynchronous=True).follow(trainer)

    def test_an_earlier_run_of_a_worker_is_refused(self):
        old = self.sampler(0, 1)
        first = next(iter(old))
        new = self.sampler(0, 1)
        rows = [row for batch in new for row in (batch, new.done())[0]]
        self.assertEqual(sorted(rows), list(range(ROWS)))
        self.assertIn(first[0], rows)
        with self.assertRaisesRegex(rackweave.RefusedError, "open the set again: load a state, or make another Sampler"):
            while True:
                next(old)
                old.done()

    def test_a_state_goes_on_in_another_run(self):
        sampler = self.sampler(0, 1)
        rows = []
        for batch in sampler:
            rows += batch
            sampler.done()
            if len(rows) >= 40:
                break
        state = sampler.state_dict()
        for wrong in ({}, {"hello": 1}, {**state, "set": "other"}):
            with self.assertRaisesRegex(rackweave.ConfigError, "give what state_dict of set 'train' has returned"):
                sampler.load_state_dict(wrong)
        sampler.close()
        other = self.sampler(0, 1, set="other")
        other.load_state_dict({**state, "set": "other"})
        rows += [row for batch in other for row in (batch, other.done())[0]]
        self.assertEqual(sorted(rows), list(range(ROWS)))


if __name__ == "__main__":
    unittest.main()
