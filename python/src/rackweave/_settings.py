"""Who this process is in the job, and where the aggregator is: read from arguments, else from the environment."""

from __future__ import annotations

import dataclasses
import numbers
import os
import re
import urllib.parse
from typing import Any, List, Mapping, Optional, Tuple

from . import _host
from .errors import ConfigError

DEFAULT_TIMEOUT = 60.0

# How launchers tell a process its rank and the number of workers. The first pair of which both are set is taken.
_LAUNCHERS = (
    ("RACKWEAVE_RANK", "RACKWEAVE_WORLD_SIZE"),
    ("RANK", "WORLD_SIZE"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("DMLC_WORKER_ID", "DMLC_NUM_WORKER"),  # ps-lite, BytePS
)

# The first that is set names the job; torchrun sets its id to "none" where none was given.
_JOB_IDS = ("RACKWEAVE_JOB", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
_NO_ID = "none"

# What tells a run from others of its job's name, alike at all its ranks, where RACKWEAVE_RUN does not.
_RUN_IDS = (
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("PMIX_NAMESPACE",),
    ("OMPI_MCA_ess_base_jobid",),
    ("MASTER_ADDR", "MASTER_PORT"),
    ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"),
)
_MOST_RUN = 128


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a process needs to join jobs.

    Attributes:
        address: the aggregator's URL, such as http://aggregator:7077; several, with commas between them, if the job is spread.
        job: the job's name; the first session has it, later ones have a number appended.
        rank: of this worker, from 0.
        world_size: how many workers the job has.
        token: the job's secret; empty if the aggregator asks for none.
        ca: file with the certificates to trust, or sha256: and a fingerprint, for https; empty: the system's.
        provider: shm, tcp, ibv or auto.
        timeout: seconds that bound every wait.
        policy: who waits for whom in sessions of mode stream; empty: asp.
        compress: the codecs of gradients and answers in training; empty: none.
        insecure: lets the token be sent in clear, over http:// to another host.
        run: tells this run from others of the same job's name; empty: unknown. The aggregator lets workers of one run join a job.
    """

    address: str
    job: str
    rank: int
    world_size: int
    token: str = ""
    ca: str = ""
    provider: str = "auto"
    timeout: float = DEFAULT_TIMEOUT
    policy: str = ""
    compress: str = ""
    run: str = ""
    insecure: bool = False


def read(
    environ: Optional[Mapping[str, str]] = None,
    *,
    address: Optional[str] = None,
    job: Optional[str] = None,
    rank: Optional[int] = None,
    world_size: Optional[int] = None,
    token: Optional[str] = None,
    ca: Optional[str] = None,
    provider: Optional[str] = None,
    timeout: Optional[float] = None,
    policy: Optional[str] = None,
    compress: Optional[str] = None,
) -> Settings:
    """Returns the settings: arguments first, then the environment."""
    env = os.environ if environ is None else environ
    texts = {"address": address, "job": job, "token": token, "ca": ca, "provider": provider, "policy": policy, "compress": compress}
    check("a string", str, **texts)
    check("a whole number", numbers.Integral, rank=rank, world_size=world_size)
    check("seconds, as a number", numbers.Real, timeout=timeout)
    if rank is None or world_size is None:
        found_rank, found_size = _rank(env)
        rank = found_rank if rank is None else rank
        world_size = found_size if world_size is None else world_size
    if world_size < 1 or not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} of {world_size} workers: use a rank from 0 to the number of workers less 1")
    if timeout is None:
        timeout = _number(env, "RACKWEAVE_TIMEOUT", DEFAULT_TIMEOUT)
    if token is None:
        token = env.get("RACKWEAVE_TOKEN", "")
    if not (token.isascii() and token.isprintable()):
        raise ConfigError("the token has a newline or another character that no header of HTTP holds: use printable ASCII")
    if not 0.001 <= timeout <= 3600:
        raise ConfigError(f"timeout of {timeout} s: use 0.001 to 3600")
    return Settings(
        address=_address(address or env.get("RACKWEAVE_ADDR", "")),
        job=job or _job(env),
        rank=rank,
        world_size=world_size,
        token=token,
        ca=env.get("RACKWEAVE_CA", "") if ca is None else ca,
        provider=provider or env.get("RACKWEAVE_PROVIDER", "") or "auto",
        timeout=timeout,
        policy=env.get("RACKWEAVE_POLICY", "") if policy is None else policy,
        compress=env.get("RACKWEAVE_COMPRESS", "") if compress is None else compress,
        run=_run(env),
        insecure=env.get("RACKWEAVE_INSECURE") == "1",
    )


def check(what: str, kind: Any, **values: Any) -> None:
    for name, value in values.items():
        if value is not None and not isinstance(value, kind):
            shown = repr(value) if name != "token" else f"of type {type(value).__name__}"
            raise ConfigError(f"{name} is {shown}: give {what}")


def _rank(env: Mapping[str, str]) -> Tuple[int, int]:
    for rank, size in _LAUNCHERS:
        if env.get(rank) and env.get(size):
            return int(_number(env, rank, 0)), int(_number(env, size, 0))
    names = "; ".join(f"{rank} and {size}" for rank, size in _LAUNCHERS)
    raise ConfigError(
        "this worker's rank is unknown: start it with 'rackweave run', torchrun, mpirun or srun, "
        f"or set RACKWEAVE_RANK and RACKWEAVE_WORLD_SIZE (looked for: {names})"
    )


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name)
    if not text:
        return default
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        raise ConfigError(f"{name} is {text!r}: set it to a number") from None


def _job(env: Mapping[str, str]) -> str:
    for name in _JOB_IDS:
        if env.get(name) and not (name == "TORCHELASTIC_RUN_ID" and env[name] == _NO_ID):
            # The aggregator's names are plainer than some launchers' identifiers.
            return re.sub(r"[^A-Za-z0-9._-]", "-", env[name]).lstrip("._-")[:48] or "default"
    return "default"


def _run(env: Mapping[str, str]) -> str:
    if env.get("RACKWEAVE_RUN"):
        return env["RACKWEAVE_RUN"][:_MOST_RUN]
    found = []
    for names in _RUN_IDS:
        values = [env.get(name, "") for name in names]
        if all(values):
            found.append(":".join(values))
            if values[0] == "localhost" or values[0].startswith("127."):  # every host has it
                found.append(_host.identity())
    return " ".join(found)[:_MOST_RUN]


def _address(text: str) -> str:
    if not text:
        raise ConfigError(
            "the aggregator's address is unknown: set RACKWEAVE_ADDR to its URL, such as http://aggregator:7077, "
            "or use 'rackweave run'"
        )
    addresses: List[str] = []
    for one in text.split(","):
        if "://" not in one:
            one = "http://" + one
        url = urllib.parse.urlsplit(one)
        try:
            url.port
        except ValueError as e:
            raise ConfigError(f"address {one!r}: {e}: use a URL such as http://aggregator:7077") from None
        if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/") or url.query:
            raise ConfigError(
                f"address {one!r}: use a URL such as http://aggregator:7077 or https://aggregator:7077, without a path"
            )
        if one.rstrip("/") in addresses:
            raise ConfigError(f"address {one!r} is there twice: name each aggregator once")
        addresses.append(one.rstrip("/"))
    return ",".join(addresses)
