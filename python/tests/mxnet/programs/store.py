"""Checks of the kvstore that need two workers; prints "ok" and the name of each that holds."""

import os
import pickle
import subprocess
import sys
import tempfile
import time
import traceback
import warnings

import numpy as np
from checks import TOTAL, N, Noisy, check, main, mine, raises, same, store
from common import RANK, data, mx, network, parameters, seed

import rackweave
from rackweave._open import open_sessions
from rackweave.errors import RefusedError
from rackweave.mxnet import _arena, _engine


@check
def names_and_place():
    kv = store()
    assert (kv.type, kv.rank, kv.num_workers) == ("dist_sync_rackweave", RANK, N)
    assert kv.is_capable("optimizer") and isinstance(mx.kv.create("rackweave"), type(kv))
    raises(ValueError, "capability", kv.is_capable, "flying")


@check
def a_name_without_dist_is_taken_on_one_device():
    net = mx.gluon.nn.Dense(1, in_units=1)
    net.initialize()
    for name, kind in {"rackweave": "dist_sync_rackweave", "rackweave_async": "dist_async_rackweave"}.items():
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore=name)
        trainer._init_kvstore()
        assert trainer._kvstore is not None and trainer._kvstore.type == kind


@check
def broadcast_gives_rank_0s_values():
    kv, out = store(), [mx.nd.zeros((3, 2)), mx.nd.zeros((3, 2), ctx=mx.cpu(1))]
    kv.broadcast("w", mine(3, 2), out=out)
    same(out[0], 1)
    same(out[1], 1)


@check
def pushpull_sums_over_devices_and_workers():
    kv = store()
    value = [mine(5), mx.nd.full((5,), 10, ctx=mx.cpu(1))]
    out = [mx.nd.zeros((5,)), mx.nd.zeros((5,), ctx=mx.cpu(1))]
    kv.pushpull("g", value, out=out)
    same(out[0], TOTAL + 10 * N)
    same(out[1], TOTAL + 10 * N)
    same(value[0], RANK + 1)
    array = mine(5)
    kv.pushpull("7", array)
    same(array, TOTAL)
    arrays = [mine(2), mine(3)]
    kv.pushpull(["a", "b"], arrays)
    same(arrays[0], TOTAL)
    same(arrays[1], TOTAL)


@check
def half_precision_is_summed():
    kv, array = store(), mine(1000, dtype="float16")
    kv.pushpull("h", array)
    same(array.astype("float32"), TOTAL)


@check
def push_and_pull_are_those_of_dist_sync():
    kv, out = store(), mx.nd.zeros((4,))
    kv.init("w", mine(4))
    kv.pull("w", out=out)
    same(out, 1)
    kv.push("w", mine(4))
    kv.pull("w", out=out)
    same(out, TOTAL)
    kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.5))  # after the keys: the store goes on with their values
    kv.push("w", mine(4))
    kv.pull("w", out=out)
    same(out, TOTAL - 0.5 * TOTAL)


@check
def stores_do_not_meet():
    first, second = store(), store()
    a, b = mine(4), mine(6)
    first.pushpull(0, a)
    second.pushpull(0, b)
    same(a, TOTAL)
    same(b, TOTAL)


@check
def bad_values_are_refused():
    kv = store()
    raises(ValueError, "csr", kv.pushpull, "c", mx.nd.ones((2, 2)).tostype("csr"))
    raises(ValueError, "int32", kv.pushpull, "i", mx.nd.ones((2,), dtype="int32"))
    raises(TypeError, "NDArray", kv.pushpull, "n", np.ones(2))
    raises(ValueError, "no value", kv.pull, "unknown", out=mx.nd.ones((2,)))
    kv.pushpull("g", mine(4))
    raises(ValueError, "shape (4,)", kv.pushpull, "g", mine(5))
    for threshold in (0, "much", float("inf")):
        raises(ValueError, "threshold", kv.set_gradient_compression, {"type": "2bit", "threshold": threshold})
    kv.init("w", mine(4))
    raises(ValueError, "shape (4,)", kv.pull, "w", out=mx.nd.ones((5,)))
    for params in (None, "2bit"):
        raises(ValueError, "{'type': '2bit'", kv.set_gradient_compression, params)
    raises(ValueError, "an NDArray for each device", kv.pushpull, "e", [])
    raises(ValueError, "use a string or a number", kv.pushpull, {}, mine(4))
    kv.set_optimizer(mx.optimizer.SGD())
    raises(ValueError, "give a file of save_states", kv.load_optimizer_states, __file__)
    kv = store()
    raises(ValueError, "no optimizer", kv.save_optimizer_states, "/dev/null")
    kv.set_gradient_compression({"type": "1bit"})
    raises(RefusedError, 'unknown codec "1bit": use one of none', kv.pushpull, "g", mine(4))
    kv.set_gradient_compression({"type": "auto:codecs=int4"})
    kv.pushpull("g", mine(4))


@check
def compression_is_mxnets_2bit():
    for devices in (1, 2):  # whose sum is compressed
        kv = store()
        kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        residuals = [np.zeros(1000, np.float32) for _ in range(N)]
        outs = [mx.nd.zeros((1000,), ctx=mx.cpu(d)) for d in range(devices)]
        for step in range(5):
            r = np.random.RandomState(step)
            grads = r.uniform(-1, 1, (N, devices, 1000)).astype(np.float32)
            want = np.zeros(1000, np.float32)
            for residual, grad in zip(residuals, grads):  # MXNet's definition, by hand
                residual += grad.sum(0)
                sent = np.float32(0.5) * ((residual >= 0.5).astype(np.float32) - (residual <= -0.5).astype(np.float32))
                residual -= sent
                want += sent
            kv.pushpull("g", [mx.nd.array(grads[RANK, d], ctx=mx.cpu(d)) for d in range(devices)], out=outs)
            for out in outs:
                np.testing.assert_array_equal(out.asnumpy(), want)
            if step == 2:  # in a session that begins here, what is left goes on
                kv.set_gradient_compression({"type": "2bit:0.50/none"})
        moved = kv._session.stats()  # of the last two steps, and of the value at their beginning
        assert moved["sent_bytes"] < 0.08 * 2 * 4000 + 4000, moved


@check
def other_codecs_compress_both_ways():
    for kind, most in (("int8", 0.3), ("int4/none", 0.2), ("sign/int8", 0.1)):
        kv, total = store(), np.zeros(5000, np.float32)
        kv.set_gradient_compression({"type": kind})
        for step in range(20):
            grad, out = np.random.RandomState(10 * step + RANK).normal(0, 1, 5000).astype(np.float32), mx.nd.zeros((5000,))
            kv.pushpull("g", mx.nd.array(grad), out=out)
            whole = sum(np.random.RandomState(10 * step + r).normal(0, 1, 5000).astype(np.float32) for r in range(N))
            total += out.asnumpy() - whole
        moved = kv._session.stats()
        assert moved["sent_bytes"] < most * moved["sent_raw_bytes"], (kind, moved)
        assert (moved["received_bytes"] < 0.3 * moved["received_raw_bytes"]) == (kind != "int4/none"), (kind, moved)
        assert np.abs(total).max() < 6 * N, (kind, np.abs(total).max())  # what is left does not grow


@check
def compression_leaves_parameters_alone():
    kv, start = store(), np.random.RandomState(5).uniform(-0.2, 0.2, 300).astype(np.float32)
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    mine_or_zeros = mx.nd.array(start if RANK == 0 else np.zeros_like(start))
    out = mx.nd.zeros(start.shape)
    kv.init("initial", mine_or_zeros)
    kv.pull("initial", out=out)
    same(out, start)
    kv.broadcast("broadcast", mine_or_zeros, out=out)
    same(out, start)

    seed(RANK)
    net = mx.gluon.nn.Dense(3, in_units=4)
    net.initialize(mx.init.Uniform(0.1))
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore="dist_sync_rackweave",
                               compression_params={"type": "2bit", "threshold": 0.25})  # fmt: skip
    weight = None
    for turn in range(4):
        with mx.autograd.record():
            out = (net(mx.nd.full((1, 4), 0.1 * (RANK + 1))) * mx.nd.array([1, -1, 0])).sum()
        out.backward()
        trainer.step(1)
        if weight is None:  # after the first step, in which all got rank 0's: what was below the threshold stays for later
            weight, residual = net.weight.data().asnumpy(), np.array([0.1 * (r + 1) for r in range(N)], np.float32)
            sent = 0
            continue
        residual = residual + np.array([np.float32(0.1 * (r + 1)) for r in range(N)], np.float32)
        sent += 0.25 * (residual >= 0.25).sum()
        residual -= np.float32(0.25) * (residual >= 0.25)
        moved = 0.5 * sent * np.array([[1], [-1], [0]]) * np.ones((1, 4))
        np.testing.assert_allclose(weight - net.weight.data().asnumpy(), moved, atol=1e-6)


@check
def an_asynchronous_store_updates_by_each_gradient_alone():
    r, turns = np.random.RandomState(3), 4
    start, grads = r.uniform(-1, 1, 500).astype(np.float32), r.uniform(-1, 1, (N, turns, 500)).astype(np.float32)
    for name, params in {
        "sgd": {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01},
        "sgd ": {"learning_rate": 0.1},
        "adam": {"learning_rate": 0.01, "wd": 0.01},
    }.items():
        kv, weight, want = mx.kv.create("dist_async_rackweave"), mx.nd.array(start), mx.nd.array(start)
        assert kv.type == "dist_async_rackweave"
        kv.set_optimizer(mx.optimizer.create(name.strip(), rescale_grad=1 / 3, **params))
        local = mx.optimizer.get_updater(mx.optimizer.create(name.strip(), rescale_grad=1 / 3, **params))
        kv.broadcast("w", weight, out=weight)
        for rank in range(N):  # one after the other, so that there is one right result
            for grad in grads[rank]:
                local("w", mx.nd.array(grad), want)
                if rank == RANK:
                    kv.pushpull("w", mx.nd.array(grad), out=weight)
            mx.nd.waitall()
            kv._barrier()
            if rank == RANK:
                np.testing.assert_array_equal(weight.asnumpy(), want.asnumpy())


@check
def an_asynchronous_worker_does_not_wait_for_the_others():
    kv = mx.kv.create("rackweave_async")
    net = mx.gluon.nn.Dense(1, in_units=3)
    net.initialize(mx.init.One())
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore=kv)
    for _ in range(5 + 20 * RANK):
        with mx.autograd.record():
            out = net(mx.nd.ones((2, 3)))
        out.backward()
        trainer.step(2)
    mx.nd.waitall()  # rank 0 is here first; nobody waits for it
    kv._barrier()
    kv = mx.kv.create("dist_async_rackweave")
    raises(ValueError, "no optimizer", kv.pushpull, "g", mine(3))
    raises(ValueError, "the aggregator runs the optimizer, and it is Signum", trained, "signum", {}, kv)


@check
def gradients_with_nan_are_counted():
    kv, out = store(), mx.nd.zeros((1000,))
    for dtype in ("float32", "float16"):
        for bad in (float("nan"), float("-inf"), 0):
            array = mine(1000, dtype=dtype)
            array[999 if RANK else 0] = bad
            kv.pushpull(dtype, array, out=out.astype(dtype))
    mx.nd.waitall()
    assert kv.nonfinite == 4, kv.nonfinite
    os.environ["RACKWEAVE_NONFINITE"] = "perhaps"
    try:
        raises(ValueError, "'perhaps': use count, refuse or ignore", store)
    finally:
        del os.environ["RACKWEAVE_NONFINITE"]


@check
def a_parameter_of_another_type_is_refused_by_its_name():
    net = mx.gluon.nn.Dense(1, in_units=1, dtype="float64")
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore="rackweave")
    raises(ValueError, f"parameter '{net.bias.name}' is of float64: use net.cast", trainer.step, 2)


def trained(optimizer, params, kvstore, steps=6, change=None, before=None, after=None, batches=(16,)):
    """Trains one net by a store, or by full batches without one, and returns its weights."""
    mx.name.NameManager._current.value = mx.name.NameManager()
    seed(5)
    net = mx.gluon.nn.HybridSequential(prefix="t_")
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(16, activation="tanh", in_units=64), mx.gluon.nn.Dense(10, in_units=16))
    net.initialize(mx.init.Xavier())
    net[0].weight.lr_mult, net[1].bias.wd_mult = 0.5, 0.0
    trainer = mx.gluon.Trainer(net.collect_params(), optimizer, dict(params) or None, kvstore=kvstore)
    if before:
        before(trainer)
    shares = [data(r, seed=3) for r in ([RANK] if kvstore else range(N))]
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    for step in range(steps):
        batch = batches[step % len(batches)]
        with mx.autograd.record():
            values = [loss(net(mx.nd.array(x[:batch].reshape(batch, 64))), mx.nd.array(y[:batch])) for x, y in shares]
            total = mx.nd.concat(*values, dim=0)
        total.backward()
        if change:
            change(trainer, step)
        trainer.step(batch * N)
    if after:
        after(trainer)
    return [p.data().asnumpy() for p in net.collect_params().values()]


def alike(a, b, tolerance=1e-5):
    for x, y in zip(a, b):
        assert np.abs(x - y).max() <= tolerance * np.abs(y).max(), np.abs(x - y).max()


@check
def every_optimizer_does_what_it_does_locally():
    for name, params in {
        "sgd": {"learning_rate": 0.1}, "nag": {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01},
        "adam": {"learning_rate": 0.01, "wd": 0.01, "clip_gradient": 0.01}, "adagrad": {"learning_rate": 0.1, "wd": 0.01},
        "rmsprop": {"learning_rate": 0.01, "wd": 0.01}, "ftrl": {"learning_rate": 0.1, "wd": 0.01},
        "signum": {"learning_rate": 0.01, "momentum": 0},
        "rmsprop ": {"learning_rate": 0.01, "centered": True},
    }.items():
        alike(trained(name.strip(), params, store()), trained(name.strip(), params, None), 2e-5)


@check
def workers_stay_equal_where_the_optimizer_draws_random_numbers():
    for optimizer in (mx.optimizer.SGLD(learning_rate=0.01), Noisy()):
        check = store()
        for key, weight in enumerate(trained(optimizer, {}, store(), change=lambda trainer, step: seed(RANK))):
            total = mx.nd.array(weight)
            check.pushpull(key, total)
            same(total, N * weight)


@check
def hyper_parameters_are_live():
    def change(trainer, step):
        if step == 2:
            trainer.set_learning_rate(0.01)

    sgd = {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01}
    alike(trained("sgd", sgd, store(), change=change), trained("sgd", sgd, None, change=change))

    def scheduled():
        return dict(sgd, lr_scheduler=mx.lr_scheduler.FactorScheduler(2, 0.5))

    alike(trained("sgd", scheduled(), store()), trained("sgd", scheduled(), None))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        # The last batch may be smaller.
        alike(trained("sgd", sgd, store(), batches=(16, 4)), trained("sgd", sgd, None, batches=(16, 4)))


def stepped(units=1):
    """Returns a Trainer that has made a step."""
    net = mx.gluon.nn.Dense(units, in_units=2)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=store())
    with mx.autograd.record():
        out = net(mx.nd.ones((1, 2)))
    out.backward()
    trainer.step(N)
    return trainer


@check
def sessions_end_with_their_trainers():
    before = len(open_sessions())
    for _ in range(20):
        trainer = stepped()
    until = time.monotonic() + 30
    while len(open_sessions()) >= before + 20 and time.monotonic() < until:  # threads close them
        time.sleep(0.01)
    assert len(open_sessions()) < before + 20
    rackweave.mxnet.detach(trainer)
    raises(rackweave.ClosedError, "closed", trainer.step, 1)
    raises(ValueError, "this Dense exchanges nothing", rackweave.mxnet.detach, mx.gluon.nn.Dense(1))


@check
def states_of_another_model_are_refused_at_every_rank():
    path = os.path.join(tempfile.gettempdir(), f"rackweave-states-{os.getpid()}")
    stepped(1).save_states(path)
    raises(ValueError, "the file is of another model", stepped(3).load_states, path)
    os.remove(path)


@check
def optimizer_states_go_to_local_training_and_back():
    for name, params in {"sgd": {"learning_rate": 0.1, "momentum": 0.9}, "adam": {"learning_rate": 0.01}, "ftrl": {}}.items():
        with tempfile.TemporaryDirectory() as folder:
            ours, local = os.path.join(folder, "ours"), os.path.join(folder, "local")
            trained(name, params, store(), after=lambda t: t.save_states(ours))
            trained(name, params, None, after=lambda t: t.save_states(local))
            (a, _), (b, _) = (pickle.load(open(path, "rb")) for path in (ours, local))
            assert a.keys() == b.keys()
            for key in a:
                for x, y in zip(listed(a[key]), listed(b[key])):
                    alike([x.asnumpy()], [y.asnumpy()], 1e-4)

            def load(trainer):
                trainer.load_states(local)

            alike(trained(name, params, store(), before=load), trained(name, params, None, before=load))


@check
def one_rank_may_save_states_while_others_go_on():
    path = os.path.join(tempfile.gettempdir(), f"rackweave-states-{os.getpid()}")

    def save(trainer, step):
        if step == 3 and RANK == 0:
            time.sleep(0.2)  # the others' gradients are there
            trainer.save_states(path)

    sgd = {"learning_rate": 0.1, "momentum": 0.9}
    alike(trained("sgd", sgd, store(), change=save), trained("sgd", sgd, None))
    if RANK == 0:
        os.remove(path)


def listed(state):
    return list(state) if isinstance(state, (list, tuple)) else [] if state is None else [state]


@check
def weights_set_after_the_first_step_count():
    net = mx.gluon.nn.Dense(1, in_units=1, use_bias=False)
    net.initialize(mx.init.One())
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1}, kvstore="rackweave")
    for value in (None, 100.0):
        if value is not None:
            net.weight.set_data(mx.nd.full((1, 1), value))
        with mx.autograd.record():
            out = net(mx.nd.ones((1, 1)))
        out.backward()
        trainer.step(N)
    same(net.weight.data(), 99)


@check
def module_starts_from_rank_0s_weights_where_workers_update():
    os.environ["MXNET_UPDATE_ON_KVSTORE"] = "0"
    try:
        seed(50 + RANK)
        s = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=10, name="f"), name="softmax")
        net, (x, y) = mx.mod.Module(s), data(RANK)
        net.fit(mx.io.NDArrayIter(x, y, 32, label_name="softmax_label"), num_epoch=1, kvstore=store(), initializer=mx.init.Xavier())
        weight = net.get_params()[0]["f_weight"]
        summed = weight.copy()
        store().pushpull("check", summed)
        np.testing.assert_allclose(summed.asnumpy(), N * weight.asnumpy(), rtol=1e-6)
    finally:
        del os.environ["MXNET_UPDATE_ON_KVSTORE"]


@check
def pushpull_returns_before_a_late_peer_came():
    kv, arrays, late = store(), [mine(1000) for _ in range(100)], 1.0
    kv.pushpull(list(range(100)), arrays)
    mx.nd.waitall()
    kv._barrier()
    if RANK == 1:
        time.sleep(late)
    began, took = time.monotonic(), []
    for key, array in enumerate(arrays):
        start = time.monotonic()
        kv.pushpull(key, array)
        took.append(time.monotonic() - start)
    mx.nd.dot(mx.nd.ones((50, 50)), mx.nd.ones((50, 50))).wait_to_read()
    other = time.monotonic() - began
    mx.nd.waitall()
    if RANK == 0:
        assert np.median(took) < 0.001 and other < late / 2 < time.monotonic() - began, (np.median(took), other)


@check
def forks_and_data_loaders_work():
    kv, array = store(), mine(1000)
    x = mx.gluon.data.ArrayDataset(np.arange(64).astype(np.float32))
    kv.pushpull("g", array)
    assert sum(b.sum().asscalar() for b in mx.gluon.data.DataLoader(x, 8, num_workers=2)) == 64 * 63 / 2
    child = os.fork()
    if child == 0:
        try:
            raises(rackweave.ForkedError, "forked", kv.pushpull, "g", array)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    kv.pushpull("g", array)
    same(array, TOTAL * N)


@check
def a_parameter_that_is_cast_stays_in_the_arena():
    net = network("arena_")
    net.initialize(mx.init.Xavier())
    net(mx.nd.array(data(RANK)[0][:16]))
    net.cast("float16")
    assert all(_engine.in_arena(p.data()) and _engine.in_arena(p.grad()) for p in net.collect_params().values() if p._grad)


@check
def signal_handlers_are_left_alone():
    code = "import signal, mxnet; before = [signal.getsignal(s) for s in range(1, 32)]\n"
    code += "import rackweave.mxnet\nassert before == [signal.getsignal(s) for s in range(1, 32)]"
    if RANK == 0:  # its own process, which takes no part in the job
        subprocess.run([sys.executable, "-c", code], check=True)


if __name__ == "__main__":
    main()
