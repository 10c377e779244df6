#!/usr/bin/env python3
"""torch's own tests of process groups and DDP (its distributed_test.py, which comes with torch), on Gloo and on this back end.

They ask for Gloo's name in many places, so that this back end has that name here: code that asks torch for a "gloo"
group gets one of "bimetal". Prints a line for each test whose outcome differs, with what it failed of, and how many
pass on each; ends with 1 where Gloo passes more tests that are not among KNOWN than this back end does.

Needs the package (PYTHONPATH=build/python, or installed), and what torch's tests need: pip install expecttest hypothesis.
A test has its ranks forked from one process, which takes about a second; all of them take some minutes.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

# Tests that ask for Gloo's name or for its words. docs/python.md says what stands in their place.
KNOWN = {
    "test_get_backend": "get_backend() is 'bimetal'",
    "test_barrier_timeout_full_group": "wants Gloo's words for a timeout",
    "test_monitored_barrier_gloo": "dist.monitored_barrier is for Gloo alone",
    "test_monitored_barrier_gloo_rank_0_timeout": "wants Gloo's words for a timeout",
    "test_monitored_barrier_gloo_subgroup": "dist.monitored_barrier is for Gloo alone",
}


def stand_in_for_gloo():
    """Every group of "gloo" is one of "bimetal" from now on."""
    import bimetal  # noqa: F401
    import torch.distributed as dist
    c10d = dist.distributed_c10d
    make = c10d._new_process_group_helper

    def made(size, rank, ranks, backend, *args, **options):
        if "gloo" in str(backend):
            backend = dist.Backend("bimetal")
        return make(size, rank, ranks, backend, *args, **options)
    c10d._new_process_group_helper = made


def why(text):
    """The last line of a rank's traceback that says something."""
    lines = [line.strip() for line in text.splitlines() if re.match(r"\s*[\w.]*(Error|Exception|Failure)\b", line)]
    telling = [line for line in lines if "exited with error code" not in line and "exception:" not in line]
    return (telling or lines or text.strip().splitlines() or ["?"])[-1][:300]


def tests_of(pattern):
    import torch
    from torch.testing._internal.distributed import distributed_test

    class TorchTests(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    TorchTests.__module__ = "__main__"
    names = unittest.TestLoader().getTestCaseNames(TorchTests)
    return [TorchTests(name) for name in names if re.search(pattern, name)]


class Outcomes(unittest.TestResult):
    """A line of JSON in a file for each test that is over."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    def startTest(self, test):  # noqa: N802 (unittest's)
        super().startTest(test)
        self.begun = time.monotonic()

    def tell(self, test, outcome, reason=""):
        line = {"test": test._testMethodName, "outcome": outcome, "why": reason, "seconds": round(time.monotonic() - self.begun, 1)}
        print(json.dumps(line), file=self.file, flush=True)

    def addSuccess(self, test):  # noqa: N802
        self.tell(test, "passed")

    def addSkip(self, test, reason):  # noqa: N802
        self.tell(test, "skipped", reason)

    def addError(self, test, problem):  # noqa: N802
        self.tell(test, "failed", why(self._exc_info_to_string(problem, test)))

    addFailure = addError  # noqa: N815


def run_here(backend, pattern, place):
    """All tests in this process, whose ranks it forks."""
    if backend == "bimetal":
        stand_in_for_gloo()
    with open(place, "w", encoding="utf-8") as file:
        unittest.TestSuite(tests_of(pattern)).run(Outcomes(file))


def outcomes_on(backend, args, folder):
    place = pathlib.Path(folder) / f"{backend}.jsonl"
    with tempfile.TemporaryDirectory() as scratch:
        environment = os.environ | {
            "BACKEND": "gloo", "WORLD_SIZE": str(args.ranks), "TEMP_DIR": scratch, "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1",
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(args.limit)}
        for name in ("barrier", "test_dir", "init_dir"):
            (pathlib.Path(scratch) / name).mkdir()
        with open(pathlib.Path(folder) / f"{backend}.log", "w", encoding="utf-8") as log:
            subprocess.run([sys.executable, __file__, "--as", backend, "--tests", args.tests, "--results", str(place)],
                           env=environment, stdout=log, stderr=subprocess.STDOUT, check=False)
    lines = map(json.loads, place.read_text(encoding="utf-8").splitlines()) if place.exists() else ()
    return {line["test"]: line for line in lines}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--tests", default="", help="a regular expression for their names")
    parser.add_argument("--limit", type=int, default=120, help="seconds for one test")
    parser.add_argument("--results", default="", help="a folder that keeps outcomes and logs")
    parser.add_argument("--as", dest="backend", choices=("gloo", "bimetal"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.backend:
        run_here(args.backend, args.tests, args.results)
        return 0
    folder = args.results or tempfile.mkdtemp(prefix="torch-distributed-tests-")
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    found = {backend: outcomes_on(backend, args, folder) for backend in ("gloo", "bimetal")}
    passed = {backend: {name for name, line in lines.items() if line["outcome"] == "passed"} for backend, lines in found.items()}
    lost = sorted(passed["gloo"] - passed["bimetal"])
    for name in lost:
        line = found["bimetal"].get(name, {"outcome": "did not end", "why": ""})
        print(f"{name}: {line['outcome']}: {line['why']}" + (f" (known: {KNOWN[name]})" if name in KNOWN else ""))
    for name in sorted(passed["bimetal"] - passed["gloo"]):
        line = found["gloo"].get(name, {"outcome": "did not end", "why": ""})
        print(f"{name}: passes here alone; on Gloo it {line['outcome']}: {line['why']}")
    print(f"{len(passed['gloo'])} pass on Gloo, {len(passed['gloo'] & passed['bimetal'])} of these on bimetal; outcomes: {folder}")
    return 1 if not passed["gloo"] or set(lost) - set(KNOWN) else 0


if __name__ == "__main__":
    sys.exit(main())
