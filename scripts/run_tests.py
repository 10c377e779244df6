#!/usr/bin/env python3
"""Runs the tests of a build folder: `run_tests.py LEVEL [BUILD]`.

LEVEL is one of
  quick      what the edited files reach, then the fastest unit tests, for a minute; builds these first
  test       every public promise: what `make test` runs
  all        everything but endurance
  rest       what `all` has beyond `test`, as much as --minutes allow: what failed last, then the oldest results
  engines    what needs Slurm and sshd (scripts/test_engines.sh installs them)
  endurance  long runs

The last line counts cases: `N passed, N failed, N skipped`. A test that fails is tried once more, alone; one that passes then counts
as passed, and is named in a list that --flaky prints. How long tests took and what they passed with is kept in a folder outside of the
repository ($BIMETAL_TEST_CACHE, or ~/.cache/bimetal).
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import time

from testing import catalog, choose, results, run
from testing.inputs import Inputs

LEVELS = ("quick", "test", "all", "rest", "engines", "endurance")


def parsed(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("level", choices=LEVELS)
    parser.add_argument("build", nargs="?", default="build")
    parser.add_argument("--minutes", type=float, help="begin nothing that would probably end later (default: no limit; quick: 1)")
    parser.add_argument("--unchanged", choices=("run", "skip"), default="run",
                        help="skip: leave out what passed with exactly these inputs")
    parser.add_argument("--reached", action="store_true",
                        help="only what the edited files reach, the nearest first, until something fails; builds these first")
    parser.add_argument("--list", action="store_true", help="name the tests and their last times, and run none")
    parser.add_argument("--flaky", action="store_true", help="name those that have passed only at a second try, and run none")
    parser.add_argument("--only", metavar="PATTERN", help="only tests whose name has this regular expression")
    parser.add_argument("--label", help="only tests that have this label of CTest's")
    parser.add_argument("--once", action="store_true", help="no second try for what fails, and nothing is kept of the results")
    parser.add_argument("--name", default="", help="begin the last line with this word")
    return parser.parse_args(arguments)


def show_flaky(known):
    for entry in known.flaky:
        print(f"{entry['when']}  load {entry['load']:>5}  {entry['name']}")


def batches(tests, known, count, minutes, size=None):
    """The batches to run in turn: all at once without a limit, or `size` each; else groups of some minutes, as long as
    there is time."""
    if minutes is None:
        step = size or len(tests) or 1
        yield from (tests[begin : begin + step] for begin in range(0, len(tests), step))
        return
    end, waiting = time.monotonic() + 60 * minutes, list(tests)
    while waiting:
        left = end - time.monotonic()
        batch = choose.that_fit(waiting, known, min(left, max(left / 3, 120)))
        if not batch:
            break
        yield batch
        chosen = {test.name for test in batch}
        waiting = [test for test in waiting if test.name not in chosen]
    if waiting:
        print(f"\nleft out for lack of time: {len(waiting)} tests:", *sorted(test.name for test in waiting), sep="\n  ", flush=True)
        count.skipped += len(waiting)


def built(build, chosen, inputs):
    """Those tests with what they need built."""
    targets = choose.targets(chosen, inputs)
    if targets and subprocess.run(["ninja", "-C", build, *targets], stdout=subprocess.DEVNULL).returncode != 0:
        sys.exit("the build fails: ninja -C " + build)
    now = {test.name: test for test in catalog.load(build)}  # programs may have other suites now
    return [now[test.name] for test in chosen if test.name in now]


def main(arguments):
    options = parsed(arguments)
    known = results.Results(keep=not options.once)
    if options.flaky:
        return show_flaky(known)
    build = options.build
    inputs, tests, count = Inputs(build), catalog.load(build), run.Count()
    if options.level == "quick":
        chosen = built(build, choose.quick(catalog.of_level(tests, "all"), inputs, known, choose.edited_files()), inputs)
        options.minutes = options.minutes or 1.0
    elif options.reached:
        reached = choose.reached(catalog.of_level(tests, options.level), inputs, known, choose.edited_files())
        chosen = built(build, reached, inputs)
    elif options.level == "rest":
        already = {test.name for test in catalog.of_level(tests, "test")}
        chosen = choose.by_age([test for test in catalog.of_level(tests, "all") if test.name not in already], known)
    else:
        chosen = catalog.of_level(tests, options.level)
        if options.minutes:
            chosen = choose.by_age(chosen, known)
    if options.only:
        chosen = [test for test in chosen if re.search(options.only, test.name)]
    if options.label:
        chosen = [test for test in chosen if options.label in test.labels]
    if options.unchanged == "skip":
        same = [test for test in chosen if known.holds(test.name, inputs.hash(test))]
        chosen = [test for test in chosen if test not in same]
        print(f"left out: {len(same)} tests passed with exactly these inputs", flush=True)
        count.skipped += len(same)
    if options.list:
        for test in chosen:
            print(f"{known.seconds(test.name, 0):8.1f} s  {test.name}")
        return None
    print(f"\n== {options.level}: {len(chosen)} tests, about {choose.wall_seconds(chosen, known) / 60:.0f} minutes", flush=True)
    for batch in batches(chosen, known, count, options.minutes, 16 if options.reached else None):
        if options.reached and count.failed:
            break
        run.run(build, batch, known, inputs.hash, count, rerun=not options.once and options.level != "quick")
    if counts := os.environ.get("BIMETAL_COUNTS"):
        with open(counts, "a") as file:
            print(count.passed, count.failed, count.skipped, file=file)
    print(f"\n{options.name + ': ' if options.name else ''}{count.line()}", flush=True)
    return 0 if count.failed == 0 and count.passed + count.skipped else 1


if __name__ == "__main__":
    os.chdir(pathlib.Path(__file__).resolve().parents[1])
    sys.exit(main(sys.argv[1:]))
