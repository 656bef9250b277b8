"""The first contact with an aggregator that resets connections, as one that is flooded does."""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
import unittest
from typing import List
from unittest import mock

import rackweave
from rackweave import _control

_NOBODY, _ENDS = "reset", "ends"


class Flooded:
    """Answers connections one after another: by a reset, half an answer, the code of a refusal, or, with an empty one, as asked."""

    def __init__(self, *answers: str) -> None:
        self._answers = answers
        self.asked: List[int] = []  # the timeouts of the requests that were read
        self.came = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.control = _control.Control("http://127.0.0.1:%d" % self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            answer = self._answers[min(self.came, len(self._answers) - 1)]
            self.came += 1
            with connection:
                if answer == _NOBODY:
                    connection.recv(1)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    continue
                request = connection.makefile("rb")
                length = 0
                for line in iter(request.readline, b"\r\n"):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                self.asked.append(json.loads(request.read(length)).get("timeoutMs", 0))
                body = json.dumps({"code": answer, "message": "so it is"} if answer else {"rank": 7}).encode()
                status = b"409 Conflict" if answer else b"200 OK"
                head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
                connection.sendall(head if answer == _ENDS else head + body)
                connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


class Contact(unittest.TestCase):
    def flooded(self, *answers: str) -> Flooded:
        f = Flooded(*answers)
        self.addCleanup(f.close)
        return f

    def test_an_aggregator_that_ends_within_its_answer_is_lost(self) -> None:
        with self.assertRaisesRegex(rackweave.ServerLostError, "ended within its answer: its log says why"):
            self.flooded(_ENDS).control.call("Barrier", {}, 10)

    def test_a_first_contact_that_is_reset_is_repeated(self) -> None:
        f = self.flooded(_NOBODY, _NOBODY, _NOBODY, "already_exists", "resource_exhausted", "")
        with mock.patch.object(_control, "_LEAVES_WITHIN", 20.0):  # on a busy machine, too
            self.assertEqual(f.control.join({"job": "j"}, 30.0), {"rank": 7})
        self.assertEqual(f.came, 6)
        self.assertGreater(f.asked[0], f.asked[-1], "a later contact has as much time as the first")

    def test_what_resets_every_contact_is_lost_in_time(self) -> None:
        for timeout, most in ((30.0, 6), (0.12, 2)):
            f, began = self.flooded(_NOBODY), time.monotonic()
            with self.assertRaises(rackweave.ServerLostError):
                f.control.join({"job": "j"}, timeout)
            self.assertLessEqual(f.came, most)
            self.assertLess(time.monotonic() - began, 20.0)

    def test_a_refusal_without_a_reset_is_final(self) -> None:
        f = self.flooded("already_exists", "")
        with self.assertRaisesRegex(rackweave.RefusedError, "so it is"):
            f.control.join({"job": "j"}, 30.0)
        self.assertEqual(f.came, 1)

    def test_other_calls_are_made_once(self) -> None:
        f = self.flooded(_NOBODY, "")
        with self.assertRaises(rackweave.ServerLostError):
            f.control.call("Barrier", {"name": "b"}, 30.0)
        self.assertEqual(f.came, 1)


if __name__ == "__main__":
    sys.exit(unittest.main())
