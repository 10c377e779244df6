"""bimetal: what needs no program of its own. `bimetal token` makes a job's secret, `bimetal launch` starts ranks on this
machine, `bimetal doctor` looks for what may keep machines from working together."""

from __future__ import annotations

import argparse
import sys

from bimetal import _build
from bimetal._errors import EXIT_STATUSES, INTERRUPTED, Error
from bimetal.command import doctor, launch, token

_MORE = """Training by a job file (bimetal train, join, plan, serve and the rest) is the program's, which is built from the
sources: docs/install.md. Scripts with torch.distributed need no more than this package."""


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bimetal", description=__doc__, epilog=_MORE)
    parser.add_argument("--version", action="version", version=f"bimetal {_build.VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for part in (token, launch, doctor):
        part.add_to(commands)
    arguments = parser.parse_args(words)
    try:
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
