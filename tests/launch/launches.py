"""Shared by the tests of `bimetal launch`: the harness of tests/fault, and ranks on any host."""

import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "fault"))

import harness  # noqa: E402
from harness import BIMETAL, FaultTest, free_port, variable_of, wait_until  # noqa: E402

OTHER_VERSION = os.environ.get("OTHER_VERSION") or str(
    harness.REPOSITORY / "build" / "tests" / "launch" / "bimetal_of_another_version")

# A rank's line about itself, and its work afterwards.
SHOW = "echo rank $RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE node $NODE_RANK at $MASTER_ADDR:$MASTER_PORT"
WAIT = "echo ready; sleep 600 & wait"
WAIT_FOR_SIGNALS = "echo ready; while :; do sleep 0.1; done"


class LaunchTest(FaultTest):
    """Jobs by `bimetal launch`; after each nothing may be left, on any host."""

    def setUp(self):
        super().setUp()
        for name in ("SLURM_JOB_ID", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            self.environment.pop(name, None)

    def tearDown(self):
        self.wait_until_nothing_is_left()

    def launch(self, *arguments, script=None, **options):
        command = ["--", "sh", "-c", script] if script else []
        return self.start("launch", *arguments, *command, **options)

    def ranks(self):
        """Processes that run a rank's own command, by rank; not what these have started."""
        found = {}
        for pid in self.processes():
            rank = variable_of(pid, "RANK")
            if rank is not None and variable_of(harness.parent_of(pid), "RANK") is None:
                found[int(rank)] = pid
        return found

    def wait_for_ready(self, job, count):
        wait_until(lambda: job.out.count("ready") == count or job.process.poll() is not None, "ranks", job)
        self.assertEqual(job.out.count("ready"), count, f"{job.out}\n{job.err}")

    def wait_until_nothing_is_left(self):
        """Agents on other hosts end a moment after the launcher."""
        wait_until(lambda: not self.processes(), "the end of all processes")
        self.assert_nothing_left()

    def assert_refused(self, job, status, *parts):
        """One message, soon, and nothing runs."""
        self.assert_one_message(job, status, *parts)
        self.wait_until_nothing_is_left()


def lines_of_ranks(job):
    """The lines that each rank has printed, without its prefix."""
    found = {}
    for rank, text in re.findall(r"^\[(\d+)\] (.*)$", job.out, re.MULTILINE):
        found.setdefault(int(rank), []).append(text)
    return found


__all__ = ["BIMETAL", "OTHER_VERSION", "SHOW", "WAIT", "WAIT_FOR_SIGNALS", "LaunchTest", "free_port", "harness",
           "lines_of_ranks", "wait_until"]
