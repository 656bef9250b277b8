"""Jobs that are spread over several aggregators."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
import unittest

import numpy as np

import rack
import rackweave
import test_core
import test_torch
import test_torch_sparse

FRAMEWORK = "torch"
CLUSTER = """
secret: at least sixteen characters
shape: %s
racks:
- {name: a, url: "http://127.0.0.1:%d"}
- {name: b, url: "http://127.0.0.2:%d"}
"""


def free_port(host: str) -> int:
    with socket.socket() as s:
        s.bind((host, 0))
        return int(s.getsockname()[1])


def refused_by_one():
    rackweave.init(timeout=60)
    s = rackweave.world().session(mode="eager", optimizer="sgd_torch")
    began = time.monotonic()
    try:
        s.save("nowhere")
    except rackweave.RefusedError as e:
        return str(e), time.monotonic() - began
    return "saved", 0.0


def saved_and_restored():
    w = rackweave.init(timeout=60)
    s = w.session(mode="eager", optimizer="adam_torch", hyper={"lr": 0.01})
    tensors = s.register([rackweave.Tensor("large", (300_000,)), rackweave.Tensor("small", (3,))])
    values = [np.linspace(0, 1, n).astype("f4") for n in (300_000, 3)]

    def step(seed):
        for t, x in zip(tensors, values):
            gradient = np.random.default_rng(10 * seed + w.rank).standard_normal(x.shape).astype("f4")
            s.push_pull(t, gradient, x).wait()

    def one(name, act):
        s.barrier("before-" + name)
        if w.rank == 0:
            act()
        s.barrier("after-" + name)

    def goes_on():
        for t, x in zip(tensors, values):
            s.pull(t, x).wait()
        step(2)
        return np.concatenate(values)

    for t, x in zip(tensors, values):
        s.broadcast(t, x).wait()
    step(1)
    one("save", lambda: s.save("one"))
    state = [(t, a, s.read_state(t, a), s.updates(t)) for t in tensors for a in range(3)]
    first = goes_on()
    one("restore", lambda: s.restore("one"))
    restored = goes_on()

    def write():
        for t, a, data, updates in state:
            s.write_state(t, a, data, updates)

    one("write", write)
    return first, restored, goes_on()


class Spread(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)
        cls.aggregators = []
        for host in ("127.0.0.1", "127.0.0.1", "127.0.0.2"):  # the last one is no neighbour by its name
            aggregator = rack.Aggregator("--listen", host + ":0", "--cores", "2", "--checkpoint-dir", cls.directory.name)
            cls.addClassCleanup(aggregator.__exit__)
            cls.aggregators.append(aggregator)
        cls.near = ",".join(a.address for a in cls.aggregators[:2])
        cls.far = ",".join(a.address for a in cls.aggregators[1:])

    def test_the_bits_are_those_of_one_aggregator(self):
        for name, server, provider in (("near", self.near, "shm"), ("far", self.far, "tcp"), ("auto", self.far, "auto")):
            with self.subTest(name):
                env = {"RACKWEAVE_JOB": "spread-" + name, "RACKWEAVE_PROVIDER": provider}
                for r in rack.run(test_core.exchange, 4, server, env=env):
                    for what in ("sum", "mean", "arena", "out", "bits", "plain"):
                        self.assertTrue(r[what], what)

    def test_workers_of_a_flat_cluster_join_by_their_racks(self):
        self.check_racks("flat", 1)

    def test_workers_are_sent_to_the_aggregator_of_their_rack(self):
        self.check_racks("sharded", 0)

    def check_racks(self, shape, second):
        """Sums over two racks of two. The second rack's workers know one rack's aggregator, by its number."""
        with tempfile.TemporaryDirectory() as directory:
            ports = free_port("127.0.0.1"), free_port("127.0.0.2")
            file = os.path.join(directory, "cluster.yaml")
            with open(file, "w") as f:
                f.write(CLUSTER % (shape, *ports))
            os.chmod(file, 0o600)
            start = [("--listen", f"{host}:{port}", "--cluster", file, "--rack", name, "--cores", "1")
                     for host, port, name in zip(("127.0.0.1", "127.0.0.2"), ports, "ab")]
            with rack.Aggregator(*start[0]) as a, rack.Aggregator(*start[1]) as b:
                env = {"RACKWEAVE_JOB": shape}
                outcomes = rack.run(by_rack, 4, "", [a.address, [a, b][second].address], env=env)
        for summed in outcomes:
            np.testing.assert_array_equal(
                summed,
                (test_core.gradient(0) + test_core.gradient(1)) + (test_core.gradient(2) + test_core.gradient(3)),
            )

    def test_ddp_trains_as_over_one_aggregator(self):
        one = rack.run(test_torch.own_groups, 2, self.aggregators[0].address, env={"RACKWEAVE_JOB": "ddp-one"})
        several = rack.run(test_torch.own_groups, 2, self.near, env={"RACKWEAVE_JOB": "ddp-spread"})
        np.testing.assert_array_equal(one, several)

    def test_sparse_gradients_have_the_bits_of_one_aggregator(self):
        one = rack.run(test_torch_sparse.own_groups, 2, self.aggregators[0].address, env={"RACKWEAVE_JOB": "sparse-one"})
        for server, provider in ((self.near, "shm"), (self.far, "tcp")):
            env = {"RACKWEAVE_JOB": "sparse-spread", "RACKWEAVE_PROVIDER": provider}
            np.testing.assert_array_equal(one, rack.run(test_torch_sparse.own_groups, 2, server, env=env))

    def test_checkpoints_and_states_come_from_all_aggregators(self):
        results = rack.run(saved_and_restored, 2, self.near, env={"RACKWEAVE_JOB": "saves"})
        for first, restored, written in results:
            np.testing.assert_array_equal(first, restored)
            np.testing.assert_array_equal(first, written)

    def test_a_refused_save_ends_at_once_with_the_reason(self):
        ((text, took),) = rack.run(refused_by_one, 1, self.near, env={"RACKWEAVE_JOB": "refused"})
        self.assertIn("register them first", text)
        self.assertLess(took, 30)

    def test_a_worker_that_dies_is_named_by_the_others(self):
        outcomes = rack.kill_one(test_core.die_or_wait, 3, self.near, "spread-death")
        for r in (0, 2):
            self.assertIn("JobFailedError", outcomes[r].error)
            self.assertIn("worker 1", outcomes[r].error)

    def test_an_aggregator_that_is_killed_ends_the_job_at_the_others(self):
        with rack.Aggregator("--cores", "2") as doomed:
            server = self.aggregators[0].address + "," + doomed.address
            workers = rack.Workers(test_core.die_or_wait, 2, server, env={"RACKWEAVE_JOB": "spread-kill"})
            for r in range(2):
                workers.wait_for(r, "ready")
            doomed.kill()
            workers.processes[1].send_signal(signal.SIGTERM)  # it sleeps
            outcomes = workers.finish()
            self.assertIn(doomed.address, outcomes[0].error)
        # The other is free for the job's next run.
        rack.run(test_core.exchange, 2, self.aggregators[0].address, env={"RACKWEAVE_JOB": "spread-kill"})


def by_rack(addresses):
    rank = int(os.environ["RACKWEAVE_RANK"])
    rackweave.init(addresses[rank // 2])
    summed = test_core.gradient(rank)
    rackweave.push_pull(summed, "sum")
    return summed


if __name__ == "__main__":
    unittest.main()
