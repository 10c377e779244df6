"""bimetal: what needs no program of its own. `bimetal token` makes a job's secret, `bimetal launch` starts ranks on this
machine, `bimetal doctor` looks for what may keep machines from working together. What else there is, is the program's."""

from __future__ import annotations

import argparse
import sys

from bimetal import _build
from bimetal._errors import EXIT_STATUSES, INTERRUPTED, Error
from bimetal.command import doctor, launch, program, token

_MORE = f"""Training by a job file is the program's ({', '.join(program.COMMANDS)}): pip install 'bimetal[train]' where
there is a wheel of it, else docs/install.md. Scripts with torch.distributed need no more than this package."""


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bimetal", description=__doc__, epilog=_MORE)
    parser.add_argument("--version", action="version", version=f"bimetal {_build.VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for part in (token, launch, doctor):
        part.add_to(commands)
    words = sys.argv[1:] if words is None else words
    try:
        if words and words[0] in program.COMMANDS:
            return program.run(words)
        arguments = parser.parse_args(words)
        return arguments.run(arguments)
    except Error as error:
        print(f"bimetal: error: {error}", file=sys.stderr)
        return EXIT_STATUSES.get(error.code, 1)
    except OSError as error:
        print(f"bimetal: error: {error}", file=sys.stderr)
        return EXIT_STATUSES["system"]
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
