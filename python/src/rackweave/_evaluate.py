"""Evaluation beside training: an observer takes the parameters of a running job after a step, and reports their losses."""

from __future__ import annotations

import base64
import concurrent.futures
import http.client
import json
import math
import socket
import struct
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from . import _settings
from ._control import _END_OF_STREAM, _MOST_FRAME, _SERVICE, Control, failure_of, lost
from .errors import ConfigError, Error, OutOfRangeError, RefusedError, ServerLostError, WaitTimeoutError

_SILENCE = 15.0  # seconds; an aggregator that waits for a step sends a message every second
_AGAIN = 0.2
_AHEAD = (0, 8, 32, 128, 512)  # steps by which a try is later, where an aggregator of several has passed the one before
# Before the job runs and has tensors, or while other observers' copies take what the job may have.
_NOT_YET = ("permission_denied", "failed_precondition", "not_found", "resource_exhausted")


def evaluate(
    function: Callable[[int, Dict[str, Any]], Any],
    *,
    every: float = 0.0,
    steps: int = 1,
    address: Optional[str] = None,
    job: Optional[str] = None,
    token: Optional[str] = None,
    ca: Optional[str] = None,
    timeout: Optional[float] = None,
) -> int:
    """Evaluates a running job until it ends, and returns how often. Run it in a process of its own, beside the workers.

    It needs no rank and stops no worker. Again and again it takes the parameters as they were after one step, the same bits as of a
    run that stops there, calls function(step, parameters), and reports what that returns:

    - a number: the validation loss, for the job's policy.
    - a dict of that as "loss", and of "groups": a loss for each group of the training set's manifest, in its order, 0 for one that
      was not evaluated. Sets that were opened with favour take more rows of groups with high losses.
    - None: nothing is reported.

    parameters has an array of numpy in f32 (without numpy a memoryview) for the name of each tensor that the workers registered: a
    torch model's as in its state_dict, without its buffers; MXNet's keys. function may keep and change them.

    The parameters must lie at the aggregator, as with rackweave.torch.attach(fused=True), MXNet's Trainer and Module, and sessions
    of all modes but aggregate. Each tensor must be pushed in each step: one that is left out holds an evaluation up until the
    timeout.

    Args:
        every: seconds from the beginning of an evaluation to that of the next, at least.
        steps: at least so many steps after the last evaluation's is the next one's.
        address, job, token, ca: as of rackweave.init: by default what RACKWEAVE_ADDR, RACKWEAVE_JOB and so on say. Of a job that is
            spread over several aggregators all addresses, with commas between them; of one over several racks any rack's.
        timeout: seconds of the wait for the job to begin, and for each step.

    Raises:
        JobFailedError: the job failed.
        WaitTimeoutError: it made no step in time; names a tensor that lags.
        RefusedError: no job of this name and token began in time, or it keeps no parameters.
        Whatever function raises ends the evaluation, and not the job.
    """
    s = _settings.read(address=address, job=job, rank=0, world_size=1, token=token, ca=ca, timeout=timeout)
    controls = [Control(a, s.ca, s.token, s.insecure) for a in s.address.split(",")]
    count, last, until = 0, 0, time.monotonic() + s.timeout
    while True:
        began = time.monotonic()
        try:
            step, parameters = _capture(controls, s.job, last + steps if last and steps > 1 else 0, s.timeout)
        except WaitTimeoutError:
            last, before = 0, last  # the job may have gone back to a checkpoint, or have begun again
            if not before or steps == 1:
                raise
            continue
        except RefusedError as e:
            if count and e.code in ("not_found", "permission_denied"):
                return count
            if e.code not in _NOT_YET or time.monotonic() > until:
                raise
            time.sleep(_AGAIN)
            continue
        told = function(step, parameters)
        count, last = count + 1, step
        if told is not None and not _report(controls[0], s.job, step, told, s.timeout):
            return count
        time.sleep(max(0.0, began + every - time.monotonic()))
        until = time.monotonic() + s.timeout


def _report(control: Control, job: str, step: int, told: Any, timeout: float) -> bool:
    """Reports a loss. Returns False if the job has ended."""
    try:
        said = told if isinstance(told, dict) else {"loss": told}
        if not said or not said.keys() <= {"loss", "groups"}:
            raise TypeError
        groups = [float(x) for x in said.get("groups", ())]
        loss = float(said.get("loss", math.nan))
    except (TypeError, ValueError):
        raise ConfigError(
            f"function returned {told!r:.100} for step {step}: return a number, None, or a dict of loss, a number, groups, a list, "
            "or both"
        ) from None
    number: Any = loss if math.isfinite(loss) else str(loss).replace("inf", "Infinity").replace("nan", "NaN")
    try:
        control.call("ReportLoss", {"job": job, "step": step, "loss": number, "groupLosses": groups}, timeout)
    except RefusedError as e:
        if e.code not in ("permission_denied", "failed_precondition", "not_found"):
            raise
        return False
    return True


def _capture(controls: List[Control], job: str, step: int, timeout: float) -> Tuple[int, Dict[str, Any]]:
    """Returns the parameters after a step, or if that has passed, or is 0, after one soon, and the step."""
    for i, ahead in enumerate(_AHEAD):
        streams: List[Iterator[Dict[str, Any]]] = []
        try:
            for control in controls:
                streams.append(_messages(control, {"job": job, "step": step, "timeoutMs": int(timeout * 1000)}))
                head = next(streams[-1])
                step = head["step"]
                if len(streams) == 1:
                    tensors = [_room(t) for t in head.get("tensors", [])]
            with concurrent.futures.ThreadPoolExecutor(len(streams)) as pool:
                left = sum(len(t[1]) for t in tensors) - sum(pool.map(lambda stream: _receive(stream, tensors), streams))
            if left:
                raise Error(f"Capture: {left} bytes of the parameters are missing: name all of the job's aggregators")
            return step, {name: array for name, _, array in tensors}
        except OutOfRangeError:
            if i + 1 == len(_AHEAD):
                raise
            step = step + _AHEAD[i + 1] if len(controls) > 1 else 0
        finally:
            for stream in streams:
                stream.close()  # type: ignore[attr-defined]
    raise AssertionError


def _room(tensor: Dict[str, Any]) -> Tuple[str, memoryview, Any]:
    """Returns a tensor's name, its bytes, and an array of them."""
    shape = [int(n) for n in tensor.get("shape", [])]
    data = bytearray(4 * math.prod(shape))
    view = memoryview(data)
    try:
        import numpy

        return tensor["name"], view, numpy.frombuffer(data, "<f4").reshape(shape)
    except ImportError:
        return tensor["name"], view, view.cast("f", shape) if shape else view.cast("f")


def _receive(messages: Iterator[Dict[str, Any]], tensors: List[Tuple[str, memoryview, Any]]) -> int:
    """Reads values into tensors, and returns the number of their bytes."""
    count = 0
    for m in messages:
        data, at = base64.b64decode(m.get("data", "")), 4 * int(m.get("offset", 0))
        if data:
            tensors[m.get("tensor", 0)][1][at : at + len(data)] = data
        count += len(data)
    return count


def _messages(control: Control, request: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
    """Yields the messages of a Capture."""
    connection, body = control.connect(), json.dumps(request).encode()
    try:
        connection.sock.settimeout(_SILENCE)
        headers = {**control.headers("application/connect+json"), "Connect-Protocol-Version": "1"}
        connection.request("POST", _SERVICE + "Capture", struct.pack(">BI", 0, len(body)) + body, headers)
        response = connection.getresponse()
        if response.status != 200:
            raise failure_of("Capture", json.loads(response.read() or b"{}"), f"HTTP status {response.status}")
        while True:
            head = response.read(5)
            if len(head) < 5:
                raise http.client.IncompleteRead(head)
            flags, length = struct.unpack(">BI", head)
            if length > _MOST_FRAME:
                raise Error(f"Capture: the aggregator at {control.address} sent a frame of {length} bytes")
            message = json.loads(response.read(length))
            if flags & _END_OF_STREAM:
                if "error" in message:
                    raise failure_of("Capture", message["error"], "the stream ended")
                return
            yield message
    except Error:
        raise
    except socket.timeout:
        raise WaitTimeoutError(f"Capture: the aggregator at {control.address} is silent for {_SILENCE:g} s") from None
    except http.client.IncompleteRead:
        raise ServerLostError(
            f"Capture: the aggregator at {control.address} ended it: was this process suspended? "
            "A reader that reads nothing is cut off"
        ) from None
    except (OSError, http.client.HTTPException) as e:
        raise lost(e, f"Capture: the connection to the aggregator at {control.address} broke: {e}") from None
    finally:
        connection.close()
