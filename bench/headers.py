#!/usr/bin/env python3
"""Which headers are dear: the compiler's processor time for each by itself, without a precompiled header, and how many of our files
include it. Flags are those of the build's first source that sees libtorch.

    bench/headers.py [BUILD] [HEADER...]
"""

import json
import pathlib
import re
import resource
import shlex
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
LEAST_USERS, SHOWN, TIMES = 3, 20, 3
INCLUDE = re.compile(r"^#include <([^>]+\.(?:h|hpp))>", re.MULTILINE)


def users():
    """How many files have each header of somebody else."""
    counts = {}
    for folder in ("src", "tests", "examples"):
        for path in (ROOT / folder).rglob("*.[ch]*"):
            for header in set(INCLUDE.findall(path.read_text(errors="ignore"))):
                counts[header] = counts.get(header, 0) + 1
    return counts


def compiler_and_flags(build):
    commands = json.loads((build / "compile_commands.json").read_text())
    one = next(entry for entry in commands if "torch/csrc/api/include" in entry["command"] and "/src/" in entry["command"])
    words = [word for word in shlex.split(one["command"]) if not word.endswith("ccache")]
    kept, folders = [], {"-I", "-isystem"}
    for at, word in enumerate(words[1:], 1):
        if word in folders:
            kept += [word, words[at + 1]]
        elif word.startswith(("-I", "-D", "-std=", "-isystem")) and word not in folders:
            kept.append(word)
    kept += [f"-I{build / 'include'}"]  # version.h
    return [words[0], *kept, "-fsyntax-only", "-x", "c++", "-"], one["directory"]


def seconds_of(header, command, folder):
    def once():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ended = subprocess.run(command, input=f"#include <{header}>\n", text=True, capture_output=True, cwd=folder)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime if ended.returncode == 0 else None

    times = [once() for _ in range(TIMES)]
    return None if None in times else statistics.median(times)


def main(arguments):
    build = pathlib.Path(arguments[0] if arguments else "build").resolve()
    counts = users()
    asked = arguments[1:] or sorted((name for name, count in counts.items() if count >= LEAST_USERS), key=counts.get, reverse=True)
    command, folder = compiler_and_flags(build)
    print(subprocess.run([command[0], "--version"], text=True, capture_output=True).stdout.splitlines()[0])
    found = [(seconds_of(name, command, folder), name) for name in asked]
    print(f"{'seconds':>8} {'files':>6}  header")
    for seconds, name in sorted((entry for entry in found if entry[0] is not None), reverse=True)[:SHOWN]:
        print(f"{seconds:8.1f} {counts.get(name, 0):6}  {name}")
    for name in (name for seconds, name in found if seconds is None):
        print(f"{'':8} {counts.get(name, 0):6}  {name} does not compile by itself")


if __name__ == "__main__":
    main(sys.argv[1:])
