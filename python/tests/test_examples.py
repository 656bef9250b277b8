"""The example of PyTorch as a user starts it."""

from __future__ import annotations

import os
import re
import sys
import unittest

import rack
from test_launch import environment, output

EXAMPLE = os.path.join(rack.ROOT, "examples", "torch_digits.py")


class Examples(unittest.TestCase):
    def test_digits_are_learnt_and_hardly_a_byte_is_copied(self):
        workers, epochs, least = ("4", "5", 97.0) if rack.LONG else ("2", "3", 95.0)
        for way in ([], ["--attach"], ["--fused", "--data", "queue"]):
            with self.subTest(way):
                run = [rack.BINARY, "run", "-n", workers, "--", sys.executable, EXAMPLE, "--epochs", epochs, *way]
                printed = output(run, env=[environment()])
                (accuracy,) = re.findall(r"test accuracy ([0-9.]+) %", printed)
                (share,) = re.findall(r"([0-9.]+) % of the bytes", printed)
                self.assertGreaterEqual(float(accuracy), least)
                self.assertGreaterEqual(float(share), 95.0)


if __name__ == "__main__":
    unittest.main()
