"""The control plane: the aggregator's service over HTTP and JSON, by the standard library alone."""

from __future__ import annotations

import hashlib
import http.client
import ipaddress
import json
import os
import socket
import ssl
import struct
import threading
import time
import urllib.parse
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Set, Tuple

from .errors import ConfigError, Error, JobFailedError, OutOfRangeError, RefusedError, ServerLostError, WaitTimeoutError

_SERVICE = "/rackweave.v1.JobService/"
_END_OF_STREAM = 2  # flag of the last frame
_GRACE = 2.0  # seconds by which a call outlives its timeout, so that the aggregator's error, which says more, arrives
_CONNECT_TIMEOUT = 5.0
_PIN = "sha256:"  # begins a fingerprint where a CA file may stand
_MOST_FRAME = 16 << 20
_MOST_LINE = 64 << 10
_MOST_FIELDS = 100
# An aggregator resets connections that it does not take, for instance while strangers flood it. A worker then comes again, but
# only so often: what resets for ever may be no aggregator at all.
_CONTACTS = 6
_CONTACT_AGAIN = 0.05  # doubles
_LEAVES_WITHIN = 2.0  # for the aggregator to find that a connection has gone, and with it the worker that asked by it


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Control:
    """Calls one aggregator. Safe for use from any thread: every call has a connection of its own."""

    def __init__(self, address: str, ca: str = "", token: str = "", insecure: bool = False) -> None:
        self.session = ""  # of the worker, once it has joined
        self.interrupted = False
        self._calls: Set[http.client.HTTPConnection] = set()  # under way
        self._token = token
        url = urllib.parse.urlsplit(address)
        self.address, self.host = address, url.netloc
        self._host, self._port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
        if token and url.scheme == "http" and not insecure and not _is_loopback(self._host):
            raise ConfigError(
                f"the token would be sent in clear to {address}: use https://, or say that others may read it by "
                "RACKWEAVE_INSECURE=1"
            )
        self._tls: Optional[ssl.SSLContext] = None
        self._pin = b""
        if url.scheme == "https" and ca.startswith(_PIN):
            try:
                self._pin = bytes.fromhex(ca[len(_PIN) :])
            except ValueError:
                pass
            if len(self._pin) != hashlib.sha256().digest_size:  # one that is empty would let any certificate pass
                raise ConfigError(f"fingerprint {ca}: use {_PIN} and 64 hexadecimal digits")
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE  # the fingerprint says more
        elif url.scheme == "https":
            try:
                self._tls = ssl.create_default_context(cafile=ca or None)
            except OSError as e:
                raise ConfigError(f"CA file {ca}: {e}") from None
        elif ca:
            raise ConfigError(f"address {address}: a CA file is given, so TLS is wanted: use https://")

    def call(self, method: str, request: Mapping[str, Any], timeout: float, grace: float = _GRACE) -> Dict[str, Any]:
        """Makes a call and returns its answer. The request tells the aggregator of the timeout, in seconds, where it can."""
        connection = self.connect(min(timeout + grace, _CONNECT_TIMEOUT))
        self._calls.add(connection)
        try:
            if self.interrupted:
                raise OSError("interrupted")
            connection.sock.settimeout(timeout + grace)
            connection.request("POST", _SERVICE + method, json.dumps(request), self.headers("application/json"))
            response = connection.getresponse()
            body = response.read()
        except socket.timeout:
            raise WaitTimeoutError(
                f"{method}: the aggregator at {self.address} did not answer within {timeout + grace:g} s"
            ) from None
        except http.client.IncompleteRead:
            raise ServerLostError(
                f"{method}: the aggregator at {self.address} ended within its answer: its log says why, if it was not killed"
            ) from None
        except (OSError, http.client.HTTPException) as e:
            raise lost(e, f"{method}: the connection to the aggregator at {self.address} broke: {e}") from None
        finally:
            self._calls.discard(connection)
            connection.close()
        answer = _parse(body)
        if response.status != 200 or answer is None:
            raise failure_of(method, answer, f"HTTP status {response.status}")
        return answer

    def join(self, request: Mapping[str, Any], timeout: float) -> Dict[str, Any]:
        """Makes the call by which a worker joins, again where its connection is reset before there is an answer.

        That is safe: the aggregator has not read the call, or withdraws its worker with the connection. Until it has, the worker's
        own place may be taken. For other calls it is not safe.
        """
        until, resets, last, pause = time.monotonic() + timeout, 0, 0.0, _CONTACT_AGAIN
        while True:
            within = until - time.monotonic()
            try:
                return self.call("Join", {**request, "timeoutMs": max(int(within * 1000), 1)}, within)
            except ResetError:
                resets, last = resets + 1, time.monotonic()
                if resets == _CONTACTS or until - last <= pause or self.interrupted:
                    raise
            except RefusedError as e:
                now = time.monotonic()
                own_ghost = e.code in ("already_exists", "resource_exhausted") and resets > 0 and now - last < _LEAVES_WITHIN
                if not own_ghost or until - now <= pause or self.interrupted:
                    raise
            time.sleep(pause)
            pause *= 2

    def interrupt(self) -> None:
        """Ends the calls under way, and those to come: they raise ServerLostError."""
        self.interrupted = True
        for connection in list(self._calls):
            try:
                connection.sock.shutdown(socket.SHUT_RDWR)
            except (OSError, AttributeError):
                pass  # the call has ended

    def headers(self, content: str) -> Dict[str, str]:
        """Returns the headers of a request: they say who calls."""
        headers = {"Content-Type": content}
        if self._token:
            headers["Authorization"] = "Bearer " + self._token
        if self.session:
            headers["Rackweave-Session"] = self.session
        return headers

    def connect(self, timeout: float = _CONNECT_TIMEOUT) -> http.client.HTTPConnection:
        """Opens a connection."""
        if self._tls:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        try:
            connection.connect()
            if self._pin and hashlib.sha256(connection.sock.getpeercert(True) or b"").digest() != self._pin:
                connection.close()
                raise ServerLostError(f"the aggregator at {self.address} shows another certificate than the one of RACKWEAVE_CA")
        except ssl.SSLError as e:
            clear = e.reason == "WRONG_VERSION_NUMBER"  # it answers without TLS
            remedy = "use http://" if clear else "give its fingerprint or the file of its certificate's issuer (RACKWEAVE_CA)"
            raise ServerLostError(f"cannot reach the aggregator at {self.address}: {e}: {remedy}") from None
        except OSError as e:
            raise lost(
                e,
                f"cannot reach the aggregator at {self.address}: {e}: is it running (rackweave serve), "
                "and is this its address (RACKWEAVE_ADDR)?",
            ) from None
        return connection


class ResetError(ServerLostError):
    """A connection was reset before there was an answer."""


def lost(cause: Exception, text: str) -> ServerLostError:
    """Returns the error of a connection that broke for a cause."""
    ended = isinstance(cause, http.client.RemoteDisconnected)  # in order, so that it is no reset
    was_reset = isinstance(cause, (ConnectionResetError, BrokenPipeError)) and not ended
    return ResetError(text) if was_reset else ServerLostError(text)


class Line:
    """A connection that is kept for many calls. A call takes a third of the time of http.client's. One call is made at a time."""

    def __init__(self, control: Control, timeout: float) -> None:
        """Opens it at the first call. timeout bounds each wait of a call, in seconds."""
        self._control, self._timeout = control, timeout
        self._connection: Optional[http.client.HTTPConnection] = None
        self._file: Any = None

    def call(self, path: str, request: Mapping[str, Any]) -> Tuple[int, Optional[Dict[str, Any]]]:
        """Makes a call, and returns the HTTP status and the answer, None if that is not one of the service's.

        Raises ServerLostError where the connection breaks. The next call opens another.
        """
        try:
            if self._connection is None:
                self._connection = self._control.connect()
                self._connection.sock.settimeout(self._timeout)
                self._file = self._connection.sock.makefile("rb")
            body = json.dumps(request).encode()
            headers = {"Host": self._control.host, **self._control.headers("application/json"), "Content-Length": len(body)}
            head = "".join([f"POST {path} HTTP/1.1\r\n", *[f"{name}: {value}\r\n" for name, value in headers.items()], "\r\n"])
            self._connection.sock.sendall(head.encode("latin-1") + body)
            status, answer = self._answer()
        except Error:  # it was not opened
            raise
        except (OSError, ValueError, http.client.HTTPException) as e:
            self.close()
            raise lost(e, f"{path}: the connection to the service at {self._control.address} broke: {e}") from None
        except BaseException:  # the next call must not take the answer to one that was interrupted
            self.close()
            raise
        return status, _parse(answer)

    def _answer(self) -> Tuple[int, bytes]:
        version, _, status = self._line().partition(b" ")
        if version != b"HTTP/1.1":
            raise http.client.BadStatusLine(repr(version))
        fields = dict((line.lower().split(b":", 1) + [b""])[:2] for line in self._lines())
        body = b""
        if fields.get(b"transfer-encoding"):
            while n := int(self._line(), 16):
                body += self._read(n, len(body))
                self._line()
            for _ in self._lines():  # trailers
                pass
        else:
            body = self._read(int(fields.get(b"content-length", b"0")), 0)
        if fields.get(b"connection", b"").strip() == b"close":
            self.close()
        return int(status[:3]), body

    def _line(self) -> bytes:
        line: bytes = self._file.readline(_MOST_LINE)
        if not line.endswith(b"\n"):
            raise http.client.RemoteDisconnected("the service ended it") if not line else http.client.LineTooLong("answer")
        return line.rstrip()

    def _lines(self) -> Iterator[bytes]:
        """Yields lines up to an empty one."""
        for n, line in enumerate(iter(self._line, b"")):
            if n == _MOST_FIELDS:
                raise http.client.HTTPException(f"an answer with more than {_MOST_FIELDS} header fields")
            yield line

    def _read(self, n: int, before: int) -> bytes:
        if not 0 <= n <= _MOST_FRAME - before:
            raise http.client.HTTPException(f"an answer of {before + n} bytes: at most {_MOST_FRAME} are allowed")
        data: bytes = self._file.read(n)
        if len(data) < n:
            raise http.client.IncompleteRead(data, n - len(data))
        return data

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._file.close()
            self._connection.close()
            self._connection = None


class Watch:
    """The stream that ties a worker's life to its job: while it is open the worker lives. It tells of the job's failure."""

    def __init__(
        self,
        control: Control,
        patience: float,
        failed: Callable[[Error], None],
        codecs: Callable[[Dict[str, Any]], None],
    ):
        """Opens the stream. After patience seconds without a frame the aggregator counts as lost.

        codecs is called with those that the aggregator announces, in that thread, too.
        failed is called once with what ended the stream, in a thread of the watch's own.
        """
        self._failed, self._patience, self._codecs = failed, patience, codecs
        self._address = control.address
        self._closing = False
        self._connection = control.connect()
        message = b"{}"
        try:
            self._connection.sock.settimeout(patience)
            self._connection.request(
                "POST",
                _SERVICE + "Watch",
                struct.pack(">BI", 0, len(message)) + message,
                {**control.headers("application/connect+json"), "Connect-Protocol-Version": "1"},
            )
        except OSError as e:
            raise ServerLostError(f"Watch: the connection to the aggregator at {self._address} broke: {e}") from None
        self._socket = self._connection.sock
        self._thread = threading.Thread(target=self._follow, name="rackweave-watch", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Expects the aggregator to end the stream: failed is not called any more."""
        self._closing = True

    def close(self) -> None:
        """Ends the stream; failed is not called any more."""
        self.leave()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the aggregator was first
        if threading.current_thread() is not self._thread:
            self._thread.join(_CONNECT_TIMEOUT)
        self._connection.close()

    def abandon(self) -> None:
        """In a forked child: lets go of the parent's connection, without a word to the aggregator."""
        self._closing = True
        fd = self._socket.detach()
        if fd >= 0:
            os.close(fd)

    def _follow(self) -> None:
        try:
            error = self._read()
        except socket.timeout:
            error = ServerLostError(f"no heartbeat from the aggregator at {self._address} for {self._patience:g} s")
        except http.client.IncompleteRead:
            error = ServerLostError(f"the aggregator at {self._address} ended: its log says why, if it was not killed")
        except (OSError, ValueError, http.client.HTTPException, AttributeError) as e:
            error = ServerLostError(f"the connection to the aggregator at {self._address} broke: {e}")
        if not self._closing:
            self._failed(error)

    def _read(self) -> Error:
        response = self._connection.getresponse()
        if response.status != 200:
            return failure_of("Watch", _parse(response.read()), f"HTTP status {response.status}")
        while True:
            head = response.read(5)
            if len(head) < 5:
                return ServerLostError(f"the aggregator at {self._address} ended the connection")
            flags, length = struct.unpack(">BI", head)
            if length > _MOST_FRAME:
                return ServerLostError(f"the aggregator at {self._address} sent a frame of {length} bytes")
            message = _parse(response.read(length)) or {}
            if flags & _END_OF_STREAM:
                return failure_of("Watch", message.get("error"), "the stream ended")
            if "codecs" in message and not self._closing:
                self._codecs(message["codecs"])
            if "failure" in message:
                rank = message["failure"].get("rank", 0)
                return JobFailedError(f"the job failed: {message['failure'].get('text', '')}", None if rank < 0 else rank)


def _parse(body: bytes) -> Optional[Dict[str, Any]]:
    try:
        answer = json.loads(body)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def failure_of(method: str, error: Optional[Dict[str, Any]], otherwise: str) -> Error:
    """Turns the service's error into an exception."""
    error = error or {}
    code, text = error.get("code", ""), error.get("message") or otherwise
    if code == "deadline_exceeded":
        return WaitTimeoutError(f"{method}: timed out: {text}")
    if code == "aborted":
        return JobFailedError(f"{method}: the job failed: {text}")
    if code == "out_of_range":
        return OutOfRangeError(f"{method}: {text}")
    if code == "unavailable":
        return ServerLostError(f"{method}: {text}")
    if not code:
        return RefusedError(f"{method}: {text}: is this address a RackWeave aggregator's?")
    return RefusedError(f"{method}: refused by the aggregator: {text}", code)
