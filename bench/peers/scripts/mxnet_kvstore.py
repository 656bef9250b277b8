#!/usr/bin/env python3
"""Times pushpull of MXNet's kvstores between processes of one host; prints one line of JSON.

The store is MXNet's own dist_sync, with its scheduler and servers, or RackWeave's. An iteration fills the inputs (dist_sync
overwrites them; that is off the clock), and meets at a barrier, where rank 0 names an instant. From then on each rank calls
pushpull for each tensor as gluon.Trainer does, and waits until MXNet's engine has nothing left to do. The iteration's time is
from that instant until the last rank is done, so that no rank works off the clock. The last sums are compared with what they
must be, element by element: the inputs are small integers, so any order of adding gives the same bits.

With --rows an iteration pushes a row_sparse gradient of one embedding, which the servers update by SGD, and row_sparse_pulls the
rows of the next iteration.
"""
import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

PERIOD = 4  # of the inputs: element i of rank r is (i + r) % PERIOD
BLOCK = 1 << 20  # elements that are filled at once: a second copy of a large model does not fit everywhere
AHEAD = 0.02  # seconds from the barrier to the start
UNSUPPORTED = 3  # exit status: a dtype that the store does not sum; Go knows it too


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--store", choices=["dist_sync", "rackweave"], required=True)
    p.add_argument("--workers", type=int, required=True)
    p.add_argument("--bytes", type=int, required=True, help="bytes of one rank's tensors")
    p.add_argument("--dtype", default="f32")
    p.add_argument("--iters", type=int, default=20)
    p.add_argument("--warmup", type=int, default=5)
    p.add_argument("--tensors", metavar="FILE", help="a file with the bytes of a tensor per line, in all --bytes")
    p.add_argument("--rows", metavar="ROWS,WIDTH", type=lambda s: [int(n) for n in s.split(",")], help="shape of an embedding")
    p.add_argument("--ids", metavar="FILE", help="with --rows: int64 rows, ascending, by rank and iteration; as many for each")
    p.add_argument("--sets", type=int, default=1, help="iterations of --ids, which are used in turn")
    p.add_argument("--servers", type=int, default=1, help="of dist_sync")
    p.add_argument("--hosts", metavar="NAMESPACE=ADDRESS,...", help="network namespaces of the workers; dist_sync's scheduler is "
                   "in the first")
    p.add_argument("--server-hosts", metavar="NAMESPACE=ADDRESS,...", help="those of the servers, one in each")
    p.add_argument("--interface", default="lo", help="network device to use, in each namespace")
    p.add_argument("--divided", type=int, help="elements of a tensor from which on dist_sync divides it among its servers")
    p.add_argument("--memory", choices=["arena", "ordinary"], default="arena", help="where RackWeave's tensors lie")
    p.add_argument("--rackweave", metavar="PROGRAM", default="rackweave", help="the rackweave command")
    p.add_argument("--results", metavar="DIRECTORY", help=argparse.SUPPRESS)  # given to workers
    args = p.parse_args()
    if args.iters < 1 or args.warmup < 0 or args.workers < 1 or args.servers < 1:
        p.error("at least one worker, one server and one iteration are needed")
    args.sizes = [args.bytes // 4]
    if args.tensors:
        with open(args.tensors) as f:
            args.sizes = [int(line) // 4 for line in f if line.strip()]
    if not args.rows and sum(args.sizes) * 4 != args.bytes or 0 in args.sizes:
        p.error(f"--tensors: {sum(args.sizes)} elements in {args.tensors}, {args.bytes} bytes in --bytes")
    return args


def together(starts, iteration, rank):
    """Waits until the instant at which all ranks, on one host, begin an iteration; returns it."""
    if rank == 0:
        starts[iteration] = time.perf_counter() + AHEAD
    while starts[iteration] == 0:
        time.sleep(AHEAD / 20)
    time.sleep(max(0, starts[iteration] - time.perf_counter()))
    return starts[iteration]


def timed(args, store, mx, np, prepare, exchange):
    """The times of all measured iterations in microseconds."""
    starts = np.memmap(os.path.join(args.results, "starts"), np.float64)
    times = []
    for iteration in range(args.warmup + args.iters):
        prepare(iteration)
        mx.nd.waitall()
        store._barrier()
        start = together(starts, iteration, store.rank)
        exchange()
        mx.nd.waitall()
        times.append((time.perf_counter() - start) * 1e6)
    return times[args.warmup:]


def work_dense(args, store, mx, np):
    def tensors(name):
        if args.store == "rackweave" and args.memory == "arena":
            from rackweave.mxnet import _arena
            return [getattr(_arena, name)((size,), np.float32) for size in args.sizes]
        return [mx.nd.empty((size,)) for size in args.sizes]

    inputs, outputs = tensors("gradient"), tensors("weight")
    pattern = mx.nd.array((np.arange(BLOCK) + store.rank) % PERIOD)

    def fill(value):
        for at in range(0, value.size, BLOCK):
            part = value[at : at + BLOCK]
            pattern[: part.size].copyto(part)

    for i, out in enumerate(outputs):
        out[:] = -1
        store.broadcast(i, out, out=out)

    def prepare(iteration):
        for value in inputs:
            fill(value)

    def exchange():
        for i, (value, out) in enumerate(zip(inputs, outputs)):
            store.pushpull(i, value, out=out, priority=-i)

    times = timed(args, store, mx, np, prepare, exchange)
    period = np.array([sum((i + r) % PERIOD for r in range(args.workers)) for i in range(PERIOD)], np.float32)
    return times, sum(int((out.asnumpy() != np.resize(period, out.size)).sum()) for out in outputs)


def work_rows(args, store, mx, np):
    rows, width = args.rows
    ids = np.fromfile(args.ids, np.int64).reshape(args.workers, args.sets, -1)
    columns = np.arange(width)

    def gradient(rank, ids):
        return ((ids[:, None] + columns + rank) % PERIOD).astype(np.float32)

    store.set_optimizer(mx.optimizer.SGD(learning_rate=1, rescale_grad=1))  # it is lazy with row_sparse gradients
    store.init("embedding", mx.nd.ones((rows, width)).tostype("row_sparse"))
    out = mx.nd.sparse.zeros("row_sparse", (rows, width))
    now = {}

    def prepare(iteration):
        mine = ids[store.rank, iteration % args.sets]
        now["gradient"] = mx.nd.sparse.row_sparse_array((gradient(store.rank, mine), mine), shape=(rows, width))
        now["pulled"] = mx.nd.array(ids[store.rank, (iteration + 1) % args.sets], dtype=np.int64)

    def exchange():
        store.push("embedding", now["gradient"])
        store.row_sparse_pull("embedding", out=out, row_ids=now["pulled"])

    times = timed(args, store, mx, np, prepare, exchange)
    steps = args.warmup + args.iters
    mine = ids[store.rank, steps % args.sets]
    want = np.ones((mine.size, width), np.float32)
    for step in range(steps):
        for rank in range(args.workers):
            touched = ids[rank, step % args.sets]
            both = np.intersect1d(mine, touched, assume_unique=True, return_indices=True)
            want[both[1]] -= gradient(rank, both[0])
    if not np.array_equal(out.indices.asnumpy(), mine):
        return times, want.size
    return times, int((out.data.asnumpy() != want).sum())


def work(args):
    """One rank's whole run; leaves its times in microseconds and its wrong elements in the directory of results."""
    if args.store == "rackweave":
        import rackweave.mxnet
    import mxnet as mx
    import numpy as np

    store = mx.kv.create("dist_sync" if args.store == "dist_sync" else "dist_sync_rackweave")
    times, wrong = (work_rows if args.rows else work_dense)(args, store, mx, np)
    with open(os.path.join(args.results, str(store.rank)), "w") as f:
        json.dump({"times_us": times, "wrong": wrong, "version": mx.__version__}, f)
    store._barrier()


def places(flag, count):
    """The command prefix and the address of each of a role's processes."""
    if not flag:
        return [([], "127.0.0.1")] * count
    pairs = [host.split("=") for host in flag.split(",")]
    return [(["ip", "netns", "exec", namespace], address) for namespace, address in pairs]


def native(args, command, environment):
    """Starts dist_sync's processes, the workers first."""
    workers = places(args.hosts, args.workers)
    servers = places(args.server_hosts, args.servers)
    port = 9091  # in a namespace of its own nobody else has it
    if not args.hosts:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
    environment.update(DMLC_PS_ROOT_URI=workers[0][1], DMLC_PS_ROOT_PORT=str(port), DMLC_NUM_SERVER=str(len(servers)),
                       DMLC_NUM_WORKER=str(len(workers)))
    if args.hosts:
        environment["DMLC_INTERFACE"] = args.interface
    if args.divided:
        environment["MXNET_KVSTORE_BIGARRAY_BOUND"] = str(args.divided)
    environment.pop("PORT", None)
    roles = [("worker", w) for w in workers] + [("server", s) for s in servers] + [("scheduler", workers[0])]
    return [subprocess.Popen(prefix + command, env=dict(environment, DMLC_ROLE=role, DMLC_NODE_HOST=address), stdout=sys.stderr)
            for role, (prefix, address) in roles]


def start(args, folder):
    command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--results", folder]
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // args.workers)))
    if args.store == "dist_sync":
        return native(args, command, environment)
    environment.setdefault("RACKWEAVE_NONFINITE", "ignore")  # dist_sync does not look for NaN
    command = [args.rackweave, "run", "-n", str(args.workers), "--", *command]
    return [subprocess.Popen(command, env=environment, stdout=sys.stderr)]


def finish(processes):
    """Waits for all; when one fails, ends the others and raises."""
    try:
        while any(p.poll() is None for p in processes):
            if any(p.returncode for p in processes):
                break
            time.sleep(0.05)
        failed = [p.returncode for p in processes if p.returncode]
        if failed:
            raise SystemExit(f"mxnet_kvstore.py: a process ended with {failed[0]}")
    finally:
        for p in processes:
            if p.poll() is None:
                p.terminate()
        for p in processes:
            try:
                p.wait(10)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()


def main():
    args = parse()
    if args.dtype != "f32":
        print(f"mxnet_kvstore.py: {args.dtype}: the comparison is of f32", file=sys.stderr)
        sys.exit(UNSUPPORTED)
    if args.results:
        return work(args)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through finish, which ends the processes
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "starts"), "wb") as f:
            f.write(bytes(8 * (args.warmup + args.iters)))
        finish(start(args, folder))
        ranks = [json.load(open(os.path.join(folder, str(r)))) for r in range(args.workers)]
    how = f"kvstore, tensors in {args.memory} memory"
    if args.store == "dist_sync":
        how = f"dist_sync, servers: {len(places(args.server_hosts, args.servers))}"
    print(json.dumps({
        "version": f"mxnet {ranks[0]['version']}",
        "transport": how,
        "times_us": [round(max(t), 3) for t in zip(*(r["times_us"] for r in ranks))],
        "wrong": sum(r["wrong"] for r in ranks),
    }))


if __name__ == "__main__":
    main()
