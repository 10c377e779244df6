"""python -m bimetal.checkpoints: what `bimetal export --format dcp|universal`, `bimetal export --push` and `bimetal checkpoint
import` start."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

from bimetal._errors import error
from bimetal.checkpoints import dcp, push, universal, whole
from bimetal.command import ending

_FORMATS = {"dcp": dcp, "universal": universal}


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bimetal.checkpoints", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    export = commands.add_parser("export", help="write a checkpoint as another program has them")
    export.add_argument("run", type=pathlib.Path)
    export.add_argument("--out", type=pathlib.Path, required=True)
    export.add_argument("--format", choices=_FORMATS, required=True)
    taken = commands.add_parser("import", help="make a checkpoint of another program's")
    taken.add_argument("source", type=pathlib.Path)
    taken.add_argument("--out", type=pathlib.Path, required=True)
    taken.add_argument("--optimizer", default="")
    taken.add_argument("--seed", type=int, default=1)
    pushed = commands.add_parser("push", help="bring a folder to a hub")
    pushed.add_argument("folder", type=pathlib.Path)
    pushed.add_argument("repo")
    pushed.add_argument("--private", action="store_true")
    for one in (export, taken, pushed):
        one.add_argument("--json", action="store_true")
    return parser


Done = tuple[str, dict[str, Any]]  # for people, and for programs


def _export(arguments: argparse.Namespace) -> Done:
    saved = whole.read(arguments.run)
    _FORMATS[arguments.format].write(saved, arguments.out)
    return (f"{arguments.out}: {len(saved.model)} tensors and the optimizer's states of step {saved.step}",
            {"path": str(arguments.out), "tensors": len(saved.model), "step": saved.step})


def _import(arguments: argparse.Namespace) -> Done:
    source = arguments.source
    for module in _FORMATS.values():
        if module.is_one(source):
            found = module.read(source, arguments.seed, arguments.optimizer)
            whole.write(found, arguments.out)
            return (f"{arguments.out}: {len(found.model)} tensors of step {found.step}, optimizer {found.kind}, of {source}",
                    {"path": str(arguments.out), "tensors": len(found.model), "step": found.step, "optimizer": found.kind})
    raise error(f"{source} is neither a folder of torch.distributed.checkpoint (it has no .metadata) nor a universal checkpoint of "
                "DeepSpeed (it has no latest_universal and no zero)", "invalid_argument")


def _push(arguments: argparse.Namespace) -> Done:
    address, files = push.push(arguments.folder, arguments.repo, arguments.private)
    return f"{address}: {', '.join(files)}", {"address": address, "path": str(arguments.folder), "files": files}


def _run(arguments: argparse.Namespace) -> Done:
    if arguments.command == "push":
        return _push(arguments)
    return _export(arguments) if arguments.command == "export" else _import(arguments)


def main() -> int:
    arguments = _arguments().parse_args()

    def command() -> int:
        text, facts = _run(arguments)
        print(json.dumps(facts, indent=2) if arguments.json else text)
        return 0

    return ending.status_of(command)


if __name__ == "__main__":
    sys.exit(main())
