#!/usr/bin/env python3
"""Times torch.distributed's Gloo allreduce between processes of one host; prints one line of JSON.

Every iteration refills the buffers (torch reduces in place; the refill is off the clock), meets at a barrier, and is
timed by each rank for itself; the slowest rank's time is the iteration's. The last iteration's sums are compared with
what they must be, element by element: the inputs are small integers, so any order of adding gives the same bits.

With --rows a rank's buffer is a sparse gradient of an embedding: a coalesced COO tensor with the rows that a file names, whose
union every rank gets, as DistributedDataParallel reduces them.

What can make Gloo faster on a host is an option, so that whoever compares with it can give it its best:
  --pieces   the flat buffer is reduced as this many concurrent operations (one alone sends, receives and adds in turn)
  --devices  as many sets of connections, used in turn by successive operations
  --threads  Gloo's threads per process, each working on one operation at a time
"""
import argparse
import ctypes
import datetime
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
PERIOD = 4  # of the inputs: element i of rank r is (i + r) % PERIOD
UNSUPPORTED = 3  # exit status: this Gloo does not reduce the dtype; Go knows it too
MOST_WORKERS = 64  # above it the sums, up to 3 per rank, are not exact in bf16


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--workers", type=int, required=True)
    p.add_argument("--bytes", type=int, required=True, help="bytes of one rank's buffer")
    p.add_argument("--dtype", choices=DTYPES, default="f32")
    p.add_argument("--iters", type=int, default=20)
    p.add_argument("--warmup", type=int, default=5)
    p.add_argument("--pieces", type=int, default=1)
    p.add_argument("--devices", type=int, default=1)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--tensors", metavar="FILE", help="one operation per tensor instead of one flat buffer: a file with "
                   "the bytes of a tensor per line, in all --bytes; --pieces is then not used")
    p.add_argument("--rows", metavar="ROWS,WIDTH", type=lambda s: [int(n) for n in s.split(",")], help="shape of an embedding")
    p.add_argument("--ids", metavar="FILE", help="with --rows: int64 rows, ascending, by rank and iteration; as many for each")
    p.add_argument("--sets", type=int, default=1, help="iterations of --ids, which are used in turn")
    p.add_argument("--hosts", metavar="NAMESPACE=ADDRESS,...", help="network namespaces of the ranks")
    p.add_argument("--interface", default="lo", help="network device to use, in each namespace")
    p.add_argument("--timeout", type=float, default=60, help="seconds that one operation may take")
    args = p.parse_args()
    size = torch.empty(0, dtype=DTYPES[args.dtype]).element_size()
    args.count = args.bytes // size
    if args.count < 1 or args.iters < 1 or args.warmup < 0 or args.pieces < 1:
        p.error("at least one element, one iteration and one piece are needed")
    if not 1 <= args.workers <= MOST_WORKERS:
        p.error(f"--workers: {args.workers}, from 1 to {MOST_WORKERS} can be checked")
    if args.rows:
        count = os.path.getsize(args.ids) // 8
        args.ids = torch.from_file(args.ids, size=count, dtype=torch.int64).view(args.workers, args.sets, -1)
    elif args.tensors:
        with open(args.tensors) as f:
            args.lengths = [int(line) // size for line in f if line.strip()]
        if sum(args.lengths) != args.count:
            p.error(f"--tensors: {sum(args.lengths)} elements in {args.tensors}, {args.count} in --bytes")
    else:
        pieces = min(args.pieces, args.count)
        args.lengths = [args.count * (k + 1) // pieces - args.count * k // pieces for k in range(pieces)]
    return args


def enter(namespace):
    """Moves this process, which has one thread yet, into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/run/netns/" + namespace) as f:
        if libc.setns(f.fileno(), 0x40000000):  # CLONE_NEWNET
            raise RuntimeError(f"enter the network namespace {namespace}: {os.strerror(ctypes.get_errno())}")


def connect(rank, args, store):
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(interface=args.interface) for _ in range(args.devices)]
    options._threads = args.threads
    options._timeout = datetime.timedelta(seconds=args.timeout)
    return dist.ProcessGroupGloo(dist.FileStore(store, args.workers), rank, args.workers, options)


def filled(args, period):
    """A buffer that repeats the values of one period."""
    return torch.tensor(period, dtype=DTYPES[args.dtype]).repeat(args.count // PERIOD + 1)[:args.count].clone()


def exchange(rank, args, store):
    """One rank's whole run: the iterations' times in microseconds, of the slowest rank, and the wrong elements of all."""
    torch.set_num_threads(1)  # for the refill, the only thing torch itself computes: one core per rank at most
    group = connect(rank, args, store)
    times, wrong = (exchange_rows if args.rows else exchange_dense)(rank, args, group)
    wrong = torch.tensor([wrong])
    slowest = torch.tensor(times[args.warmup:], dtype=torch.float64)
    maximum = dist.AllreduceOptions()
    maximum.reduceOp = dist.ReduceOp.MAX
    group.allreduce([slowest], maximum).wait()
    group.allreduce([wrong]).wait()
    group.barrier().wait()
    return {"times_us": [round(t, 3) for t in slowest.tolist()], "wrong": int(wrong)}


def exchange_dense(rank, args, group):
    inputs = filled(args, [(i + rank) % PERIOD for i in range(PERIOD)])
    work = torch.empty_like(inputs)
    tensors = work.split(args.lengths)
    times = []
    for _ in range(args.warmup + args.iters):
        work.copy_(inputs)
        group.barrier().wait()
        start = time.perf_counter()
        for operation in [group.allreduce(t) for t in tensors]:
            operation.wait()
        times.append((time.perf_counter() - start) * 1e6)
    want = filled(args, [sum((i + r) % PERIOD for r in range(args.workers)) for i in range(PERIOD)])
    return times, int((work != want).sum())


def gradient(rank, args, ids):
    """A rank's gradient: element j of row i is (i + j + rank) % PERIOD."""
    values = (ids[:, None] + torch.arange(args.rows[1]) + rank) % PERIOD
    return torch.sparse_coo_tensor(ids[None], values.to(DTYPES[args.dtype]), args.rows)._coalesced_(True)


def exchange_rows(rank, args, group):
    times = []
    for iteration in range(args.warmup + args.iters):
        ids = args.ids[:, iteration % args.sets]
        work = gradient(rank, args, ids[rank])
        group.barrier().wait()
        start = time.perf_counter()
        group.allreduce([work]).wait()
        times.append((time.perf_counter() - start) * 1e6)
    union, got = ids.unique(), work.coalesce()
    if not torch.equal(got.indices()[0], union):
        return times, union.numel() * args.rows[1]
    want = torch.zeros(union.numel(), args.rows[1], dtype=got.dtype)
    for r in range(args.workers):
        want[torch.searchsorted(union, ids[r])] += gradient(r, args, ids[r]).values()
    return times, int((got.values() != want).sum())


def rank_main(rank, args, store, results):
    try:
        if args.hosts:
            enter(args.hosts.split(",")[rank].split("=")[0])
        result = exchange(rank, args, store)
    except RuntimeError as e:
        status = UNSUPPORTED if "Invalid scalar type" in str(e) else 1
        results.send({"error": f"rank {rank}, {args.dtype}: {e}", "status": status})
        sys.exit(status)
    if rank == 0:
        results.send(result)


def first_result(receive, ranks):
    """Rank 0's result, or {"error": ...} as soon as any rank has failed."""
    running = {r.sentinel: r for r in ranks}
    while running:
        ready = multiprocessing.connection.wait([receive, *running])
        if receive in ready:
            try:
                return receive.recv()
            except EOFError:
                break
        for sentinel in ready:
            ended = running.pop(sentinel)
            ended.join()
            if ended.exitcode != 0 and not receive.poll():
                return {"error": f"a rank ended with {ended.exitcode}"}
    return {"error": "the ranks ended without a result"}


def run(args):
    context = multiprocessing.get_context("fork")  # torch is imported once, and none of its threads exist yet
    receive, send = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        ranks = [context.Process(target=rank_main, args=(r, args, store, send)) for r in range(args.workers)]
        for r in ranks:
            r.start()
        send.close()
        result = first_result(receive, ranks)
        for r in ranks:
            if "error" in result:
                r.kill()
            r.join()
    return result


def main():
    args = parse()
    result = run(args)
    if "error" in result:
        print("gloo.py:", result["error"], file=sys.stderr)
        sys.exit(result.get("status", 1))
    print(json.dumps({"version": "torch " + torch.__version__, "transport": "tcp over " + args.interface, **result}))


if __name__ == "__main__":
    main()
