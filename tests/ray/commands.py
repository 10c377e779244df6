"""Nodes as users start them, by `python -m bimetal.ray up` and `join`, in a home of each test's own."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import clusters

CPU_AND_MEMORY = ["--num-cpus", "1", "--object-store-mb", "80"]


class Commands(unittest.TestCase):
    """Starts them, and ends them as users do; nothing of them may outlive the test."""

    def setUp(self):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="bmh"))
        self.addCleanup(shutil.rmtree, self.home, ignore_errors=True)
        self.environment = {**os.environ, "HOME": str(self.home), "RAY_TMPDIR": str(self.home / "r")}
        for name in ("RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "RAY_ADDRESS", "LD_PRELOAD", "BIMETAL_BIND_ADDRESS"):
            self.environment.pop(name, None)
        (self.home / "r").mkdir()
        self.logs = {}
        self.addCleanup(self.await_end)

    def node(self, *arguments, before=()):
        log = open(self.home / f"{len(list(self.home.iterdir()))}.log", "w+")
        process = subprocess.Popen([*before, sys.executable, "-m", "bimetal.ray", *arguments, *CPU_AND_MEMORY],
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                   env=self.environment, start_new_session=True)
        self.logs[process.pid] = log.name
        self.addCleanup(log.close)
        self.addCleanup(self.kill, process)

        def said():
            text = pathlib.Path(log.name).read_text()
            if process.poll() is not None:
                raise AssertionError(f"ended with {process.returncode}:\n{text}")
            return text if "Ctrl-C ends this node" in text else ""

        return process, clusters.until(said, what="the node")

    def said(self, process):
        """All that a node has said."""
        return pathlib.Path(self.logs[process.pid]).read_text()

    def kill(self, process):
        if process.poll() is None:
            process.kill()
        process.wait()

    def await_end(self):
        """Nothing that Ray has started for this test runs any more."""
        clusters.until(lambda: not clusters.processes(str(self.home)), 40, "the end of all that Ray had started")

    def end(self, process):
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(40), 0)

    def run_python(self, *arguments, before=(), timeout=120, **environment):
        return subprocess.run([*before, sys.executable, *map(str, arguments)], capture_output=True, text=True,
                              timeout=timeout, env={**self.environment, **environment}, check=False)
