"""Which checkpoints a folder holds, in the order in which they were saved. File times say nothing about that: clocks are
set back, and copies are as old as who copies makes them.

A job file's are ``step-00000470``, and state.json of each has its place in that order; a train loop's are
``checkpoint_000012``, numbered in the order of their making. docs/checkpoints.md.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
from typing import Any

from bimetal._errors import Error, error
from bimetal.runs import folders

BEST = "best"  # a folder of one checkpoint among the others

_MANIFEST = "state.json"
_PROGRAM = re.compile(r"step-\d+")
_LOOP = re.compile(r"checkpoint_(\d+)")
_WHITE_SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|\s+')  # outside of strings, where the first group is none
_CHECKSUM = re.compile(r'(.*),"sha256":"([0-9a-f]{64})"}', re.DOTALL)
_SEQUENCE = re.compile(r'("sequence":\s*)\d+')


def of_job(folder: pathlib.Path) -> list[tuple[int, pathlib.Path]]:
    """A job file's checkpoints and their places in the order, the last saved first; 0: it does not tell."""
    return _sorted((sequence(path), path) for path in _named(folder, _PROGRAM))


def of_loop(folder: pathlib.Path) -> list[tuple[int, pathlib.Path]]:
    """A train loop's checkpoints and their numbers, the last saved first."""
    return _sorted((int(path.name.partition("_")[2]), path) for path in _named(folder, _LOOP))


def loop_name(number: int) -> str:
    """The name of a train loop's checkpoint."""
    return f"checkpoint_{number:06d}"


def next_of_loop(folder: pathlib.Path) -> pathlib.Path:
    """The folder for the train loop's next checkpoint."""
    return folder / loop_name(next_place(of_loop(folder)))


def next_place(in_order: list[tuple[int, pathlib.Path]]) -> int:
    """After those of ``of_job`` or ``of_loop``."""
    return in_order[0][0] + 1 if in_order else 1


def is_of_job(checkpoint: pathlib.Path) -> bool:
    """Whether that is a job file's, by its name."""
    return _PROGRAM.fullmatch(checkpoint.name) is not None


def newest(folder: pathlib.Path) -> pathlib.Path | None:
    """The checkpoint that was saved last into a folder; None if it holds none.

    Raises:
        bimetal.Error: ``invalid_argument`` if there are a job file's and a train loop's, which have no common order.
    """
    job, loop = of_job(folder), of_loop(folder)
    if job and loop:
        raise error(f"{folder} holds checkpoints of a job file ({job[0][1].name}) and of a train loop "
                    f"({loop[0][1].name}): name the one to go on from", "invalid_argument")
    return (job or loop)[0][1] if job or loop else None


def best(folder: pathlib.Path) -> pathlib.Path | None:
    """The checkpoint that a job file's run has kept as its best (``checkpoint.keep_best``), else the newest."""
    return newest(folder / BEST) or newest(folder)


def prune(saved: list[tuple[int, pathlib.Path]], keep: int) -> None:
    """Removes all but the first ``keep``. Those without a place in the order may be somebody else's and stay."""
    for _, path in [entry for entry in saved if entry[0]][keep:]:
        try:
            folders.remove_whole(path)
        except (OSError, Error):
            pass  # it only takes room


def sequence(checkpoint: pathlib.Path) -> int:
    """The place of a job file's checkpoint among the saves into its folder; 0 if it does not tell.

    Raises:
        bimetal.Error: ``system`` if that cannot be read just now.
    """
    path = checkpoint / _MANIFEST
    try:
        return int(_read(path)[0]["sequence"])
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return 0
    except OSError as bad:
        raise error(f"cannot read {path}: {bad}", "system") from bad


def read_checked(checkpoint: pathlib.Path) -> dict[str, Any]:
    """The contents of a checkpoint's state.json.

    Raises:
        ValueError: if it, or a file of it, is damaged.
        FileNotFoundError: if there is no such checkpoint.
    """
    manifest = _read(checkpoint / _MANIFEST)[0]
    _require_files(checkpoint, manifest)
    return manifest


def adopt(checkpoint: pathlib.Path, place: int) -> None:
    """Makes a job file's checkpoint that came from elsewhere the save number ``place`` of the folder it goes into.

    Raises:
        ValueError: if a file of it is not what its state.json says.
    """
    path = checkpoint / _MANIFEST
    manifest, text, checksum = _read(path)
    _require_files(checkpoint, manifest)
    text = _SEQUENCE.sub(rf"\g<1>{place}", text, count=1)
    body = _CHECKSUM.fullmatch(_compact(text))
    path.write_text(text.replace(checksum, hashlib.sha256(f"{body[1]}}}".encode()).hexdigest()))


def _named(folder: pathlib.Path, name: re.Pattern[str]) -> list[pathlib.Path]:
    try:
        return [path for path in folder.iterdir() if name.fullmatch(path.name) and path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _sorted(entries: Any) -> list[tuple[int, pathlib.Path]]:
    return sorted(entries, reverse=True)


def _compact(text: str) -> str:
    return _WHITE_SPACE.sub(lambda found: found[1] or "", text)


def _read(path: pathlib.Path) -> tuple[dict[str, Any], str, str]:
    """A state.json: its contents, its text, and the checksum at its end, which is right. ValueError if it is not."""
    text = path.read_text()
    found = _CHECKSUM.fullmatch(_compact(text))
    if not found or hashlib.sha256(f"{found[1]}}}".encode()).hexdigest() != found[2]:
        raise ValueError(f"{path} is damaged: its checksum is wrong")
    return json.loads(text), text, found[2]


def _require_files(checkpoint: pathlib.Path, manifest: dict[str, Any]) -> None:
    for name, file in manifest["files"].items():
        path = folders.inside(checkpoint, name)
        if not path.is_file() or path.stat().st_size != file["size"] or sum_of(path) != file["sha256"]:
            raise ValueError(f"{name} is not what {_MANIFEST} says")


def sum_of(path: pathlib.Path) -> str:
    """A file's SHA-256, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
