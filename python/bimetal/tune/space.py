"""The space of a search: the words after --grid and --random, as values of the job's keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bimetal._errors import Error
from bimetal.runs.job import Job

if TYPE_CHECKING:
    import optuna

_RANGE = re.compile(r"(?P<log>log:)?(?P<low>[^.\s]*\.?[^.\s]*?)\.\.(?P<high>\S+)")
_OURS = {"checkpoint.dir": "each trial has a folder of its own; --dir and --save-best say where they are kept",
         "cluster.workers": "--worker says what trials run on",
         "data.validation": "trials are compared by what it holds out",
         "data.validation_seed": "trials are compared by what it holds out"}


@dataclass(frozen=True)
class Choice:
    """A key that takes one of some values, each as it would follow ``--set KEY=``."""

    key: str
    values: tuple[str, ...]

    def ends(self) -> Sequence[str]:
        return self.values

    def suggest(self, trial: optuna.Trial) -> str:
        return trial.suggest_categorical(self.key, self.values)

    def value_of(self, setting: str) -> str:
        """Optuna's value, from the one that ``suggest`` made."""
        return setting


@dataclass(frozen=True)
class Range:
    """A key that takes any number from low to high, both included; with ``log`` each order of magnitude alike."""

    key: str
    low: str
    high: str
    log: bool
    whole: bool = False

    def ends(self) -> Sequence[str]:
        return (self.low, self.high)

    def suggest(self, trial: optuna.Trial) -> str:
        if self.whole:
            return str(trial.suggest_int(self.key, int(self.low, 0), int(self.high, 0), log=self.log))
        low, high = float(self.low), float(self.high)
        return _short(trial.suggest_float(self.key, low, high, log=self.log), low, high)

    def value_of(self, setting: str) -> int | float:
        """Optuna's value, from the one that ``suggest`` made."""
        return int(setting) if self.whole else float(setting)


Dimension = Choice | Range


def grid(words: Iterable[str], job: Job) -> list[Choice]:
    """Reads ``KEY=VALUE,VALUE,…`` each. bimetal.Error for keys that can't be searched; unknown keys as ``--set`` says
    it."""
    found = [Choice(key, _values(values)) for key, values in map(_split, words)]
    _check(found, job)
    return found


def random(words: Iterable[str], job: Job) -> list[Dimension]:
    """Reads ``KEY=LOW..HIGH``, ``KEY=log:LOW..HIGH`` or ``KEY=VALUE,VALUE,…`` each."""
    found: list[Dimension] = []
    for key, text in map(_split, words):
        if ".." not in text or text[0] in "[\"'":
            found.append(Choice(key, _values(text)))
            continue
        matched = _RANGE.fullmatch(text)
        if not matched:
            raise Error(f"--random {key}={text}: expected LOW..HIGH, as in 0.8..0.99 or log:1e-4..1e-1",
                        "invalid_argument")
        found.append(Range(key, matched["low"], matched["high"], bool(matched["log"])))
    _check(found, job)
    return [_typed(dimension, job) if isinstance(dimension, Range) else dimension for dimension in found]


def _split(word: str) -> tuple[str, str]:
    key, equals, text = word.partition("=")
    if not equals or "." not in key or not text:
        raise Error(f"{word!r}: expected section.key=what to try, as in train.learning_rate=0.01,0.1",
                    "invalid_argument")
    if key in _OURS:
        raise Error(f"{key} cannot be searched: {_OURS[key]}", "invalid_argument")
    return key, text


def _values(text: str) -> tuple[str, ...]:
    """Parted at commas that stand in no brackets and no quotes; the same twice counts once."""
    parts, depth, quote, word = [], 0, "", ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        depth += (not quote) * ((character == "[") - (character == "]"))
        if character == "," and not quote and depth == 0:
            parts.append(word)
            word = ""
        else:
            word += character
    return tuple(dict.fromkeys([*parts, word]))


def _check(found: Sequence[Dimension], job: Job) -> None:
    keys = [dimension.key for dimension in found]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise Error(f"{twice} is searched twice: put all of its values into one", "invalid_argument")
    job.check([f"{dimension.key}={value}" for dimension in found for value in dimension.ends()])


def _typed(dimension: Range, job: Job) -> Range:
    """Whether it is of whole numbers: the key says so."""
    value = job.value(dimension.key)
    problem = None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        problem = "the key takes no numbers: list its values, parted by commas"
    elif _number(dimension.low) > _number(dimension.high):
        problem = "LOW is above HIGH"
    elif dimension.log and _number(dimension.low) <= 0:
        problem = "log: needs a LOW above 0"
    if problem:
        text = f"{'log:' if dimension.log else ''}{dimension.low}..{dimension.high}"
        raise Error(f"--random {dimension.key}={text}: {problem}", "invalid_argument")
    return Range(dimension.key, dimension.low, dimension.high, dimension.log, whole=isinstance(value, int))


def _short(value: float, low: float, high: float) -> str:
    """With as few digits as tell it apart within the range: nobody wants to read, or to type again, seventeen."""
    for digits in range(4, 17):
        short = f"{value:.{digits}g}"
        if abs(float(short) - value) <= (high - low) / 1000 and low <= float(short) <= high:
            return repr(float(short))
    return repr(value)


def _number(text: str) -> float:
    """Reads a number in TOML."""
    return float(int(text, 0)) if text.lower().startswith("0x") else float(text)
