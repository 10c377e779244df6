"""bimetal launch: a command as the ranks of a job on this machine."""

from __future__ import annotations

import argparse
import ctypes
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import sys
import time
from typing import Any

_PAUSE_S = 0.05
_TO_END_S = 5.0  # after being asked to
_PR_SET_PDEATHSIG = 1

# Where the system can do that: whatever ends the launcher ends its ranks.
_C_LIBRARY = ctypes.CDLL(None) if sys.platform == "linux" else None
_DIE_WITH_LAUNCHER = (lambda: _C_LIBRARY.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)) if _C_LIBRARY else None


# In the wheel for Windows; elsewhere the ranks are started here.
_PROGRAM = pathlib.Path(__file__).parents[1] / "bimetal_launch.exe"


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "launch", help="start a command as the ranks of a job on this machine",
        description="Starts COMMAND once for each rank, with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and "
                    "a token set. Where one fails, the others are ended. (For ranks on several machines: torchrun.)")
    parser.add_argument("--ranks", "-n", type=int, default=2, metavar="N", help="how many (default: 2)")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND",
                        help="a program and its arguments; a file that ends in .py is run by this Python")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if arguments.ranks < 1 or not words:
        print("bimetal: error: launch needs at least one rank and a command, as in: bimetal launch -n 2 train.py",
              file=sys.stderr)
        return 2
    if words[0].endswith(".py"):
        words = [sys.executable, *words]
    if _PROGRAM.exists():
        return _by_program(arguments.ranks, words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        common = _environment(arguments.ranks)
        for rank in range(arguments.ranks):
            own = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            ranks.append(subprocess.Popen(words, env=own, stdin=subprocess.DEVNULL, preexec_fn=_DIE_WITH_LAUNCHER))
        return _wait(ranks)
    finally:
        _end(ranks)


def _by_program(ranks: int, words: list[str]) -> int:
    """Windows lets no program take this process's place: it waits, leaves Ctrl-C to the program, and the program ends with it."""
    # torch's wheels for Windows have no libuv; and what Python prints into a pipe is in no encoding that others know.
    defaults = {"USE_LIBUV": "0", "PYTHONIOENCODING": "utf-8"}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    command = [str(_PROGRAM), "launch", "--front", str(os.getpid()), "-n", str(ranks), "--", *words]
    return subprocess.call(command, env={**defaults, **os.environ})


def _environment(ranks: int) -> dict[str, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ours = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port)}
    if not os.environ.get("BIMETAL_TOKEN_FILE"):
        ours["BIMETAL_TOKEN"] = os.environ.get("BIMETAL_TOKEN") or secrets.token_hex(32)
    return {**os.environ, **ours}


def _wait(ranks: list[subprocess.Popen[bytes]]) -> int:
    """The status of the first rank that fails, or 0."""
    left = set(range(len(ranks)))
    while left:
        for rank in sorted(left):
            status = ranks[rank].poll()
            if status is None:
                continue
            left.remove(rank)
            if status != 0:
                print(f"bimetal: rank {rank} ended with status {status}; ending the others", file=sys.stderr)
                return status if status > 0 else 128 - status
        time.sleep(_PAUSE_S)
    return 0


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    for process in ranks:
        if process.poll() is None:
            process.terminate()
    until = time.monotonic() + _TO_END_S
    for process in ranks:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
