"""Starts ranks as horovodrun does: python -m bimetal.horovod.run -np 4 [-H HOST:SLOTS,…] python train.py

`bimetal launch` does it, here and on hosts that it reaches by ssh: its options by Horovod's names.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from bimetal._errors import EXIT_STATUSES, Error
from bimetal.command import program


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
                        help="with --elastic: fewer than K ranks wait for others, HOROVOD_ELASTIC_TIMEOUT seconds at most (1)")
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
    for name, value in (("-H", options.hosts), ("--hostfile", options.hostfile), ("--ssh-port", options.ssh_port),
                        ("--ssh-option", options.ssh_identity_file and f"IdentityFile={options.ssh_identity_file}"),
                        ("--restart", options.restarts)):
        command += [name, str(value)] if value else []
    return [*command, *([f"--elastic={options.min_np}"] if options.elastic else []), *(["--no-prefix"] if options.no_prefix else []), "--",
            *options.command]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        command = launch_command(options)
    except Error as missing:
        print(f"bimetal.horovod.run: {missing}", file=sys.stderr)
        return EXIT_STATUSES[missing.code]
    os.execve(command[0], command, {"BIMETAL_PYTHON": sys.executable, **os.environ})


if __name__ == "__main__":
    sys.exit(main())
