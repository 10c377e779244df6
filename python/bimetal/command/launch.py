"""bimetal launch: a command as the ranks of a job on this machine."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import sys
import time
from typing import Any

from bimetal._errors import INTERRUPTED
from bimetal.command import lite, program
from bimetal.command.local_ranks import LocalRanks, as_exit_status, how_it_ended

_PAUSE_S = 0.05
_TO_SAVE_S = 120.0  # after being interrupted, as the program's launcher gives them


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "launch", allow_abbrev=False, help="start a command as the ranks of a job on this machine",
        description="Starts COMMAND once for each rank, with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and "
                    "a token set. Where one fails, the others are ended. Ctrl-C reaches every rank, and a second one kills "
                    "them. Ranks on several machines: docs/launching.md.")
    parser.add_argument("--ranks", "-n", "--np", type=int, default=2, metavar="N", help="how many (default: 2)")
    parser.add_argument("--no-prefix", action="store_true", help="show lines without \"[RANK] \" in front")
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
    options = ["-n", str(arguments.ranks), *(["--no-prefix"] if arguments.no_prefix else []), "--", *words]
    if sys.platform == "win32" and lite.is_here():
        return lite.run(["launch", *options])
    if program.is_here():
        return program.run(["launch", *options])
    stops = _Stops()
    ranks = LocalRanks(prefixed=not arguments.no_prefix)
    status = INTERRUPTED
    try:
        common = _environment(arguments.ranks)
        for rank in range(arguments.ranks):
            ranks.start(rank, words, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        status = _wait(ranks, stops)
    finally:
        if others := ranks.end(at_once=bool(stops.signals)):
            _say(f"left out: what rank {', '.join(map(str, others))} said of it")
    return status


def _environment(ranks: int) -> dict[str, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ours = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port)}
    if not os.environ.get("BIMETAL_TOKEN_FILE"):
        ours["BIMETAL_TOKEN"] = os.environ.get("BIMETAL_TOKEN") or secrets.token_hex(32)
    return {**os.environ, **ours}


class _Stops:
    """Signals by which others want the job to end. Python's own handlers would end it between any two of its lines."""

    def __init__(self) -> None:
        self.signals: list[int] = []
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup wants it
                signal.signal(number, lambda number, _: self.signals.append(number))


def _wait(ranks: LocalRanks, stops: _Stops) -> int:
    """The status of the first rank that fails, or 0."""
    told, until = 0, float("inf")
    while ranks:
        for rank, status in ranks.ended():
            if status != 0 and not told:
                _say(f"rank {rank} {how_it_ended(status)}; ending the others")
                ranks.name_cause(rank)
                return as_exit_status(status)
        if told < len(stops.signals) or time.monotonic() > until:
            if told:
                _say("the ranks are killed")
                return INTERRUPTED
            # Each may have something to save: who is in a hurry asks once more.
            told, until = len(stops.signals), time.monotonic() + _TO_SAVE_S
            ranks.tell(signal.SIGINT if stops.signals[0] == signal.SIGINT else signal.SIGTERM)
        time.sleep(_PAUSE_S)
    return INTERRUPTED if told else 0


def _say(text: str) -> None:
    print(f"bimetal: {text}", file=sys.stderr, flush=True)
