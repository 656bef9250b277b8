"""Jobs that go on after an aggregator has died."""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
import time
import unittest

import numpy as np

import rack
import rackweave
from rackweave import _rejoin, _settings
from test_spread import free_port

CLUSTER = """
secret: a secret of the racks
buddy: true
shape: sharded
racks:
- {name: r0, url: "http://127.0.0.1:%d"}
- {name: r1, url: "http://127.0.0.1:%d"}
"""
STEPS, IN, SHAPES = 6, 3, ((50_000,), (7, 3))


class Model:
    """A worker's tensors and what it has of them, in a session."""

    def __init__(self, session):
        self.session = session
        self.rank = int(os.environ["RACKWEAVE_RANK"])
        tensors = [rackweave.Tensor(f"t{i}", shape) for i, shape in enumerate(SHAPES)]
        self.numbers = session.register(tensors[:1]) + session.register(tensors[1:])
        self.values = [np.zeros(shape, "f4") for shape in SHAPES]

    def step(self, n, during=lambda: None):
        """Pushes a step's gradients, or broadcasts the beginning; during is called in mid-step."""
        random = np.random.default_rng([n, self.rank])
        values = [random.standard_normal(shape).astype("f4") for shape in SHAPES]
        handles = []
        for t, x, g in zip(self.numbers, self.values, values):
            if n == 0:
                x[:] = g
            handles.append(self.session.push_pull(t, g, x) if n > 0 else self.session.broadcast(t, x))
        during()
        for h in handles:
            h.wait()

    def pulled(self):
        for h in [self.session.pull(t, x) for t, x in zip(self.numbers, self.values)]:
            h.wait()

    def bits(self):
        return [x.tobytes() for x in self.values]


def survives(addresses, doomed):
    """Trains undisturbed, and then with an aggregator killed in mid-step."""
    rank = int(os.environ["RACKWEAVE_RANK"])
    world = rackweave.init(addresses[rank], timeout=60)
    want = []
    calm = Model(world.session(mode="eager", optimizer="adam_torch"))
    for n in range(STEPS):
        calm.step(n)
        want.append(calm.bits())
    calm.session.close()

    def kill():
        if rank == 0 and n == IN:
            os.kill(doomed, signal.SIGKILL)

    model = Model(world.session(mode="eager", optimizer="adam_torch"))
    failed = model.session
    try:
        for n in itertools.count():
            model.step(n, kill)
    except rackweave.Error as e:
        error = type(e).__name__
    began = time.monotonic()
    model.session, last = failed.rejoin()
    print(f"in step {n}: {error}; goes on after step {last}, {time.monotonic() - began:.1f} s later")
    model.pulled()
    got = {last: model.bits()}
    for n in range(last + 1, STEPS):
        model.step(n)
        got[n] = model.bits()
    closed = ""
    try:
        failed.barrier("closed")
    except rackweave.Error as e:
        closed = type(e).__name__
    s = model.session
    place = (s.rank, s.world_size, s.settings.timeout, s.settings.address)
    return last, [n for n, bits in got.items() if bits != want[n]], place, error, closed


def has_no_buddy():
    """Rejoins a job whose state nobody keeps, and one that is spread."""
    texts = []
    began = time.monotonic()
    model = Model(rackweave.init(timeout=60).session(mode="eager", optimizer="adam_torch"))
    try:
        model.session.rejoin()
    except rackweave.RefusedError as e:
        texts.append(str(e))
    return texts, time.monotonic() - began


def finds_nobody(pid):
    """Rejoins where no aggregator is any more."""
    model = Model(rackweave.init(timeout=60).session(mode="eager", optimizer="adam_torch"))
    for wrong in (0, -1, float("nan")):
        try:
            model.session.rejoin(wrong)
        except rackweave.ConfigError:
            continue
        return f"it takes {wrong}", 0.0
    model.step(0)
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    try:
        model.session.rejoin(1)
    except rackweave.ServerLostError as e:
        return str(e), time.monotonic() - began
    return "it is there", 0.0


class Rejoin(unittest.TestCase):
    def test_a_job_goes_on_at_a_standby_with_the_bits_of_an_undisturbed_run(self):
        with tempfile.TemporaryDirectory() as directory:
            ports = [free_port("127.0.0.1") for _ in range(4)]
            file = os.path.join(directory, "cluster.yaml")
            with open(file, "w") as f:
                f.write(CLUSTER % tuple(ports[:2]))
            os.chmod(file, 0o600)
            etcd, peer = (f"http://127.0.0.1:{port}" for port in ports[2:])
            every = ("--cluster", file, "--cores", "1", "--providers", "tcp", "--etcd-ttl", "5s")
            embed = ("--etcd", "embed", "--etcd-dir", os.path.join(directory, "etcd"), "--etcd-listen", etcd, "--etcd-peer", peer,
                     "--etcd-members", "r0=" + peer)
            with rack.Aggregator("--listen", f"127.0.0.1:{ports[0]}", "--rack", "r0", *every, *embed) as first, rack.Aggregator(
                "--listen", f"127.0.0.1:{ports[1]}", "--rack", "r1", *every, "--etcd", etcd
            ) as doomed, rack.Aggregator("--rack", "r1", "--standby", *every, "--etcd", etcd) as standby:
                env = {"RACKWEAVE_JOB": "survives", "RACKWEAVE_TOKEN": "a token of the job"}
                results = rack.run(survives, 2, "", [first.address, doomed.address], doomed.process.pid, env=env)
            for rank, (last, differ, place, error, closed) in enumerate(results):
                self.assertEqual(last, results[0][0])
                self.assertIn(last, (IN - 1, IN, IN + 1))
                self.assertEqual(differ, [], f"worker {rank} went on after step {last}, and differs after these")
                self.assertEqual(place, (rank, 2, 60, (first if rank == 0 else standby).address))
                self.assertIn(error, ("JobFailedError", "ServerLostError"))
                self.assertIn(closed, ("JobFailedError", "ServerLostError"))

    def test_what_cannot_pass_is_told_at_once(self):
        with rack.Aggregator("--cores", "1") as a, rack.Aggregator("--cores", "1") as b:
            ((texts, took),) = rack.run(has_no_buddy, 1, a.address, env={"RACKWEAVE_JOB": "alone"})
            self.assertEqual(len(texts), 1)
            self.assertRegex(texts[0], "rejoin job 'alone': .*buddy")
            self.assertLess(took, 30)
            ((texts, _),) = rack.run(has_no_buddy, 1, a.address + "," + b.address, env={"RACKWEAVE_JOB": "spread"})
            self.assertRegex(texts[0], "rejoin job 'spread': it is spread over several aggregators")

    def test_it_ends_with_the_last_error_when_its_time_is_over(self):
        with rack.Aggregator("--cores", "1") as doomed:
            ((text, took),) = rack.run(finds_nobody, 1, doomed.address, doomed.process.pid, env={"RACKWEAVE_JOB": "lost"})
        self.assertRegex(text, "rejoin job 'lost': cannot reach the aggregator at " + doomed.address)
        self.assertLess(took, 10)


class Place(unittest.TestCase):
    """A worker's place follows the plan. The worker is the first of rack b."""

    def place(self, workers, sizes, out, on_loss):
        racks = [{"rack": "abcd"[i], "url": "http://there"} for i in range(len(workers))]
        holders = []
        for i, size in enumerate(sizes):
            holder = {"name": "abcd"[i], "token": "1"}
            holder.update({"size": size} if size else {})  # as JSON has it: what is 0, empty or false is left out
            holder.update({"url": "http://there"} if i != out else {"out": True} if on_loss == "go-on" else {})
            holders.append(holder)
        seat = _rejoin.Seat(workers[0], sum(workers), "b", racks, workers)
        settings = _settings.Settings("http://b", "j", seat.rank, seat.world_size)
        placed = seat.place(settings, {"epoch": "3", "racks": holders})
        return placed.rank, placed.world_size

    def test_racks_that_are_left_go_on(self):
        self.assertEqual(self.place([2, 2, 2], [1, 1, 1], 0, "go-on"), (0, 4))
        self.assertEqual(self.place([2, 4, 6], [1, 2, 3], 0, "go-on"), (0, 10))
        self.assertEqual(self.place([2, 3, 3], [1, 1, 1], 0, "go-on"), (0, 6))
        self.assertEqual(self.place([2, 2, 2], [1, 1, 1], 2, "go-on"), (2, 4))
        self.assertEqual(self.place([2, 2, 2], [1, 1, 1], 2, "wait"), (2, 6))

    def test_racks_of_other_sizes_are_refused_for_good(self):
        with self.assertRaisesRegex(rackweave.RefusedError, "racks 'b' and 'c' have 3 and 2 workers") as caught:
            self.place([2, 3, 2, 3], [0, 0, 0, 0], 0, "go-on")
        self.assertTrue(_rejoin.lasts(caught.exception))

    def test_the_own_rack_is_waited_for(self):
        for on_loss in ("go-on", "wait"):
            with self.subTest(on_loss), self.assertRaisesRegex(rackweave.ServerLostError, "none serves rack 'b'") as caught:
                self.place([2, 2, 2], [1, 1, 1], 1, on_loss)
            self.assertFalse(_rejoin.lasts(caught.exception))

    def test_a_rack_served_elsewhere_is_found_there(self):
        racks = [{"rack": "a"}, {"rack": "b", "url": "http://there", "ca": "sha256:one"}]
        seat = _rejoin.Seat(1, 2, "b", racks, [1, 1])
        plan = {"racks": [{"name": "a", "url": "http://a"}, {"name": "b", "url": "https://moved/", "token": "2"}]}
        placed = seat.place(_settings.Settings("http://there", "j", 1, 2), plan)
        self.assertEqual((placed.address, placed.ca, placed.rank, placed.world_size), ("https://moved", "sha256:one", 1, 2))


if __name__ == "__main__":
    unittest.main()
