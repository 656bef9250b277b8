"""What a session and the aggregator tell each other while they connect."""

from __future__ import annotations

import base64
import ctypes
import os
import socket
from typing import Any, Dict, List, Mapping, Sequence

from . import _host, _lib
from ._settings import Settings
from .errors import RefusedError, ServerLostError

_SPIN = 64  # empty polls before a wait sleeps


def ms(seconds: float) -> int:
    """Returns whole milliseconds, 0 for a time that is over."""
    return max(int(seconds * 1000), 0)


def request(
    s: Settings, job: str, mode: str, optimizer: str, hyper: Mapping[str, float], policy: str, compress: str
) -> Dict[str, Any]:
    """Returns what Join takes."""
    return {
        "job": job,
        "rank": s.rank,
        "workers": s.world_size,
        "run": s.run,
        "mode": mode,
        "optimizer": optimizer,
        "hyper": dict(hyper),
        "policy": policy,
        "compress": compress,
        "provider": s.provider,
        "providers": _host.providers() if s.provider == "auto" else [s.provider],
        "hostId": _host.identity(),
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "uid": os.geteuid(),
    }


def config(info: Mapping[str, Any], rank: int, steps: bool) -> _lib.Config:
    """Returns what rw_open takes, by Join's answer. steps: this worker ends its own."""
    lanes = info["lanes"]
    return _lib.Config(
        rank=rank,
        provider=info["provider"].encode(),
        lane_nics=(ctypes.c_uint32 * len(lanes))(*(lane.get("nic", 0) for lane in lanes)),
        nlanes=len(lanes),
        chunk_bytes=info["chunkBytes"],
        window=info["window"],
        send_depth=info["sendDepth"],
        recv_depth=info["recvDepth"],
        local_workers=info.get("localWorkers", 1),
        spin=_SPIN,
        by_reference=info.get("byReference", False),
        live_hyper=info.get("liveHyper", False),
        steps=steps,
        answers=_answers(info),
        record=(ctypes.c_float * _lib.HYPERS)(*(float(x) for x in info["record"])),
    )


def _answers(info: Mapping[str, Any]) -> int:
    """Returns what the job's answers hold, as enum rw_answers says."""
    if "answers" not in info:
        return 0
    return 1 if info.get("mode") == "aggregate" else 2


def codecs(request: Mapping[str, Any], info: Mapping[str, Any]) -> str:
    """Returns the job's codecs."""
    if request.get("compress") and not info.get("compress"):
        asked = request["compress"]
        raise RefusedError(f"the aggregator is of a version without codecs, and would leave out {asked}: update it, or name none")
    return str(info.get("compress") or "none")


def told(end: _lib.Endpoint) -> Dict[str, Any]:
    """Returns this worker's end of a lane as Connect takes it."""
    return {
        "endpoint": base64.b64encode(bytes(end.bytes[: end.length])).decode(),
        "replyAddr": str(end.addr),
        "replyRkey": end.rkey,
        "staging": end.staging,
    }


def take(ends: Sequence[_lib.Endpoint], peers: List[Dict[str, Any]]) -> None:
    """Replaces this worker's ends by the aggregator's, from Connect's answer."""
    if len(peers) != len(ends):
        raise ServerLostError(
            f"Connect: the aggregator answered for {len(peers)} lanes of {len(ends)}: use client and aggregator of one release"
        )
    for end, peer in zip(ends, peers):
        endpoint = base64.b64decode(peer.get("endpoint", ""))
        if len(endpoint) > _lib.ENDPOINT_BYTES:
            raise ServerLostError(f"Connect: an endpoint of {len(endpoint)} bytes: use client and aggregator of one release")
        ctypes.memmove(end.bytes, endpoint, len(endpoint))
        end.length, end.addr, end.rkey = len(endpoint), int(peer.get("slotAddr", 0)), peer.get("slotRkey", 0)
