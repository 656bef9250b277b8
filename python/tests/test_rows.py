"""Rows of sparse tensors, by sessions of the core."""

from __future__ import annotations

import array
import unittest

import numpy as np

import rack
import rackweave
from rackweave import rows as _rows


def refused():
    """Returns the texts of operations that are refused."""
    session = rackweave.init().session(mode="eager", optimizer="sgd_torch")
    tensors = [rackweave.Tensor("table", (10, 4), sparse=True), rackweave.Tensor("bias", (10,))]
    tensors.append(rackweave.Tensor("longer", (20, 4), sparse=True))
    table, bias, longer = session.register(tensors)
    two, whole = np.zeros((2, 4), "f4"), np.zeros((10, 4), "f4")
    fixed = two.copy()
    fixed.flags.writeable = False
    texts = []
    for call in (
        lambda: _rows.push(session, table, np.array([3, 10]), two),
        lambda: _rows.push(session, table, np.array([3, 3]), two),
        lambda: _rows.pull(session, table, array.array("q", [-1, 3]), two),
        lambda: _rows.push(session, table, np.array([3.0, 4.0]), two),
        lambda: _rows.push(session, table, [1], two),
        lambda: _rows.push(session, bias, [1, 2], two),
        lambda: _rows.pull(session, table, [1, 2], fixed),
        lambda: _rows.pull(session, table, list(range(10)) + [0], np.zeros((11, 4), "f4")),
        lambda: _rows.push(session, table, [3.0, 4.0], two),
        lambda: _rows.push(session, table, [3, 2**63], two),
        lambda: _rows.pull(session, table, rackweave.Buffer(0, (2,), "i64", True, None), two),
        lambda: _rows.push_pull(session, table, [1, 2], whole[:2], whole),
        lambda: _rows.Union(session, bias),
        lambda: _rows.push_pull(session, longer, [], two[:0], np.zeros((20, 4), "f4"), _rows.Union(session, table)),
        lambda: session.register([rackweave.Tensor("t", (3, 4), sparse=True, frequencies=[1, 2])]),
        lambda: session.register([rackweave.Tensor("t", (3, 4), sparse=True, frequencies=[1, 2, float("nan")])]),
        lambda: session.register([rackweave.Tensor("t", (3, 4), sparse=True, frequencies=[1, 2, 1e308])]),
    ):
        try:
            call()
        except rackweave.Error as e:
            texts.append(f"{type(e).__name__}: {e}")
    _rows.pull(session, table, [], np.zeros((0, 4), "f4")).wait()
    return texts


def trained():
    """Pushes and pulls rows, other ones at each rank, and compares with numpy."""
    session = rackweave.init().session(mode="eager", optimizer="sgd_torch", hyper={"lr": 0.5})
    rows, width, ranks = 5000, 16, range(session.world_size)
    want = np.arange(rows * width, dtype="f4").reshape(rows, width)
    table = want.copy()
    often = 1 / np.arange(1, rows + 1)
    (t,) = session.register([rackweave.Tensor("table", table.shape, sparse=True, frequencies=often)])
    session.broadcast(t, table).wait()
    union, wrong = _rows.Union(session, t), []
    for step in range(4):
        draw = np.random.default_rng(step)
        touched = [np.flatnonzero(draw.random(rows) < share) for share in (0.01, 0, 0.5)]
        grads = [draw.standard_normal((len(ids), width), "f4") for ids in touched]
        total = np.zeros_like(want)
        for ids, grad in zip(touched, grads):
            total[ids] += grad
        want -= np.float32(0.5) * total
        mine = touched[session.rank], grads[session.rank]
        if step % 2:
            _rows.push(session, t, *mine).wait()
            session.barrier(f"step-{step}")
            ids = np.array([7, 4999, 7, 0])
            got = np.empty((4, width), "f4")
            _rows.pull(session, t, ids, got).wait()
            wrong.append(not (got == want[ids]).all())
            _rows.pull(session, t, np.arange(rows), table).wait()
        else:
            _rows.push_pull(session, t, *mine, table, union).wait()
            every = np.unique(np.concatenate([touched[rank] for rank in ranks]))
            wrong.append(not np.array_equal(np.asarray(union.ids), every) or len(union) != len(every))
        wrong.append(not (table == want).all())
    return wrong


def refused_arguments():
    """Returns what arguments of the wrong kind or number are told."""
    session = rackweave.init().session(mode="eager", optimizer="sgd_torch")
    (table,) = session.register([rackweave.Tensor("table", (10, 4), sparse=True)])
    two = np.zeros((2, 4), "f4")
    texts = []
    for call in (
        lambda: _rows.push(session, 7, [1, 2], two),
        lambda: _rows.pull(session, -1, [1, 2], two),
        lambda: _rows.push(session, "table", [1, 2], two),
        lambda: _rows.Union(session, 1),
        lambda: session.push_pull(-1, two),
        lambda: _rows.push(session, table, [1, 2], two, hyper=[1]),
        lambda: _rows.push(session, table, [1, 2], two, hyper=[1] * 9),
        lambda: _rows.push(session, table, 5, two),
        lambda: _rows.push(session, table, (i for i in (1, 2)), two),
        lambda: _rows.push(session, table, {1, 2}, two),
        lambda: _rows.sum_rows(np.array([1, 2]), two, 4.0),
        lambda: _rows.sum_rows(np.array([1, 2]), two, -1),
        lambda: _rows.sum_rows(np.array([1, 2]), two, 0),
    ):
        try:
            call()
            texts.append("")
        except Exception as e:
            texts.append(f"{type(e).__name__}: {e}")
    _rows.push(session, table, range(2), two).wait()
    return texts


class RowsTest(unittest.TestCase):
    def test_rows_are_exchanged_as_numpy_sums_them(self) -> None:
        with rack.Aggregator() as a:
            self.assertEqual(rack.run(trained, 3, a.address), [[False] * 8] * 3)

    def test_operations_on_rows_are_refused_by_the_parameters_name(self) -> None:
        with rack.Aggregator() as a:
            (texts,) = rack.run(refused, 1, a.address)
        for text, want in zip(
            texts,
            (
                "NativeError: tensor 'table': submit: tensor 0: id 1 is 10: use rows from 0 to 9",
                "NativeError: tensor 'table': submit: tensor 0: id 1 is 3, not above 3: sort ids, and sum the rows of repeated "
                "ones",
                "NativeError: tensor 'table': submit: tensor 0: id 0 is -1",
                "TensorError: ids of tensor 'table' is of type <f8: use int64",
                "TensorError: tensor 'table': 1 rows have 16 bytes as registered and 32 here",
                "NativeError: tensor 'bias': submit: ids for dense tensor 1: give none",
                "TensorError: tensor 'table' is read-only",
                "NativeError: tensor 'table': submit: tensor 0 has 10 rows, and 11 ids are given: pull them by several operations",
                "TensorError: ids of tensor 'table' are [3.0, 4.0]: 'float' object cannot be interpreted as an integer: use whole",
                "TensorError: ids of tensor 'table' are [3, 9223372036854775808]: int too big to convert: use whole",
                "NativeError: tensor 'table': submit: tensor 0: 2 ids at NULL: give their address, or 0 of them for all rows",
                "NativeError: tensor 'table': submit: tensor 0: its 2 rows lie in the destination: give them memory of their own",
                "TensorError: tensor 'bias' is dense, and has no union of rows: register it with sparse=True",
                "TensorError: tensor 'longer' has 20 rows, and the union room for 10: use its own Union",
                "TensorError: tensor 't' of shape (3, 4) has 2 frequencies of rows: give one for each row",
                "TensorError: tensor 't': row 2 has the frequency nan",
                "TensorError: tensor 't': row 2 has the frequency 1e+308: use numbers from 0 to 1e+30",
            ),
        ):
            self.assertIn(want, text)
        self.assertEqual(len(texts), 17)

    def test_arguments_of_the_wrong_kind_or_number_are_refused_with_the_remedy(self) -> None:
        with rack.Aggregator() as a:
            (texts,) = rack.run(refused_arguments, 1, a.address)
        wants = (
            "TensorError: tensor 7: 1 are registered: give a number that register returned",
            "TensorError: tensor -1: 1 are registered: give a number that register returned",
            "TensorError: tensor 'table': 1 are registered: give a number that register returned",
            "TensorError: tensor 1: 1 are registered: give a number that register returned",
            "TensorError: tensor -1: 1 are registered: give a number that register returned",
            "TensorError: tensor 0 has 1 hyper-parameters: give all 8, or None",
            "TensorError: tensor 0 has 9 hyper-parameters: give all 8, or None",
            "TensorError: ids of tensor 'table' is of type int: use a list of whole numbers, or an int64 array",
            "TensorError: ids of tensor 'table' is of type generator: use a list of whole numbers, or an int64 array",
            "TensorError: ids of tensor 'table' is of type set: use a list of whole numbers, or an int64 array",
            "TensorError: rows of width 4.0: give their number of elements, a whole number from 1 on",
            "TensorError: rows of width -1: give their number of elements, a whole number from 1 on",
            "TensorError: rows of width 0: give their number of elements, a whole number from 1 on",
        )
        self.assertEqual(tuple(texts), wants)

    def test_rows_of_the_same_id_are_summed(self) -> None:
        for dtype in ("f4", "f2"):
            ids, rows = np.array([7, 2, 7, 2, 7]), np.array([[1, 10], [2, 20], [3, 30], [4, 40], [5, 50]], dtype)
            n = _rows.sum_rows(ids, rows, 2)
            self.assertEqual((ids[:n].tolist(), rows[:n].tolist()), ([2, 7], [[6, 60], [9, 90]]))
        self.assertEqual(_rows.sum_rows(np.zeros(0, "i8"), np.zeros((0, 3), "f4"), 3), 0)
        with self.assertRaisesRegex(rackweave.TensorError, "rows have 10 elements and ids 5 rows of 3: give 15"):
            _rows.sum_rows(ids, rows, 3)
        with self.assertRaisesRegex(rackweave.NativeError, "id 0 is -1: rows are numbered from 0"):
            _rows.sum_rows(np.array([-1]), np.zeros((1, 2), "f4"), 2)

    def test_rows_that_cannot_be_changed_are_not_summed(self) -> None:
        ids, rows = np.array([7, 2]), np.zeros((2, 2), "f4")
        fixed_ids, fixed_rows = ids.copy(), rows.copy()
        fixed_ids.flags.writeable = fixed_rows.flags.writeable = False
        for given, values, want in (
            (fixed_ids, rows, "ids are read-only, and are changed in place: give a copy that can be written"),
            (ids, fixed_rows, "rows are read-only, and are changed in place: give a copy that can be written"),
            ([7, 2], rows, "ids are a list, which is not sorted in place: give an array of int64"),
            ((7, 2), rows, "ids are a tuple, which is not sorted in place: give an array of int64"),
        ):
            with self.subTest(want), self.assertRaisesRegex(rackweave.TensorError, want):
                _rows.sum_rows(given, values, 2)
        self.assertEqual((fixed_ids.tolist(), ids.tolist()), ([7, 2], [7, 2]))


if __name__ == "__main__":
    unittest.main()
