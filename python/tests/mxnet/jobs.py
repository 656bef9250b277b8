"""Runs training programs as jobs: by MXNet's own dist_sync, and by RackWeave."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "python" / "tests"))
import rack  # noqa: E402

PROGRAMS = Path(__file__).resolve().parent / "programs"
DEADLINE = 240.0


def environment(**more):
    """Returns the environment of a job's processes: no launcher's variables, and arithmetic on one thread, which repeats."""
    launchers = ("DMLC_", "RACKWEAVE_", "OMPI_", "PMI", "SLURM_", "MXNET_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(launchers) and k not in ("RANK", "WORLD_SIZE", "PORT")}
    paths = [str(ROOT / "python" / "src"), str(PROGRAMS)]
    env.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(paths))
    env.update(RACKWEAVE_LIBRARY=str(ROOT / "bin" / "librackweave.so.0"), PYTHONUNBUFFERED="1")
    env.update(more)
    return env


class JobFailed(Exception):
    """A job ended otherwise than with 0, or did not end."""


def rackweave(workers, program, *arguments, check=True, server=None, **env):
    """Runs a program's workers as forks of one process, and returns what they printed, each line after its rank."""
    with contextlib.ExitStack() as stack:
        server = server or stack.enter_context(aggregators(1))
        place = {"RACKWEAVE_ADDR": server, "RACKWEAVE_JOB": program, "RACKWEAVE_WORLD_SIZE": str(workers), **env}
        places = [{**place, "RACKWEAVE_RANK": str(rank)} for rank in range(workers)]
        statuses, outputs = _forked(program, arguments, places)
    printed = "".join(f"[{rank}] {line}\n" for rank, output in enumerate(outputs) for line in output.splitlines())
    if check and any(statuses):
        raise JobFailed(f"{program}: statuses {statuses}\n{printed[-6000:]}")
    return printed


@contextlib.contextmanager
def aggregators(n):
    """Runs aggregators that know nothing of each other, and yields what workers are told of them."""
    with contextlib.ExitStack() as stack:
        yield ",".join(stack.enter_context(rack.Aggregator("--cores", "2")).address for _ in range(n))


def native(workers, program, *arguments, servers=1, **env):
    """Runs a program's workers by MXNet's dist_sync on this host, with its scheduler and servers, as forks of one process."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    common = dict(DMLC_PS_ROOT_URI="127.0.0.1", DMLC_PS_ROOT_PORT=str(port), DMLC_NODE_HOST="127.0.0.1",
                  DMLC_NUM_SERVER=str(servers), DMLC_NUM_WORKER=str(workers), **env)
    roles = ["scheduler", *["server"] * servers, *["worker"] * workers]
    statuses, outputs = _forked(program, arguments, [dict(common, DMLC_ROLE=role) for role in roles])
    if any(statuses):
        raise JobFailed(f"native {program}: statuses {statuses}\n{''.join(outputs)[-6000:]}")


def _forked(program, arguments, places):
    """Runs a program once for each environment, and returns the exit statuses and what was printed. Workers come last."""
    task = ["program", str(PROGRAMS / program), *map(str, arguments)]
    forker = rack.Forker.of("mxnet")
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / str(i) for i in range(len(places))]
        processes = [forker.fork(task, environment(**place), str(output)) for place, output in zip(places, outputs)]
        until = time.monotonic() + DEADLINE
        try:
            statuses = [_wait(p, until - time.monotonic()) for p in reversed(processes)]
        finally:
            for p in processes:
                if p.poll() is None:
                    p.kill()
                    p.wait()
        return statuses[::-1], [output.read_text(errors="replace") for output in outputs]


def _wait(process, seconds):
    try:
        return process.wait(max(seconds, 0.1))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return "timed out"
