#!/usr/bin/env python3
"""cpp_examples.py BUILD RUNS: examples/cpp in float64, alone and by two unequal workers: what they save is the same to 1e-12."""

import array
import json
import os
import pathlib
import socket
import subprocess
import sys

BUILD, RUNS = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
SECONDS = 120


def tensors_of(path):
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    tensors = {}
    for name, facts in json.loads(content[8:begin]).items():
        if name == "__metadata__":
            continue
        assert facts["dtype"] == "F64", f"{path}: {name} is {facts['dtype']}"
        first, last = facts["data_offsets"]
        tensors[name] = array.array("d", content[begin + first:begin + last])
    return tensors


def difference(one, other):
    assert one.keys() == other.keys(), (one.keys(), other.keys())
    norm = max(abs(value) for values in one.values() for value in values)
    return max(abs(a - b) for name in one for a, b in zip(one[name], other[name], strict=True)) / norm


def run(program, ranks, folder, *arguments):
    folder.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    processes = []
    for rank in range(ranks):
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": port, "BIMETAL_WORKER": "cpu:threads=1; cpu:threads=1,speed=0.4" if ranks == 2 else "cpu:threads=1"}
        environment = dict(os.environ) | {name: str(value) for name, value in variables.items()}
        processes.append(subprocess.Popen([BUILD / program, "float64", *arguments], cwd=folder, env=environment, text=True,
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    for rank, process in enumerate(processes):
        said, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, f"{program}, rank {rank} of {ranks}: {said}"
    return tensors_of(folder / f"{program}.safetensors")


for program in ("unet", "tagger", "pipeline", "parts", "elastic", "zero"):
    alone = run(program, 1, RUNS / program / "alone")
    apart = difference(alone, run(program, 2, RUNS / program / "two"))
    assert apart < 1e-12, f"{program}: two workers differ by {apart}"
    print(f"{program}: {apart:.1e}")
run("zero", 2, RUNS / "zero" / "resumed", "10")
apart = difference(alone, run("zero", 1, RUNS / "zero" / "resumed"))
assert apart < 1e-12, f"zero: two workers, and then one, differ by {apart}"
