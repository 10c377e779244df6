#!/usr/bin/env python3
"""check_headers.py INCLUDE TORCH: compiles the installed headers with all warnings as errors: each by itself, by GCC in C++20, and all
together in C++20 and C++23, by GCC and, where it is there, Clang. For those by themselves the headers of torch that any of them includes are
precompiled: each of their compilations would take ten seconds more."""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

INCLUDE, TORCH = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
FLAGS = ["-I", INCLUDE, "-isystem", TORCH / "include", "-isystem", TORCH / "include/torch/csrc/api/include"]
CHECK = ["-Wall", "-Wextra", "-Wconversion", "-Werror", "-fsyntax-only"]
C_HEADER = INCLUDE / "bimetal/capi/bimetal_c.h"


def includes_of(header):
    return re.findall(r'^#include [<"]([^>"]+)[>"]', (INCLUDE / header).read_text(), re.MULTILINE)


def all_includes_of(header, seen):
    for include in includes_of(header):
        if include not in seen:
            seen.add(include)
            if (INCLUDE / include).exists():
                all_includes_of(include, seen)
    return seen


def torchs(includes):
    return sorted(include for include in includes if include.startswith(("torch/", "ATen/", "c10/")))


def write(path, includes):
    path.write_text("".join(f"#include <{include}>\n" for include in includes))
    return path


def compiled(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    return "" if done.returncode == 0 else f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}\n"


headers = sorted(str(header.relative_to(INCLUDE)) for header in INCLUDE.rglob("*.h"))
compilers = [compiler for compiler in ("g++", "clang++") if shutil.which(compiler)]
with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    folder = pathlib.Path(name)
    precompiled = write(folder / "torch.h", torchs({include for header in headers for include in includes_of(header)}))
    done = pool.submit(compiled, "g++", "-std=c++20", *FLAGS, "-x", "c++-header", precompiled, "-o", f"{precompiled}.gch")
    everything = write(folder / "everything.cpp", headers)
    jobs = [pool.submit(compiled, compiler, f"-std={standard}", *FLAGS, *CHECK, everything)
            for compiler in compilers for standard in ("c++20", "c++2b")[compiler == "g++":]]
    jobs.append(pool.submit(compiled, "cc", "-std=c11", *CHECK, "-x", "c", C_HEADER))
    problems = done.result()
    for number, header in enumerate(headers):
        source = write(folder / f"{number}.cpp", [header])
        first = ["-include", precompiled] if torchs(all_includes_of(header, set())) else []
        jobs.append(pool.submit(compiled, "g++", "-std=c++20", *FLAGS, *CHECK, *first, source))
    problems += "".join(job.result() for job in jobs)
print(problems or f"{len(headers)} headers, by {' and '.join(compilers)}")
sys.exit(bool(problems))
