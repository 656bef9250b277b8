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

RACKWEAVE = ROOT / "bin" / "rackweave"
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


def rackweave(workers, program, *arguments, deadline=DEADLINE, check=True, server=None, **env):
    """Runs a program's workers by RackWeave and returns what they printed, each line after its rank."""
    at = ["--server", server] if server else []
    command = [RACKWEAVE, "run", "-n", str(workers), *at, "--", sys.executable, PROGRAMS / program, *arguments]
    with tempfile.TemporaryFile("w+") as output:
        job = subprocess.Popen([str(c) for c in command], env=environment(**env), stdout=output, stderr=subprocess.STDOUT)
        status = _wait(job, deadline)
        output.seek(0)
        printed = output.read()
    if check and status != 0:
        raise JobFailed(f"{program}: status {status}\n{printed[-6000:]}")
    return printed


@contextlib.contextmanager
def aggregators(n):
    """Runs aggregators that know nothing of each other, and yields what workers are told of them."""
    command = [str(RACKWEAVE), "serve", "--listen", "127.0.0.1:0", "--unpinned", "--until-eof", "--cores", "2"]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(n)]
    try:
        yield ",".join(p.stdout.readline().strip() for p in running)
    finally:
        for p in running:
            p.stdin.close()
            _wait(p, 20)
            p.stdout.close()


def native(workers, program, *arguments, servers=1, deadline=DEADLINE, **env):
    """Runs a program's workers by MXNet's dist_sync on this host, with its scheduler and servers, as forks of one process."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    common = dict(DMLC_PS_ROOT_URI="127.0.0.1", DMLC_PS_ROOT_PORT=str(port), DMLC_NODE_HOST="127.0.0.1",
                  DMLC_NUM_SERVER=str(servers), DMLC_NUM_WORKER=str(workers), **env)
    task = ["program", str(PROGRAMS / program), *map(str, arguments)]
    forker = rack.Forker.of("mxnet")
    with tempfile.NamedTemporaryFile("r+") as output:
        def start(role):
            return forker.fork(task, environment(DMLC_ROLE=role, **common), output.name)

        processes = [start("scheduler")] + [start("server") for _ in range(servers)] + [start("worker") for _ in range(workers)]
        until = time.monotonic() + deadline
        try:
            statuses = [_wait(p, until - time.monotonic()) for p in reversed(processes)]  # the workers first
        finally:
            for p in processes:
                if p.poll() is None:
                    p.kill()
                    p.wait()
        printed = output.read()
    if any(statuses):
        raise JobFailed(f"native {program}: statuses {statuses}\n{printed[-6000:]}")
    return printed


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
