"""How a search ends: the table of its trials, the command that repeats the best, the report."""

from __future__ import annotations

import pathlib
import shlex
from typing import Any

from bimetal._errors import Error
from bimetal.pool.command import aligned, clock
from bimetal.pool.pool import Pool
from bimetal.runs import folders, saved
from bimetal.tune.search import Search
from bimetal.tune.trial import Trial


def table(search: Search) -> list[str]:
    """Trials from best to worst; the reasons of those that have failed at the end."""
    keys = [dimension.key for dimension in search.options.dimensions]
    counted = [search.counts] if search.counts else []
    trials = sorted(search.trials, key=search.rank)
    rows = [["trial", "state", "device", search.options.metric, *counted, "time", *keys]]
    for trial in trials:
        value = "–" if trial.value is None else f"{trial.value:.4f}"
        trained = ["–" if trial.trained is None else str(trial.trained)] if counted else []
        rows.append([str(trial.number), trial.state, trial.workers[-1] if trial.workers else "–", value, *trained,
                     clock(trial.seconds), *(trial.settings[key] for key in keys)])
    failed = [f"{trial.name} failed: {trial.failure}" for trial in trials if trial.failure]
    return aligned(rows, 3) + failed


def tested(trial: Trial) -> str:
    """The figures on test data of a trial that was chosen by other data; empty: none."""
    names = [name for name in trial.report if name.startswith("test_") and trial.report[name] is not None]
    return ", ".join(f"{name} {trial.report[name]:.4f}" for name in names)


def repeat(search: Search, trial: Trial) -> str:
    """The command that trains with a trial's settings again."""
    settings = [*search.job.settings, *(f"{key}={value}" for key, value in trial.settings.items())]
    words = ["bimetal", "train", str(search.job.path)]
    for setting in settings:
        words += ["--set", setting]
    return shlex.join(words)


def keep_checkpoint(trial: Trial, target: pathlib.Path) -> pathlib.Path:
    """Copies the trial's best checkpoint, or where none is kept as such its newest, into a folder. bimetal.Error with the
    path if that cannot be."""
    found = saved.best(trial.folder / "checkpoints")
    if found is None:
        raise Error(f"{trial.name} has left no checkpoint to keep", "internal")
    try:
        return folders.copy_whole(found, target / found.name)
    except OSError as bad:
        raise Error(f"cannot keep the best checkpoint as {target / found.name}: {bad}", "system") from bad


def report(search: Search, pool: Pool, elapsed_s: float, interrupted: bool,
           checkpoint: pathlib.Path | None) -> dict[str, Any]:
    """The JSON that docs/tuning.md describes."""
    best = search.best
    devices = [{"name": device.name, "worker": device.worker, "samples_per_s": pool.speeds.get(device.kind)}
               for device in pool.devices]
    return {"job": str(search.job.path), "metric": search.options.metric, "sampler": search.options.sampler,
            "seed": search.options.seed, "interrupted": interrupted, "elapsed_s": elapsed_s, "devices": devices,
            "best": best and {**best.summary(), "checkpoint": checkpoint and str(checkpoint),
                              "command": repeat(search, best)},
            "trials": [trial.summary() for trial in search.trials]}
