"""Checks of what MXNet's stores do with row_sparse arrays, updaters and keys that do not fit."""

import os
import tempfile

import numpy as np
from checks import TOTAL, N, Noisy, check, main, mine, raises, same, store
from common import RANK, mx, seed

from rackweave.errors import JobFailedError, NonFiniteError

ROWS, WIDTH = 40, 3


def rsp(ids, rows, shape=(ROWS, WIDTH), dtype="float32", ctx=None):
    return mx.nd.sparse.row_sparse_array((np.asarray(rows, dtype), np.asarray(ids)), shape=shape, dtype=dtype, ctx=ctx)


def empty(shape=(ROWS, WIDTH), dtype="float32"):
    return mx.nd.sparse.zeros("row_sparse", shape, dtype=dtype)


def gradient(rank, step, dtype="float32"):
    """Returns some rows of a gradient; a rank has none at some steps."""
    r = np.random.RandomState(100 * rank + step)
    ids = np.unique(r.randint(0, ROWS, 6 if step % 4 or rank else 0))
    return rsp(ids, r.uniform(-1, 1, (len(ids), WIDTH)), dtype=dtype) if len(ids) else empty(dtype=dtype)


def close(got, want, times=1):
    np.testing.assert_allclose(got, want, rtol=1e-5 * times, atol=2e-6 * times)


def summed(step):
    """Returns the sum of the ranks' gradients, as a store's updater gets it."""
    total = np.zeros((ROWS, WIDTH), np.float32)
    grads = [gradient(r, step) for r in range(N)]
    for g in grads:
        total += g.asnumpy()
    ids = np.unique(np.concatenate([g.indices.asnumpy() for g in grads]))
    return rsp(ids, total[ids])


def initial():
    return np.random.RandomState(9).uniform(-1, 1, (ROWS, WIDTH)).astype(np.float32)


@check
def dense_values_take_row_sparse_gradients():
    kv, out = store(), mx.nd.zeros((3, 2))
    grad = mx.nd.sparse.row_sparse_array((np.full((1, 2), RANK + 1, np.float32), [RANK % 3]), shape=(3, 2))
    want = np.zeros((3, 2))
    for r in range(N):
        want[r % 3] += r + 1
    kv.init("w", mine(3, 2))
    kv.push("w", [grad, grad])
    kv.pull("w", out=out)
    same(out, 2 * want)
    left = mx.nd.ones((3, 2)).tostype("row_sparse")
    kv.pull("w", out=left)
    same(left, 1)
    kv.pull("w", out=left, ignore_sparse=False)
    same(left, 2 * want)
    kv.pushpull("w", grad, out=left)
    same(left, want)


@check
def an_updater_of_the_users_runs_at_each_worker_and_they_keep_rank_0s_values():
    kv, out = store(), mx.nd.zeros((4,))

    def updater(key, total, value):
        assert key == 3
        value += total + RANK

    kv.init(3, mine(4))
    kv._set_updater(updater)
    kv.push(3, mine(4))
    kv.push(3, mine(4))
    kv.pull(3, out=out)
    same(out, 1 + 2 * TOTAL)
    raises(ValueError, "no optimizer", kv.save_optimizer_states, "/dev/null")
    kv.init(4, rsp([1], [[1, 1, 1]]))

    def rows(key, total, value):
        assert total.stype == value.stype == "row_sparse", (total.stype, value.stype)
        value += total * (RANK + 1)

    kv._set_updater(rows)
    for _ in range(2):
        kv.push(4, rsp([1, 2 + RANK], np.ones((2, 3))))
    kv.row_sparse_pull(4, out=(whole := empty()), row_ids=mx.nd.arange(ROWS))
    want = np.zeros((ROWS, WIDTH))
    want[1], want[2 : 2 + N] = 1 + 2 * N, 2
    same(whole, want)


@check
def keys_that_share_an_array_are_read_before_one_is_written():
    kv, shared = store(), [mine(4), mx.nd.full((4,), 10, ctx=mx.cpu(1))]
    kv.broadcast(["a", "b", "c"], [mx.nd.zeros((4,))] * 3, out=[mx.nd.zeros((4,))] * 3)
    kv.pushpull(["a", "b", "c"], [shared] * 3)
    for array in shared:
        same(array, TOTAL + 10 * N)


@check
def keys_that_mxnets_stores_refuse_raise_its_error():
    kv = store()
    assert isinstance(kv, mx.kvstore.KVStore)
    kv.init(3, mine(4))
    for call in (kv.init, kv.push, kv.pull):
        raises(mx.MXNetError, "'a'", call, "a", mine(4))
    raises(mx.MXNetError, "given as float32", kv.push, 3, mine(5))


OPTIMIZERS = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.9, "wd": 0.01}),
    ("sgd", {"momentum": 0.9, "wd": 0.01, "lazy_update": False, "clip_gradient": 0.7}),
    ("adam", {"wd": 0.01}),
    ("adam", {"lazy_update": False}),
    ("adagrad", {}),
    ("nag", {"momentum": 0.9, "wd": 0.01}),
    ("rmsprop", {}),
    ("ftrl", {"wd": 0.01, "lamda1": 0.3, "beta": 0.5}),
    ("rmsprop", {"centered": True}),  # no rule of the aggregator's, as the next
    ("groupadagrad", {}),
]


@check
def every_optimizer_does_to_rows_what_it_does_locally():
    for name, params in OPTIMIZERS:
        for dense in (False, True):  # the value is row_sparse, at the aggregator; or dense, and here
            kv, weight, want = store(), mx.nd.array(initial()), mx.nd.array(initial())
            want = rsp(np.arange(ROWS), want.asnumpy()) if name in ("ftrl", "groupadagrad") and not dense else want
            kv.set_optimizer(mx.optimizer.create(name, learning_rate=0.1, rescale_grad=0.5, **params))
            local = mx.optimizer.get_updater(mx.optimizer.create(name, learning_rate=0.1, rescale_grad=0.5, **params))
            if dense:
                kv.sparse.add("w")
                kv.broadcast("w", weight, out=weight)
            else:
                kv.init("w", weight.tostype("row_sparse"))
            for step in range(6):
                local("w", summed(step), want)
                kv.push("w", gradient(RANK, step))
                out = empty()
                kv.row_sparse_pull("w", out=out, row_ids=mx.nd.array([7, 3, 3, 39, step]))
                ids = [3, 7, 39, step]
                close(out.asnumpy()[ids], want.asnumpy()[ids])
                left = np.setdiff1d(np.arange(ROWS), ids)
                assert not out.asnumpy()[left].any(), "rows that were not asked for"
                if dense:
                    kv.pull("w", out=weight)
                    close(weight.asnumpy(), want.asnumpy())
            whole = mx.nd.zeros((ROWS, WIDTH))
            kv.pull("w", out=whole)
            close(whole.asnumpy(), want.asnumpy())


@check
def rows_are_summed_over_devices_and_workers():
    for dtype in ("float32", "float16"):
        kv, out = store(), empty(dtype=dtype)
        kv.init("e", rsp([1], [[5, 5, 5]], dtype=dtype))
        kv.row_sparse_pull("e", out=out, row_ids=mx.nd.array([0, 1], dtype="int64"))
        want = np.zeros((ROWS, WIDTH))
        want[1] = 5
        same(out.astype("float32"), want)
        first, second = rsp([2, 5 + RANK], np.ones((2, 3)), dtype=dtype), rsp([0, 2], np.ones((2, 3)), dtype=dtype, ctx=mx.cpu(1))
        kv.push("e", [first, second])
        want[1], want[2], want[0] = 0, 2 * N, N
        want[5 : 5 + N] = 1
        outs = [empty(dtype=dtype), empty()]
        kv.row_sparse_pull("e", out=outs, row_ids=mx.nd.arange(ROWS, dtype="int32"))
        same(outs[0].astype("float32"), want)
        same(outs[1], want)
        kv.row_sparse_pull("e", out=out, row_ids=mx.nd.array([]))
        same(out.astype("float32"), 0)
        kv.push("e", mine(ROWS, WIDTH, dtype=dtype))  # dense: all rows
        kv.pull("e", out=out, ignore_sparse=False)
        same(out.astype("float32"), TOTAL)
        kv.pushpull("e", rsp([3], [[1, 1, 1]], dtype=dtype), out=out)
        want[:], want[3] = 0, N
        same(out.astype("float32"), want)


@check
def few_rows_take_few_bytes():
    shape, kv = (20000, 16), store()
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.1))
    kv.init("w", mx.nd.zeros(shape).tostype("row_sparse"))
    mx.nd.waitall()
    before = kv._session.stats()
    for step in range(3):
        kv.push("w", rsp([5 * step, 19000 + RANK], np.ones((2, 16)), shape))
        out = empty(shape)
        kv.row_sparse_pull("w", out=out, row_ids=mx.nd.array([5 * step]))
        np.testing.assert_allclose(out.asnumpy()[5 * step], -0.1 * N, rtol=1e-6)
    after = kv._session.stats()
    moved = sum(after[k] - before[k] for k in ("sent_bytes", "received_bytes"))
    assert moved < 3 * 4000, moved  # of a tensor of 1.28 MB


@check
def values_outlive_a_change_of_optimizer_and_states_are_saved():
    kv = store()
    kv.init("w", mx.nd.array(initial()).tostype("row_sparse"))
    params = {"learning_rate": 0.1, "momentum": 0.9, "rescale_grad": 0.5}
    local, want = mx.optimizer.get_updater(mx.optimizer.SGD(**params)), mx.nd.array(initial())
    kv.set_optimizer(mx.optimizer.SGD(**params))
    for step in range(2):
        local("w", summed(step), want)
        kv.push("w", gradient(RANK, step))
    with tempfile.TemporaryDirectory() as folder:
        name = os.path.join(folder, "states")
        kv.save_optimizer_states(name)
        other = store()
        value = mx.nd.zeros((ROWS, WIDTH))
        kv.pull("w", out=value)
        other.set_optimizer(mx.optimizer.SGD(**params))
        other.init("w", value.tostype("row_sparse"))
        other.load_optimizer_states(name)
    for step in range(2, 4):
        local("w", summed(step), want)
        other.push("w", gradient(RANK, step))
    other.set_optimizer(mx.optimizer.RMSProp(centered=True))  # the workers update from here on, and the value is here
    out = empty()
    other.row_sparse_pull("w", out=out, row_ids=mx.nd.arange(ROWS))
    close(out.asnumpy(), want.asnumpy())


@check
def an_asynchronous_store_updates_rows_by_each_gradient_alone():
    for dense in (False, True):
        kv, want, weight = mx.kv.create("dist_async_rackweave"), mx.nd.array(initial()), mx.nd.array(initial())
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.1, momentum=0.9))
        local = mx.optimizer.get_updater(mx.optimizer.SGD(learning_rate=0.1, momentum=0.9))
        if dense:
            kv.sparse.add("w")
            kv.broadcast("w", weight, out=weight)
        else:
            kv.init("w", want.tostype("row_sparse"))
        for rank in range(N):  # one after the other, so that there is one right result
            for step in range(1, 4):
                local("w", gradient(rank, step), want)
                if rank == RANK:
                    kv.push("w", gradient(rank, step))
            kv._barrier()
            if rank == RANK or not dense:
                out = empty()
                kv.row_sparse_pull("w", out=out, row_ids=mx.nd.arange(ROWS))
                close(out.asnumpy(), want.asnumpy())
            kv._barrier()


@check
def workers_stay_equal_where_the_optimizer_draws_random_numbers():
    for optimizer in (mx.optimizer.SGLD(learning_rate=0.01), Noisy()):
        net = mx.gluon.nn.Embedding(30, 4, sparse_grad=True)
        net.initialize()
        kv = store()
        trainer = mx.gluon.Trainer(net.collect_params(), optimizer, kvstore=kv)
        before = net.weight.data().asnumpy()
        for step in range(3):
            seed(10 * step + RANK)
            with mx.autograd.record():
                loss = net(mx.nd.array([step, 5 + RANK])).sum()
            loss.backward()
            trainer.step(N)
        weight = net.weight.data().asnumpy()
        assert (weight != before).any()
        check, total = store(), mx.nd.array(weight)
        check.pushpull(0, total)
        same(total, N * weight)


def embedded(kvstore, name, params, dense, ctx, batches):
    """Trains an embedding by a store, or by all ranks' batches without ours, and returns its weight."""
    ours, r = "rackweave" in (kvstore or ""), np.random.RandomState(4)
    kind = mx.gluon.nn.Embedding if dense else mx.gluon.contrib.nn.SparseEmbedding
    net = kind(ROWS, WIDTH, prefix="e_", **({"sparse_grad": True} if dense else {}))
    net.initialize(mx.init.Constant(0.5), ctx=list(ctx))
    trainer = mx.gluon.Trainer(net.collect_params(), name, dict(params), kvstore=kvstore)
    for _ in range(4):
        ids = mx.nd.array(r.randint(0, ROWS, (batches, 2, 2)))
        mine = range(len(ctx) * RANK, len(ctx) * (RANK + 1)) if ours else range(batches)
        with mx.autograd.record():
            losses = []
            for n, i in enumerate(mine) if ours else [(0, None)]:
                out = net(ids[i].as_in_context(ctx[n])) if ours else net(ids.reshape((-1, 2)))
                losses.append(((out - 1) ** 2).sum())
        mx.autograd.backward(losses)
        trainer.step(4)
    return (net.weight.data() if dense else net.weight.row_sparse_data(mx.nd.arange(ROWS))).asnumpy()


@check
def gluon_trains_embeddings_as_one_process_does():
    for name, params in (("sgd", {"momentum": 0.9, "wd": 0.01}), ("adam", {}), ("nag", {"momentum": 0.9}), ("ftrl", {})):
        for dense in (True, False):
            for ctx in ((mx.cpu(0),), (mx.cpu(0), mx.cpu(1))):
                batches = N * len(ctx)
                got = embedded("dist_sync_rackweave", name, params, dense, ctx, batches)
                want = embedded(None if dense else "local", name, params, dense, ctx[:1], batches)
                close(got, want, 10)


@check
def a_trainers_dense_gradients_go_before_row_sparse_ones():
    kv, order = store(), []
    net = mx.gluon.nn.HybridSequential(prefix="o_")
    with net.name_scope():
        net.add(mx.gluon.nn.Embedding(ROWS, WIDTH, sparse_grad=True, prefix="a_"), mx.gluon.nn.Dense(2, in_units=WIDTH))
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore=kv)
    exchange = kv._exchange
    kv._exchange = lambda key, *rest: (order.append(kv.names[key]), exchange(key, *rest))
    with mx.autograd.record():
        loss = net(mx.nd.array([1, 2])).sum()
    loss.backward()
    trainer.step(1)
    assert order == ["o_dense0_bias", "o_dense0_weight", "o_a_weight"], order


@check
def a_row_sparse_weight_cannot_be_set_once_it_trains():
    net = mx.gluon.contrib.nn.SparseEmbedding(ROWS, WIDTH)
    net.initialize()
    mx.gluon.Trainer(net.collect_params(), "sgd", kvstore="dist_sync_rackweave")
    net.weight.row_sparse_data(mx.nd.array([1]))
    wrong = f"row_sparse weights, '{net.weight.name}', after its first forward pass or step: set all weights before"
    raises(RuntimeError, wrong, net.weight.set_data, mx.nd.ones((ROWS, WIDTH)).tostype("row_sparse"))


@check
def module_trains_on_csr_data():
    for stype in ("row_sparse", "default"):
        data = mx.sym.var("data", stype="csr")
        weight = mx.sym.var("weight", stype=stype, shape=(ROWS, 1))
        out = mx.sym.LinearRegressionOutput(mx.sym.sparse.dot(data, weight), mx.sym.var("label"))
        module = mx.mod.Module(out, label_names=["label"])
        module.bind([("data", (4, ROWS))], [("label", (4, 1))])
        module.init_params(mx.init.Constant(0.5))
        module.init_optimizer("dist_sync_rackweave", optimizer_params={"learning_rate": 0.1, "rescale_grad": 1 / 4})
        assert "weight" in module._kvstore.sparse
        want = np.full((ROWS, 1), 0.5)
        for step in range(4):
            r = np.random.RandomState(step)
            x, y = r.uniform(0, 1, (N, 4, ROWS)) * (r.uniform(0, 1, (N, 4, ROWS)) < 0.1), r.uniform(-1, 1, (N, 4, 1))
            batch = mx.io.DataBatch([mx.nd.array(x[RANK]).tostype("csr")], [mx.nd.array(y[RANK])])
            rows = mx.nd.array(np.flatnonzero(x[RANK].any(0)))
            module.prepare(batch, lambda _: {"weight": rows} if stype == "row_sparse" else {})
            module.forward_backward(batch)
            module.update()
            want -= 0.1 / 4 * sum(x[i].T @ (x[i] @ want - y[i]) for i in range(N))
        close(module.get_params()[0]["weight"].asnumpy(), want, 10)


@check
def a_bad_row_is_refused():
    kv = store()
    kv.init("w", mx.nd.ones((4, 2)).tostype("row_sparse"))
    out = empty((4, 2))
    raises(mx.MXNetError, "has 4 rows, and row 4", kv.row_sparse_pull, "w", out=out, row_ids=mx.nd.array([1, 4]))
    raises(mx.MXNetError, "has 4 rows, and row 2.7", kv.row_sparse_pull, "w", out=out, row_ids=mx.nd.array([1, 2.7]))
    raises(mx.MXNetError, "has 4 rows, and row nan", kv.row_sparse_pull, "w", out=out, row_ids=mx.nd.array([1, np.nan]))
    raises(mx.MXNetError, "row_ids holds NoneType: give NDArrays", kv.row_sparse_pull, "w", out=out)
    raises(mx.MXNetError, "row_ids holds int: give NDArrays", kv.row_sparse_pull, "w", out=out, row_ids=[1])
    ids = mx.nd.array([1])
    raises(mx.MXNetError, "key 'w': row_sparse_pull has no array to fill: give out=", kv.row_sparse_pull, "w", row_ids=ids)
    raises(mx.MXNetError, "of 2 keys: give as many row_ids", kv.row_sparse_pull, ["w", "w"], out=[out, out], row_ids=ids)
    raises(mx.MXNetError, "out holds NDArray: use pull", kv.row_sparse_pull, "w", out=mx.nd.ones((4, 2)), row_ids=mx.nd.array([1]))
    raises(mx.MXNetError, "3 lists of row ids for 1", kv.row_sparse_pull, "w", out=out, row_ids=[mx.nd.array([1])] * 3)
    raises(mx.MXNetError, "and the array for its rows (5, 2)", kv.row_sparse_pull, "w", out=empty((5, 2)), row_ids=mx.nd.array([1]))
    raises(mx.MXNetError, "shape (4, 2)", kv.push, "w", mx.nd.ones((4, 3)).tostype("row_sparse"))
    assert kv.nonfinite == 0
    kv.push("w", rsp([RANK], [[1, np.nan]], (4, 2)))
    assert kv.nonfinite == 1
    os.environ["RACKWEAVE_NONFINITE"] = "refuse"
    try:
        kv = store()
    finally:
        del os.environ["RACKWEAVE_NONFINITE"]

    def first() -> None:
        kv.init("w", mx.nd.ones((4, 2)).tostype("row_sparse"))  # a rank that is behind learns here that another's row is bad
        kv.push("w", rsp([1], [[1, np.inf]], (4, 2)))

    raises((NonFiniteError, JobFailedError), "holds NaN or infinity", first)


if __name__ == "__main__":
    main()
