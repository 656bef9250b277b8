"""One training script under several launchers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest

import torch

import rack

PROGRAM = os.path.join(rack.HERE, "programs", "average.py")
LAUNCHERS = ("RACKWEAVE_", "OMPI_", "PMI", "SLURM_", "DMLC_", "TORCHELASTIC_")


def environment(**more: str):
    """A user's environment: nothing of a launcher's, and the package of this tree."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS) and k not in ("RANK", "WORLD_SIZE")}
    package = {"PYTHONPATH": os.path.join(rack.ROOT, "python", "src"), "RACKWEAVE_LIBRARY": rack.LIBRARY}
    return {**env, **package, "OMP_NUM_THREADS": "1", "RACKWEAVE_TIMEOUT": "60", **more}


def output(*commands, env):
    """Runs commands side by side, and returns what all printed."""
    running = [
        subprocess.Popen(c, env=e, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for c, e in zip(commands, env)
    ]
    printed = ""
    try:
        for process in running:
            text, _ = process.communicate(timeout=rack.DEADLINE)
            if process.returncode != 0:
                raise AssertionError(f"{process.args} ended with {process.returncode}: {text}")
            printed += text
    finally:
        for process in running:
            process.kill()
            process.wait()
    return printed


class Launchers(rack.Case):
    script = [sys.executable, PROGRAM]
    expected = None

    def setUp(self):
        self.served = environment(RACKWEAVE_ADDR=self.aggregator.address)

    def digest(self, printed):
        """Returns the digest of the weights, which both ranks have printed."""
        ranks = re.findall(r"rank (\d) of 2: ([0-9a-f]{64})", printed)
        self.assertEqual(sorted(r for r, _ in ranks), ["0", "1"], printed)
        self.assertEqual(ranks[0][1], ranks[1][1])
        return ranks[0][1]

    def under_rackweave_run(self):
        """Returns what to compare with: the first call runs the script."""
        if Launchers.expected is None:
            Launchers.expected = self.digest(output([rack.BINARY, "run", "-n", "2", "--", *self.script], env=[environment()]))
        return Launchers.expected

    def under_torchrun(self, *arguments, **more):
        """Runs the script as docs/migrating.md says for a PyTorch without libuv."""
        # What is printed goes by a file: torch 1.13 with Python 3.11 fails where it does not. It has no flag for its address.
        flags = ["--redirects=1", "--tee=1"] if torch.__version__ < "2" else ["--local_addr=127.0.0.1"]
        # The agents meet in a file: Debian builds torch 2.6 without libuv, which its other ways of meeting need.
        meet = ["--rdzv_backend=c10d", "--rdzv_conf=store_type=file", f"--rdzv_endpoint={self.directory.name}/{self.id()}"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", *meet, *flags, PROGRAM, *arguments]
        served = {**self.served, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **more}
        return self.digest(output(torchrun, env=[served]))

    def test_the_same_script_runs_under_rackweave_run_and_torchrun(self):
        self.assertEqual(self.under_torchrun(), self.under_rackweave_run())

    def test_a_script_with_a_process_group_runs_under_torchrun(self):
        self.assertEqual(self.under_torchrun("group", USE_LIBUV="0"), self.under_rackweave_run())

    def test_the_same_script_runs_under_rackweave_run_mpirun_and_with_sruns_variables(self):
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", *self.script]
        tasks = [{**self.served, "SLURM_PROCID": str(r), "SLURM_NTASKS": "2", "SLURM_JOB_ID": "77"} for r in range(2)]
        digests = {
            "rackweave run": self.under_rackweave_run(),
            "mpirun": self.digest(output(mpirun, env=[self.served])),
        }
        with tempfile.NamedTemporaryFile("r") as printed:
            forks = [rack.Forker.of("torch").fork(["program", PROGRAM], task, printed.name) for task in tasks]
            self.assertEqual([process.wait() for process in forks], [0, 0])
            digests["srun"] = self.digest(printed.read())
        self.assertEqual(len(set(digests.values())), 1, digests)


if __name__ == "__main__":
    unittest.main()
