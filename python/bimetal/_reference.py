"""python -m bimetal._reference: the `--help` of Python's commands as one line of JSON, from which the program makes
completion and manual pages."""

from __future__ import annotations

import argparse
import importlib
import json
from typing import Any

from bimetal.command import doctor

_COMMANDS = ("data", "ensemble", "ray", "tune")


def _doctors() -> argparse.ArgumentParser:
    commands = argparse.ArgumentParser().add_subparsers()
    doctor.add_to(commands)
    parser: argparse.ArgumentParser = commands.choices["doctor"]
    return parser


def described(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Its options and positionals, and the same of its commands."""
    formatter = parser._get_formatter()
    options, commands = [], {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            what = {choice.dest: choice.help or "" for choice in action._choices_actions}
            commands = {name: {"what": what.get(name, "")} | described(one) for name, one in action.choices.items()}
        elif action.help != argparse.SUPPRESS:
            metavar = action.metavar if isinstance(action.metavar, str) else "|".join(map(str, action.choices or ()))
            options.append({"names": action.option_strings or [action.dest], "what": formatter._expand_help(action) if action.help else "",
                            "value": "" if action.nargs == 0 else metavar or action.dest.upper()})
    return {"options": options, "commands": commands, "notes": parser.epilog or ""}


def main() -> None:
    parsers = {"doctor": _doctors()}
    for name in _COMMANDS:
        try:
            parsers[name] = importlib.import_module(f"bimetal.{name}.__main__")._arguments()
        except ImportError:
            continue  # without Ray, say: the command tells itself what to install
    print(json.dumps({name: described(parser) for name, parser in parsers.items()}))


if __name__ == "__main__":
    main()
