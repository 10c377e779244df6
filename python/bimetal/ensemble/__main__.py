"""bimetal ensemble JOB.toml: trains independent models in parallel and averages what they predict."""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from typing import Any

from bimetal._errors import Error
from bimetal.ensemble import members
from bimetal.pool import command
from bimetal.pool.command import Screen
from bimetal.pool.pool import Pool
from bimetal.runs.job import Job

_EXAMPLES = """Examples:
  bimetal ensemble job.toml --members 5
  bimetal ensemble job.toml --members 8 --bagging --worker cuda:0 --worker cpu:threads=8 --dir runs/eight
  bimetal ensemble --predict runs/eight --predictions eight.safetensors

docs/tuning.md tells more."""


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bimetal ensemble", description=__doc__, epilog=_EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", nargs="?", metavar="JOB.toml", help="the job file that each member trains")
    parser.add_argument("--members", type=int, metavar="N", help="how many models, with the seeds train.seed and on")
    parser.add_argument("--bagging", action="store_true",
                        help="each trains on samples of its own, drawn with replacement from the training set")
    parser.add_argument("--dir", type=pathlib.Path, metavar="DIR",
                        help="where the members are kept (default: runs/NAME-ensemble, NAME being the job file's)")
    parser.add_argument("--predict", type=pathlib.Path, metavar="DIR",
                        help="train nothing: predict with the ensemble there")
    parser.add_argument("--predictions", type=pathlib.Path, metavar="FILE.safetensors",
                        help="write the mean probabilities of each test sample here, and the labels")
    command.add_options(parser)
    return parser


def _check(arguments: argparse.Namespace) -> None:
    if arguments.predict:
        if arguments.job or arguments.members or arguments.bagging or arguments.dir or arguments.set:
            raise Error("--predict goes with an ensemble that is there: job file, --members, --bagging, --dir and --set "
                        "are its own", "invalid_argument")
    elif not arguments.job or not arguments.members or arguments.members < 1:
        raise Error("say what to train: bimetal ensemble JOB.toml --members N, or --predict DIR", "invalid_argument")
    command.require_writable(arguments.report)
    command.require_writable(arguments.predictions)


def _run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    command.confine(arguments, "bimetal.ensemble")
    screen = Screen(arguments.json)
    if arguments.predict:
        kept = members.read(arguments.predict)
        with command.host_of(arguments, screen.say) as host:
            return _predict(arguments, Pool(host), kept, screen, {})
    job = Job(arguments.job, arguments.set)
    folder = arguments.dir or pathlib.Path("runs") / f"{job.path.stem}-ensemble"
    if members.exists(folder):
        raise Error(f"there is an ensemble in {folder}: use it with --predict {folder}, or name another --dir",
                    "invalid_argument")
    command.require_new(folder)
    with command.work_folder(folder) as folder, command.host_of(arguments, screen.say) as host:
        return _train(arguments, job, folder, host, screen)


def _train(arguments: argparse.Namespace, job: Job, folder: pathlib.Path, host: Any, screen: Screen) -> int:
    began = time.monotonic()
    source = members.Members(job, folder, arguments.members, arguments.bagging, screen.say)
    pool = command.pool_on(host, job, lambda at: screen.show(command.progress(source.summary(), at)), screen.say,
                           arguments.ray is not None)
    try:
        pool.work_through(source)
    finally:
        screen.clear()
        # Members that are there can be used, even after Ctrl-C.
        kept = members.write(job, folder, source.all, arguments.bagging) if any(
            member.state == "done" for member in source.all) else None
    if kept is None:
        return command.all_failed("member", source.all)
    trained = {"trained": [{"name": member.name, "seed": member.seed, "state": member.state, "seconds": member.seconds,
                            "worker": member.worker, "figures": member.figures, "error": member.failure}
                           for member in source.all],
               "bagging": arguments.bagging, "elapsed_s": time.monotonic() - began}
    return _predict(arguments, pool, kept, screen, trained)


def _predict(arguments: argparse.Namespace, pool: Pool, kept: members.Kept, screen: Screen,
             trained: dict[str, Any]) -> int:
    report = members.predict(pool, kept)
    for line in ["", *members.table(kept, report)]:
        screen.say(line)
    for entry in trained.get("trained", []):
        if entry["error"]:
            screen.say(f"{entry['name']} failed: {entry['error']}")
    screen.say(f"\nkept in {kept.folder}; use it again with bimetal ensemble --predict {kept.folder}")
    if arguments.predictions:
        members.copy_predictions(kept, arguments.predictions)
    figures = [{"name": name, **{key: value for key, value in entry.items() if key != "checkpoint"}}
               for name, entry in zip(kept.members, report["checkpoints"])]
    command.report(arguments, {"folder": str(kept.folder), "samples": report["samples"], "members": figures,
                               "ensemble": report["ensemble"], **trained})
    return 0


def main() -> int:
    arguments = _arguments().parse_args()
    return command.run_command(lambda: _run(arguments))


if __name__ == "__main__":
    sys.exit(main())
