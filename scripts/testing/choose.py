"""Which tests run, and in which order, where there is not time for all of them."""

import os
import pathlib
import subprocess

from . import catalog

# The time of a test that has never run, by its first label or its kind.
UNKNOWN_SECONDS = {"suites": 480.0, "python": 45.0, "fault": 6.0, "network": 10.0, "launch": 6.0}
QUICK_SECONDS, QUICK_EACH = 90.0, 8.0  # of processor time, on one core


def seconds(test, known):
    return known.seconds(test.name, next((UNKNOWN_SECONDS[label] for label in test.labels if label in UNKNOWN_SECONDS), 1.0))


def wall_seconds(tests, known):
    cores = os.cpu_count() or 2
    return sum(seconds(test, known) / (1 if test.serial else cores) for test in tests)


def by_age(tests, known):
    """First what failed last, then what has never run, then the oldest result; of one day the quickest first."""
    return sorted(tests, key=lambda test: (not known.failed_last(test.name), known.when(test.name)[:10], seconds(test, known)))


def that_fit(tests, known, limit):
    """The first of them that take together no longer than `limit` seconds; what is too long by itself is passed over."""
    chosen, taken = [], 0.0
    for test in tests:
        needed = wall_seconds([test], known)
        if taken + needed <= limit:
            chosen.append(test)
            taken += needed
    return chosen


def edited_files():
    """The files that differ from the last commit or, if none do, those that it changed."""
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=catalog.ROOT, capture_output=True, text=True).stdout.splitlines()

    names = git("diff", "--name-only", "HEAD") + git("ls-files", "--others", "--exclude-standard")
    names = names or git("diff", "--name-only", "HEAD~1", "HEAD")
    return {catalog.ROOT / name for name in names}


def quick(tests, inputs, known, edited):
    """The tests that the edited files reach, the nearest first, then unit tests that are fast."""
    short = [test for test in tests if seconds(test, known) <= QUICK_EACH and not test.labels & {catalog.SUITES}]
    near = reached(short, inputs, known, edited)
    units = [test for test in short if test not in near and (test.labels & {"unit", "conformance"} or not test.labels)]
    return that_fit(near + sorted(units, key=lambda test: seconds(test, known)), known, QUICK_SECONDS / (os.cpu_count() or 2))


def reached(tests, inputs, known, edited):
    """Those of whose inputs some are edited, the nearest first."""
    near = [test for test in tests if inputs.of(test) & edited]
    return sorted(near, key=lambda test: (-closeness(test, edited), len(inputs.of(test)), seconds(test, known)))


def closeness(test, edited):
    """How many parts the folder of the test's program or script shares with that of an edited file: tests/unit/net and
    src/bimetal/net share one."""
    words = {part for word in test.command for part in pathlib.Path(word).parts if "/" in word}
    return max((len(words & set(file.relative_to(catalog.ROOT).parts[2:-1])) for file in edited if file.is_relative_to(catalog.ROOT)),
               default=0)


def targets(tests, inputs):
    """Ninja's targets of the programs that tests run."""
    build, found = inputs.graph.build, set()
    for test in tests:
        for word in (*test.command, *test.environment.values()):
            path = pathlib.Path(word)
            if path.is_absolute() and path.is_relative_to(build) and os.access(path, os.X_OK) and path.is_file():
                found.add(str(path.relative_to(build)))
        if "bimetal" in test.environment.get("PYTHONPATH", ""):
            found.add("bimetal_python")
    return sorted(found)
