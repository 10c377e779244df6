#!/usr/bin/env python3
"""Compiles what the Python package is made of against the headers of other torch releases.

Only as far as the compiler's checks go (-fsyntax-only): the sources are those of a build folder, with its options,
but for the headers, which come from torch's wheel of each release. Wheels for macOS are the smallest that hold them, and
the headers are the same for all systems. Ends with a line that counts releases.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import tempfile
import zipfile

RELEASES = ("2.11.0", "2.12.1", "2.14.1", "2.15.0")  # 2.13 is what everything else is built with
LAYERS = ("c10d", "data", "device", "optim", "parallel", "precision", "python", "task")
PLATFORMS = ("macosx_11_0_arm64", "macosx_14_0_arm64")
DOWNLOAD_SECONDS = 600
COMPILE_SECONDS = 600


def headers(release: str, cache: pathlib.Path) -> pathlib.Path:
    """The folder of a release's headers, brought by pip the first time."""
    folder = cache / release
    if (folder / "complete").exists():
        return folder / "torch/include"
    with tempfile.TemporaryDirectory(dir=cache) as wheels:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "-d", wheels]
        for name in PLATFORMS:
            command += ["--platform", name]
        # An exact release is asked for: a constraint of the environment is not meant.
        subprocess.run([*command, f"torch=={release}"], check=True, timeout=DOWNLOAD_SECONDS,
                       env={**os.environ, "PIP_CONSTRAINT": os.devnull})
        with zipfile.ZipFile(next(pathlib.Path(wheels).glob("*.whl"))) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith("torch/include/")])
    (folder / "complete").touch()
    return folder / "torch/include"


def compilations(build: pathlib.Path) -> list[tuple[str, str]]:
    """(folder, command) of each compilation of the package that sees torch."""
    found = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        layer = next((name for name in LAYERS if f"/src/bimetal/{name}/" in entry["file"]), None)
        if layer and "torch/include" in entry["command"] and "cmake_pch" not in pathlib.Path(entry["file"]).name:
            found.append((entry["directory"], entry["command"]))
    return found


def against(command: str, include: pathlib.Path) -> list[str]:
    """The command with another release's headers, that checks and writes nothing."""
    words, result = shlex.split(command), []
    index = 0
    while index < len(words):
        word = words[index]
        if word in ("-o", "-include"):  # no object, no precompiled header of the other release
            index += 2
            continue
        head, found, tail = word.partition("torch/include")
        if found and head.startswith("/"):
            word = str(include) + tail
        if word not in ("-Winvalid-pch", "-fpch-preprocess"):
            result.append(word)
        index += 1
    return [*(word for word in result if word != "-c"), "-fsyntax-only"]


def errors_of(folder: str, command: list[str]) -> str:
    """The compiler's objections; empty if there are none."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=COMPILE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"{command[-2]}: not compiled within {COMPILE_SECONDS} s"
    if not done.returncode:
        return ""
    return "\n".join([line for line in done.stderr.splitlines() if "error" in line][:20]) or done.stderr[-2000:]


def passes(release: str, build: pathlib.Path, cache: pathlib.Path) -> bool:
    include = headers(release, cache)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(errors_of, folder, against(command, include)) for folder, command in compilations(build)]
    objections = [errors for job in jobs if (errors := job.result())]
    print("\n".join(objections), end="\n" if objections else "", flush=True)
    return not objections


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=lambda name: pathlib.Path(name).resolve(), help="a configured and built folder, e.g. build")
    parser.add_argument("--releases", nargs="+", default=RELEASES, metavar="X.Y.Z", help="default: %(default)s")
    parser.add_argument("--cache", type=lambda name: pathlib.Path(name).resolve(), default="build-torch-headers",
                        help="where headers are kept (default: %(default)s)")
    arguments = parser.parse_args()
    if not compilations(arguments.build):
        parser.error(f"{arguments.build} has no compile_commands.json with the package: run make all first")
    if platform.system() != "Linux":
        parser.error("the options of this system's build don't suit the headers' other systems: run it on Linux")
    arguments.cache.mkdir(exist_ok=True)
    passed = failed = 0
    for release in arguments.releases:
        fine = passes(release, arguments.build, arguments.cache)
        passed, failed = passed + fine, failed + (not fine)
        print(f"{'passed' if fine else 'failed'}: the package's sources with the headers of torch {release}", flush=True)
    closing = f"{passed} passed, {failed} failed"
    if counts := os.environ.get("BIMETAL_COUNTS"):  # scripts/closing_line.sh
        with open(counts, "a", encoding="utf-8") as file:
            file.write(f"{passed} {failed} 0\n")
        closing = f"headers: {closing}"
    print(closing)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
