"""``python -m bimetal.examples``: lists the examples that come with the package, and copies them."""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import shutil
import sys

from bimetal.examples import FOLDER, names, summary


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bimetal.examples", description="Lists the examples, or copies some of them.")
    parser.add_argument("example", nargs="*", help="one to copy, or a folder of them, as the list has it; none: the list")
    parser.add_argument("--all", action="store_true", help="copy all of them")
    parser.add_argument("--to", type=pathlib.Path, default=pathlib.Path("examples"), metavar="FOLDER",
                        help="where to (default: examples)")
    args = parser.parse_args()
    known = names()
    if not args.example and not args.all:
        width = max(map(len, known))
        with contextlib.suppress(BrokenPipeError):  # as of `| head`
            print("\n".join([*(f"{name:<{width}}  {summary(name)}" for name in known),
                             "\npython -m bimetal.examples NAME… [--to FOLDER] copies; --all copies all of them."]), flush=True)
        return 0
    wanted = known if args.all else [name for name in known if any(
        name == asked or name.startswith(asked.rstrip("/") + "/") for asked in args.example)]
    for asked in args.example:
        if not any(name == asked or name.startswith(asked.rstrip("/") + "/") for name in known):
            print(f"bimetal: error: there is no example '{asked}': python -m bimetal.examples lists them", file=sys.stderr)
            return 2
    there = [name for name in wanted if (args.to / name).exists()]
    if there:
        print(f"bimetal: error: {args.to / there[0]} is there already: move it, or copy --to another folder", file=sys.stderr)
        return 2
    for name in wanted:
        (args.to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(FOLDER / name, args.to / name)
        print(args.to / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
