"""Starts ranks as horovodrun does: python -m bimetal.horovod.run -np 4 [-H HOST:SLOTS,…] python train.py

On this machine it starts them itself; for other hosts it hands over to `bimetal launch`, which reaches them by ssh. With
--elastic a rank that ends by itself takes no other with it: the store by which the survivors find each other is served here,
not by a rank.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence

from bimetal._errors import EXIT_STATUSES, Error
from bimetal.command import program
from bimetal.command.local_ranks import LocalRanks, as_exit_status, how_it_ended
from bimetal.horovod.core.meeting import serve_store


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bimetal.horovod.run", usage="%(prog)s -np N [options] COMMAND [ARGUMENT …]",
        description="Starts N ranks of a command, on this machine unless hosts are named. When one fails, the others are "
                    "ended, too, and the exit status is its own; with --elastic the others go on.")
    parser.add_argument("-np", "--num-proc", type=int, required=True, metavar="N", help="number of ranks")
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument("-H", "--hosts", metavar="HOST:SLOTS,…", help="hosts, reached by ssh, and how many ranks each has")
    hosts.add_argument("-hostfile", "--hostfile", metavar="FILE", help="a file of them, one a line: HOST slots=SLOTS")
    parser.add_argument("-p", "--ssh-port", type=int, metavar="PORT", help="of sshd on the hosts")
    parser.add_argument("-i", "--ssh-identity-file", metavar="FILE", help="of the key for ssh")
    parser.add_argument("--no-prefix", action="store_true", help="show lines without \"[RANK] \" in front")
    parser.add_argument("--elastic", action="store_true",
                        help="for scripts with hvd.elastic.run: ranks go on without those that are lost")
    parser.add_argument("--min-np", type=int, default=1, metavar="K",
                        help="with --elastic: end when fewer than K ranks are left (1)")
    parser.add_argument("--restarts", type=int, default=0, metavar="R",
                        help="with --elastic: start lost ranks again, R times in all (0)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what each rank runs")
    options = parser.parse_args(arguments)
    if options.num_proc < 1 or not 1 <= options.min_np <= options.num_proc or options.restarts < 0:
        parser.error("-np is at least 1, --min-np between 1 and -np, --restarts at least 0")
    if options.elastic and (options.hosts or options.hostfile):
        parser.error("--elastic is for this machine; on several, start the ranks by hand (docs/horovod.md)")
    if not options.command:
        parser.error("a command is missing, as in: python -m bimetal.horovod.run -np 2 python train.py")
    return options


def launch_command(options: argparse.Namespace) -> list[str]:
    """`bimetal launch` for the same. Raises bimetal.Error ``unsupported`` where nothing has it."""
    command = [program.launcher(), "launch", "-n", str(options.num_proc)]
    command += ["-H", options.hosts] if options.hosts else ["--hostfile", options.hostfile]
    if options.ssh_port:
        command += ["--ssh-port", str(options.ssh_port)]
    if options.ssh_identity_file:
        command += ["--ssh-option", f"IdentityFile={options.ssh_identity_file}"]
    return [*command, *(["--no-prefix"] if options.no_prefix else []), "--", *options.command]


class Ranks:
    """The processes, gone when this is left."""

    def __init__(self, options: argparse.Namespace):
        self._options = options
        self._store = serve_store("127.0.0.1", 0, timeout=300)
        self._restarts = options.restarts
        self._ranks = LocalRanks(prefixed=not options.no_prefix, each_by_itself=options.elastic)
        for rank in range(options.num_proc):
            self._start(rank)

    def _start(self, rank: int) -> None:
        count = str(self._options.num_proc)
        place = {"RANK": str(rank), "WORLD_SIZE": count, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": count,
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._store.port),
                 "TORCHELASTIC_USE_AGENT_STORE": "True"}
        self._ranks.start(rank, self._options.command, {**os.environ, **place})

    def wait(self) -> int:
        """Until all have ended. The exit status of the whole."""
        status = 0
        while self._ranks:
            ended = self._ranks.ended()
            for number, (rank, code) in enumerate(ended):
                if code != 0 and not self._goes_on_without(rank, code, len(self._ranks) + len(ended) - number - 1):
                    self._ranks.name_cause(rank)
                    return as_exit_status(code)
                status = as_exit_status(code)
            time.sleep(0.05)
        return status

    def _goes_on_without(self, rank: int, status: int, left: int) -> bool:
        how = how_it_ended(status)
        if not self._options.elastic:
            _say(f"rank {rank} {how}; the others are ended")
            return False
        if self._restarts:
            self._restarts -= 1
            _say(f"rank {rank} {how}; it is started again")
            self._start(rank)
            return True
        _say(f"rank {rank} {how}; {left} are left")
        return left >= self._options.min_np

    def end(self) -> None:
        if others := self._ranks.end():
            _say(f"left out: what rank {', '.join(map(str, others))} said of it")


def _say(text: str) -> None:
    print(f"bimetal.horovod.run: {text}", file=sys.stderr, flush=True)


def _interrupt(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if options.hosts or options.hostfile:
        try:
            command = launch_command(options)
        except Error as missing:
            _say(str(missing))
            return EXIT_STATUSES[missing.code]
        os.execv(command[0], command)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        ranks = Ranks(options)
    except FileNotFoundError:
        _say(f"there is no command {options.command[0]!r}")
        return 127
    try:
        return ranks.wait()
    finally:
        ranks.end()


if __name__ == "__main__":
    sys.exit(main())
