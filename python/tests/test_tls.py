"""An aggregator that other hosts reach: its certificate is pinned, and a token asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

import rack
import rackweave
from rackweave import _control


class Pinning(unittest.TestCase):
    def setUp(self) -> None:
        keys = tempfile.TemporaryDirectory()
        self.addCleanup(keys.cleanup)
        where = dict(os.environ, XDG_RUNTIME_DIR=keys.name)
        flags = ["--listen", "0.0.0.0:0", "--unpinned", "--providers", "tcp", "--keys", keys.name, "--json", "--log-level", "error"]
        aggregator = subprocess.Popen([rack.BINARY, "serve", *flags], stdout=subprocess.PIPE, text=True, env=where)
        self.addCleanup(aggregator.wait)
        self.addCleanup(aggregator.terminate)
        assert aggregator.stdout is not None
        self.addCleanup(aggregator.stdout.close)
        told = json.loads(aggregator.stdout.readline())
        self.address, self.fingerprint = told["url"], told["fingerprint"]
        make = [rack.BINARY, "token", "make", "j", "--keys", keys.name]
        self.token = subprocess.run(make, check=True, capture_output=True, text=True, env=where).stdout.strip()

    def call(self, ca: str, token: str) -> object:
        return _control.Control(self.address, ca, token).call("Status", {}, 30.0)

    def test_only_the_certificate_with_the_fingerprint_passes(self) -> None:
        end = time.monotonic() + 60
        while True:  # the aggregator reads new tokens now and then
            try:
                self.call(self.fingerprint, self.token)
                break
            except rackweave.Error:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)
        other = self.fingerprint[:-1] + ("0" if self.fingerprint[-1] != "0" else "1")
        for ca, said in ((other, "another certificate"), ("", "certificate")):
            with self.assertRaisesRegex(rackweave.ServerLostError, said):
                self.call(ca, self.token)
        with rack.Aggregator() as clear, self.assertRaisesRegex(rackweave.ServerLostError, "use http://"):
            _control.Control(clear.address.replace("http:", "https:")).call("Status", {}, 30.0)
        for ca in ("sha256:", "sha256:12", self.fingerprint[:-2], self.fingerprint + "00", "sha256:what"):
            with self.assertRaisesRegex(rackweave.ConfigError, "64 hexadecimal digits"):
                self.call(ca, self.token)
        with self.assertRaises(rackweave.Error):
            self.call(self.fingerprint, "guessed")


if __name__ == "__main__":
    sys.exit(unittest.main())
