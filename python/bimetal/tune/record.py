"""The record that a search leaves in its folder, so that the same command goes on with it: its settings, and each
trial's state whenever a run of it has ended."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from bimetal._errors import Error
from bimetal.pool import command
from bimetal.tune.trial import Trial

_SEARCH = "search.json"
_TRIAL = "trial.json"
_FIELDS = ("settings", "state", "value", "trained", "seconds", "workers", "rungs", "report", "failure", "code")


def is_search(folder: pathlib.Path) -> bool:
    """Whether a search has begun there."""
    return (folder / _SEARCH).is_file()


def begin(folder: pathlib.Path, facts: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Notes the search's facts. Returns the trials that the same search has left there, by number.

    Raises:
        bimetal.Error: where another one lies there, with the first thing that differs.
    """
    before = _read(folder / _SEARCH)
    if before is None:
        command.write_json(folder / _SEARCH, dict(facts))
        return {}
    facts = json.loads(json.dumps(facts))
    for name in {**facts, **before}:
        if facts.get(name) != before.get(name):
            raise Error(f"another search has been begun in {folder}: its {name} is {_short(before.get(name))}, this one's "
                        f"{_short(facts.get(name))}; name another --dir, or repeat the command that began it",
                        "invalid_argument")
    trials = {}
    for path in sorted(folder.glob(f"trial-*/{_TRIAL}")):
        number = path.parent.name.partition("-")[2]
        if number.isdigit() and (known := _read(path)) is not None:
            trials[int(number)] = known
    return trials


def write(trial: Trial) -> None:
    """Notes where a trial is."""
    command.write_json(trial.folder / _TRIAL, {name: getattr(trial, name) for name in _FIELDS})


def take(trial: Trial, known: Mapping[str, Any]) -> bool:
    """Restores a trial. False for one that is to begin again: it had not come to an end, or failed for a reason that
    may be gone. bimetal.Error if it had other settings."""
    if known["settings"] != trial.settings:
        raise Error(f"{trial.folder / _TRIAL} has {known['settings']} where this search would try {trial.settings}: was it "
                    "made by another version of Optuna? Name another --dir", "invalid_argument")
    if known["state"] not in ("done", "paused") and known["code"] != "not_finite":
        return False
    for name in _FIELDS:
        setattr(trial, name, known[name])
    return True


def _read(path: pathlib.Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as damaged:
        raise Error(f"{path} is damaged: {damaged}", "corrupt_data") from damaged


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
