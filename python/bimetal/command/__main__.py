"""bimetal: the commands that need no torch of their own. `bimetal token` makes a job's secret, `bimetal doctor` looks
for what may keep machines from working together, `bimetal launch` starts ranks, `bimetal bench` measures the links
between them, and `bimetal top` watches a job. All other commands are the program's."""

from __future__ import annotations

import argparse
import sys

from bimetal import _build
from bimetal.command import doctor, ending, lite, program, token

_LITES = {"launch": "start a command as the ranks of a job", "bench": "measure the links between ranks", "top": "watch a job",
          "join": "bring ranks to a script that another machine shares", "machines": "list the machines that were let in by a code, or forget one"}


def _more() -> str:
    here = lite.COMMANDS if lite.is_here() else ()
    others = ", ".join(name for name in program.COMMANDS if name not in here)
    return f"""Training by a job file is the program's ({others}), as are further options of
token: {program.how_to_get()}. Scripts with torch.distributed need no more than this package."""


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bimetal", description=__doc__, epilog=_more())
    parser.add_argument("--version", action="version", version=f"bimetal {_build.VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for part in (token, doctor):
        part.add_to(commands)
    for name, what in _LITES.items() if lite.is_here() else ():
        if name in lite.COMMANDS:
            commands.add_parser(name, help=what)  # main() hands them on before they are parsed here
    words = sys.argv[1:] if words is None else words
    return ending.status_of(lambda: _run(parser, words))


def _run(parser: argparse.ArgumentParser, words: list[str]) -> int:
    if words and _is_the_programs(words):
        return program.run(words)
    arguments, unknown = parser.parse_known_args(words)
    if not unknown:
        return arguments.run(arguments)
    if arguments.command != "token":
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    program.find(f"`bimetal token` knows no {unknown[0]} without the program")
    return program.run(words)


def _is_the_programs(words: list[str]) -> bool:
    return words[0] in (*program.COMMANDS, lite.AGENT) or (words[0] == "token" and program.is_here())


if __name__ == "__main__":
    sys.exit(main())
