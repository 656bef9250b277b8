"""Compressed gradients, by sessions of the core."""

from __future__ import annotations

import unittest

import numpy as np

import rack
import rackweave


def codecs():
    """Gradients of twice the threshold's half, in 2 bits; answers in int8."""
    n, elems = rackweave.world_size(), 20000
    session = rackweave.init().session(mode="aggregate", compress="2bit:0.5/int8")
    x, y = np.full(elems, 0.25, "f4"), np.full(1000, 0.1, "f4")
    tensors = [rackweave.Tensor("x", (elems,)), rackweave.Tensor("y", (1000,), compress=False)]
    results = {"compress": session.compress}
    a, b = session.register(tensors)
    out = np.zeros_like(x)
    for want in (0, 0.5, 0, 0.5):
        session.push_pull(a, x, out).wait()
        results.setdefault("sums", []).append(bool((out == want * n).all()))
    moved = session.stats()
    results["sent"], results["received"] = (moved[k + "_bytes"] / moved[k + "_raw_bytes"] for k in ("sent", "received"))
    session.push_pull(a, x, out).wait()
    left = session.codecs.residual(a)
    results["left"] = list(left[:2]) + [session.codecs.residual(b)]
    left[0] = 0
    session.codecs.take(a, left)
    session.push_pull(a, x, out).wait()
    results["taken"] = (out[:2] / n).tolist()
    sent = session.stats()["sent_bytes"]
    session.push_pull(b, y, y).wait()
    results["whole"] = session.stats()["sent_bytes"] - sent
    table = np.full((3000, 7), session.rank + 1, "f4")
    t = session.register([rackweave.Tensor("table", table.shape, sparse=True, standard=True)])[0]
    session.broadcast(t, table).wait()
    results["rows"] = [bool((table == 1).all()), session.codecs.residual(t)]
    rackweave.push_pull(x, "exact")
    results["exact"] = bool((x == 0.25 * n).all())
    try:
        rackweave.world().session(mode="aggregate", compress="zip")
    except rackweave.RefusedError as e:
        results["refused"] = str(e)
    try:
        rackweave.world().session(mode="aggregate", compress=8)
    except rackweave.ConfigError as e:
        results["type"] = str(e)
    return results


def controlled():
    """Steps until all workers keep to the controller's budget: it finds that int8 is more than that."""
    x = np.linspace(-1, 1, 50000, dtype="f4")
    session = rackweave.init().session(mode="aggregate", compress="auto:budget=0.15,answers=none")
    t, y = session.register([rackweave.Tensor("x", x.shape), rackweave.Tensor("y", (100,), compress=False)])
    out, share, steps, kept = np.zeros_like(x), 1.0, 0, np.zeros(100, "f4")
    while kept[0] < rackweave.world_size() and steps < 20000:
        before = session.stats()["sent_bytes"]
        session.push_pull(t, x, out).wait()
        share, steps = (session.stats()["sent_bytes"] - before) / x.nbytes, steps + 1
        kept[:] = share <= 0.15
        session.push_pull(y, kept).wait()
    return {"share": share, "hash": out.tobytes().hex()[:4000]}


class Codecs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.aggregator = rack.Aggregator()
        cls.addClassCleanup(cls.aggregator.__exit__)

    def test_workers_take_the_codecs_that_a_controller_chooses(self):
        results = rack.run(controlled, 2, self.aggregator.address, env={"RACKWEAVE_JOB": "auto"})
        self.assertLess(max(r["share"] for r in results), 0.15)
        self.assertEqual(len({r["hash"] for r in results}), 1)

    def test_codecs_shorten_what_travels_and_send_the_rest_later(self):
        for provider in ("shm", "tcp"):
            env = {"RACKWEAVE_JOB": "codecs-" + provider, "RACKWEAVE_PROVIDER": provider, "RACKWEAVE_COMPRESS": "int8"}
            for r in rack.run(codecs, 2, self.aggregator.address, env=env):
                self.assertEqual(r["compress"], "2bit:0.5/int8")
                self.assertEqual(r["sums"], [True] * 4)
                self.assertLess(r["sent"], 0.075)
                self.assertLess(r["received"], 0.26)
                self.assertEqual(r["left"], [0.25, 0.25, None])
                self.assertEqual(r["taken"], [0.0, 0.5])
                self.assertEqual(r["whole"], 4000)
                self.assertEqual(r["rows"], [True, None])
                self.assertTrue(r["exact"])
                self.assertIn("use one of none, int8", r["refused"])
                self.assertEqual(r["type"], "compress is 8: give a string")


if __name__ == "__main__":
    unittest.main()
