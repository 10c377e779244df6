"""Runs tests by CTest, counts their cases, and tries once more, alone, what has failed."""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as tree

MOST_RERUNS = 6  # more failures than these are no accident

# How programs and scripts of tests end: tests/support/test_main.cpp, scripts/closing_line.sh, Python's unittest.
CASES = re.compile(r"^(?:[\w ./-]+: )?(\d+) passed, (\d+) failed(?:, (\d+) skipped)?\s*$", re.M)
UNITTEST = re.compile(r"^Ran (\d+) tests? in .*\n\n(OK|FAILED)(?: \((.*)\))?\s*$", re.M)


@dataclasses.dataclass
class Outcome:
    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    counted: bool = False  # whether it came as far as to count its cases
    cases: tuple[str, ...] = ()  # those that failed


def read_outcome(element):
    name, said = element.get("name"), element.findtext("system-out") or ""
    outcome = Outcome(name, seconds=float(element.get("time") or 0))
    counted, unittest = CASES.findall(said), UNITTEST.findall(said)
    outcome.counted = bool(counted or unittest)
    if counted:
        outcome.passed, outcome.failed, outcome.skipped = (int(number or 0) for number in counted[-1])
    elif unittest:
        ran, _, details = unittest[-1]
        of = {word: int(number) for word, number in re.findall(r"(\w+)=(\d+)", details)}
        outcome.failed, outcome.skipped = of.get("failures", 0) + of.get("errors", 0), of.get("skipped", 0)
        outcome.passed = max(int(ran) - outcome.failed - outcome.skipped, 0)
    if element.get("status") == "fail" or name.endswith("_NOT_BUILT"):
        outcome.failed = max(outcome.failed, 1)
        outcome.cases = tuple(re.findall(r"(\S+): FAILED\b", said) + re.findall(r"^(?:FAIL|ERROR): (.+)$", said, re.M))
    elif not outcome.counted:
        skipped = element.get("status") in ("notrun", "disabled", "skipped")
        outcome.passed, outcome.skipped = (0, 1) if skipped else (1, 0)
    return outcome


def run_ctest(build, tests, jobs):
    """The outcomes of those tests that CTest reports, in no order."""
    numbers = ",".join(str(test.number) for test in tests)
    report = pathlib.Path(tempfile.mkstemp(suffix=".xml")[1])
    try:
        subprocess.run(["ctest", "--test-dir", build, "-I", f"0,0,1,{numbers}", "-j", str(jobs), "--output-on-failure",
                        "--output-junit", report, "--test-output-truncation", "middle", "--no-tests=error"],
                       env={name: value for name, value in os.environ.items() if name != "BIMETAL_COUNTS"})  # counted here
        text = report.read_text(errors="replace")
        return [read_outcome(case) for case in tree.fromstring(text).iter("testcase")] if text else []
    finally:
        report.unlink(missing_ok=True)


class Count:
    """The sum over all that ran in one call of run_tests.py."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def add(self, outcomes):
        for outcome in outcomes:
            self.passed += outcome.passed
            self.failed += outcome.failed
            self.skipped += outcome.skipped

    def line(self):
        return f"{self.passed} passed, {self.failed} failed" + (f", {self.skipped} skipped" if self.skipped else "")


def run(build, tests, results, inputs_of, count, rerun=True):
    """Runs tests beside each other, as far as CTest's properties of them allow. Every outcome is kept in `results`."""
    cores = os.cpu_count() or 2
    outcomes = {outcome.name: outcome for outcome in run_ctest(build, tests, 2 * cores)}
    for test in tests:
        if test.name not in outcomes:
            outcomes[test.name] = Outcome(test.name, failed=1, cases=("CTest says nothing of it",))
    bad = [test for test in tests if outcomes[test.name].failed]
    if rerun and 0 < len(bad) <= MOST_RERUNS:
        print("\n== once more, alone: what has failed", flush=True)
        for outcome in run_ctest(build, bad, 1):
            before = outcomes[outcome.name]
            if outcome.failed == 0 and outcome.skipped > before.skipped and (before.counted or not outcome.counted):
                print(f"skips now what had failed: {outcome.name}", flush=True)
            elif outcome.failed == 0:
                print(f"passed at the second try, alone: {outcome.name}", flush=True)
                results.add_flaky(outcome.name)
                outcomes[outcome.name] = outcome
    for test in tests:
        outcome = outcomes[test.name]
        results.add(test.name, outcome.failed == 0, outcome.seconds, "" if outcome.skipped else inputs_of(test))
        if outcome.failed:
            print("failed:", test.name, *outcome.cases, file=sys.stderr, flush=True)
    results.save()
    count.add(outcomes.values())
    return outcomes
