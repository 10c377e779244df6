"""bimetal tune JOB.toml: searches the keys of a job file, many trials at once, each on one device."""

from __future__ import annotations

import argparse
import importlib.util
import math
import pathlib
import sys
import time
from typing import Any

from bimetal._errors import Error
from bimetal.pool import command
from bimetal.pool.command import Screen
from bimetal.pool.pool import Pool
from bimetal.runs.job import Job
from bimetal.tune import record, space
from bimetal.tune.trial import is_metric

_EXAMPLES = """Examples:
  bimetal tune job.toml --grid train.learning_rate=0.01,0.05,0.1 --grid train.momentum=0,0.9
  bimetal tune job.toml --random train.learning_rate=log:1e-3..1e-1 train.momentum=0.8..0.99 --trials 20
  bimetal tune job.toml --random train.learning_rate=log:1e-4..1 --trials 60 --asha --save-best runs/best
  bimetal tune job.toml --grid train.optimizer=sgd,adam --worker cuda:0 --worker cpu:threads=8 --report tuned.json

Any key of docs/job_file.md can be searched. docs/tuning.md tells more."""
_HELD_OUT = 0.1  # of the training data, where the job does not say


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bimetal tune", description=__doc__, epilog=_EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", metavar="JOB.toml", help="the job file")
    parser.add_argument("--grid", action="extend", nargs="+", default=[], metavar="KEY=VALUE,…",
                        help="try every combination of these values")
    parser.add_argument("--random", action="extend", nargs="+", default=[], metavar="KEY=LOW..HIGH",
                        help="draw from this range, from log:LOW..HIGH, or from VALUE,VALUE,…")
    parser.add_argument("--trials", type=_at_least(1), metavar="N", help="how many draws of --random")
    parser.add_argument("--sampler", choices=("random", "tpe"), default="random",
                        help="how --random draws: each time anew, or where results have been good (default: random)")
    parser.add_argument("--metric", type=_metric, metavar="NAME",
                        help="what makes a trial good: validation_accuracy (the default), another figure of the report "
                             "that begins with validation_, train_loss, or one with test_")
    parser.add_argument("--asha", action="store_true",
                        help="stop most trials early: asynchronous successive halving, by train.steps if the job sets "
                             "it, else by train.epochs")
    parser.add_argument("--reduction", type=_at_least(2), default=3, metavar="N",
                        help="--asha: one trial in so many goes on from each rung (default: 3)")
    parser.add_argument("--min-resource", type=_at_least(1), metavar="N",
                        help="--asha: epochs or steps of every trial (default: such that there are three rungs)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws (default: 0)")
    parser.add_argument("--dir", type=pathlib.Path, metavar="DIR",
                        help="keep every trial's report and checkpoint here, and go on with the search that lies here "
                             "already (default: a temporary folder)")
    parser.add_argument("--save-best", type=pathlib.Path, metavar="DIR", help="put the best trial's checkpoint here")
    command.add_options(parser)
    return parser


def _metric(text: str) -> str:
    if not is_metric(text):
        raise argparse.ArgumentTypeError(f"{text} is no figure of reports: take validation_accuracy, another "
                                         "validation_… or test_…, or train_loss")
    return text


def _at_least(least: int) -> Any:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return value

    return number


def _options(arguments: argparse.Namespace, job: Job, folder: pathlib.Path) -> Any:
    from bimetal.tune.search import Options

    if bool(arguments.grid) == bool(arguments.random):
        raise Error("say what to search: either --grid KEY=VALUE,… or --random KEY=LOW..HIGH; a key of --random may "
                    "list values, too", "invalid_argument")
    if arguments.grid:
        if arguments.trials or arguments.sampler != "random":
            raise Error("--grid tries every combination: --trials and --sampler go with --random", "invalid_argument")
        dimensions: Any = space.grid(arguments.grid, job)
        sampler, trials = "grid", math.prod(len(dimension.values) for dimension in dimensions)
    else:
        if not arguments.trials:
            raise Error("--random needs --trials N", "invalid_argument")
        dimensions = space.random(arguments.random, job)
        sampler, trials = arguments.sampler, arguments.trials
    if arguments.metric != "train_loss" and not job.value("train.evaluate"):
        raise Error("this job has train.evaluate = false: --set train.evaluate=true, or --metric train_loss",
                    "invalid_argument")
    return Options(dimensions, sampler, trials, arguments.metric, arguments.seed, folder,
                   checkpoints=bool(arguments.dir or arguments.save_best), every=bool(arguments.dir))


def _job(arguments: argparse.Namespace) -> tuple[Job, list[str]]:
    """The job, with a part of its training data held out if it is to be judged by one, and what to say of that; sets
    --metric."""
    job = Job(arguments.job, arguments.set)
    servers = job.value("parallel.mode") == "server"  # which evaluate with one data set alone
    arguments.metric = arguments.metric or ("test_accuracy" if servers else "validation_accuracy")
    if arguments.metric.startswith("test_"):
        return job, [f"note: {arguments.metric} chooses by the test data, which makes the best trial look better than it "
                     "is"]
    if not arguments.metric.startswith("validation_") or job.value("data.validation"):
        return job, []
    job.change("data.validation", _HELD_OUT)
    return job, [f"{_HELD_OUT:.0%} of the training data are held out to choose by (data.validation)"]


def _search(arguments: argparse.Namespace, job: Job, folder: pathlib.Path, screen: Screen) -> Any:
    from bimetal.tune.halving import Halving, Ladder, fixed_by
    from bimetal.tune.search import Search

    options = _options(arguments, job, folder)
    if not arguments.asha:
        return Search(job, options, screen.say)
    ladder = Ladder.of(job, arguments.min_resource, arguments.reduction)
    fixed_by(ladder, [dimension.key for dimension in options.dimensions])
    return Halving(job, options, ladder, screen.say)


def _require_optuna() -> None:
    """Raises ImportError, which says what to type, where Optuna is missing: before anything of it is imported."""
    if importlib.util.find_spec("optuna") is None:
        raise ImportError(f"bimetal tune needs Optuna, which is not installed in {sys.executable}: {sys.executable} -m pip install "
                          '"optuna>=4" (BIMETAL_PYTHON names another interpreter)', name="optuna")


def _run(arguments: argparse.Namespace) -> int:
    _require_optuna()
    command.confine(arguments, "bimetal.tune")
    job, notes = _job(arguments)
    command.require_writable(arguments.report)
    if not (arguments.dir and record.is_search(arguments.dir)):  # which goes on
        command.require_new(arguments.dir)
    screen = Screen(arguments.json)
    with command.work_folder(arguments.dir) as folder:
        search = _search(arguments, job, folder, screen)
        with command.host_of(arguments, screen.say) as host:
            for note in notes:
                screen.say(note)
            began = time.monotonic()
            pool: Pool | None = None
            interrupted = False
            try:
                pool = command.pool_on(host, job, lambda at: screen.show(command.progress(search.summary(), at)),
                                       screen.say, arguments.ray is not None)
                pool.work_through(search)
            except KeyboardInterrupt:
                interrupted = True
            screen.clear()
            if pool is None:
                return command.interrupted()
            search.close()
            _conclude(arguments, search, pool, screen, time.monotonic() - began, interrupted)
    if interrupted:
        return command.interrupted()
    return 0 if search.best else command.all_failed("trial", search.trials)


def _conclude(arguments: argparse.Namespace, search: Any, pool: Pool, screen: Screen, elapsed_s: float,
              interrupted: bool) -> None:
    from bimetal.tune import result

    for line in ["", *result.table(search)]:
        screen.say(line)
    best, checkpoint = search.best, None
    if best:
        screen.say(f"\nbest: {best.name}, {arguments.metric} {best.value:.4f}\n  {result.repeat(search, best)}")
        if arguments.metric.startswith("validation_") and (tested := result.tested(best)):
            screen.say(f"  with the test data, which had no say: {tested}")
        if arguments.save_best and (best.state == "done" or not interrupted):
            checkpoint = result.keep_checkpoint(best, arguments.save_best)
            screen.say(f"  its checkpoint: {checkpoint}")
    command.report(arguments, result.report(search, pool, elapsed_s, interrupted, checkpoint))


def main() -> int:
    arguments = _arguments().parse_args()
    return command.run_command(lambda: _run(arguments))


if __name__ == "__main__":
    sys.exit(main())
