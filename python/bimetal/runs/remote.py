"""One run on a node of a Ray cluster: the task itself. It brings its files along and sends back what it makes."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bimetal import _build
from bimetal._errors import Error
from bimetal.runs import folders, program
from bimetal.runs.job_process import JobProcess
from bimetal.runs.local import SOLO
from bimetal.runs.mailbox import Mailbox

_LOOK_SECONDS = 1.0  # a cancelled task notices it no later


@dataclass
class Parcel:
    """What a task is given.

    Attributes:
        arguments: of the program, but ``--worker``.
        worker: for that; ``gpu`` is whatever Ray gives.
        files: names and contents of what the run begins with.
        returns: names of files and folders to send back.
        version: of the driver's Bimetal.
    """

    arguments: list[str]
    worker: str
    files: list[tuple[str, bytes]]
    returns: tuple[str, ...]
    version: str


def pack(folder: pathlib.Path, names: tuple[str, ...]) -> list[tuple[str, bytes]]:
    """The contents of files and folders; what is not there is left out."""
    found = []
    for name in names:
        path = folder / name
        inner = [f"{name}/{file}" for file, _ in folders.listing(path)] if path.is_dir() else [name]
        found += [(file, (folder / file).read_bytes()) for file in inner if (folder / file).is_file()]
    return found


def work(parcel: Parcel) -> Iterator[dict[str, Any]]:
    """Runs it; yields ``started``, what JobProcess tells, files in pieces, and how it ended, as the last."""
    if parcel.version != _build.VERSION:
        yield _failed(f"Bimetal {_build.VERSION} is installed here, the driver has {parcel.version}: install the same "
                      "on all nodes", "protocol_mismatch")
        return
    yield {"kind": "started"}
    made = folders.scratch("bimetal-run-task")
    scratch = made.path
    try:
        for name, content in parcel.files:
            folders.write(scratch, name, 0, content)
        last = {}
        for last in _run(parcel, scratch):
            if last["kind"] not in ("ended", "failed"):
                yield last
        if last["kind"] == "ended":
            yield from _files(scratch, parcel.returns)
        yield last
    except Error as wrong:
        yield _failed(str(wrong), wrong.code)
    finally:
        made.remove()


def _run(parcel: Parcel, scratch: pathlib.Path) -> Iterator[dict[str, Any]]:
    mailbox = Mailbox()
    command = [program.find(), *parcel.arguments, "--worker", _worker(parcel.worker)]
    process = JobProcess(command, SOLO, scratch / "report.json", mailbox, scratch)
    try:
        told = 0
        while True:
            told, events = mailbox.take(told, _LOOK_SECONDS)
            yield from events
            if events and events[-1]["kind"] in ("ended", "failed"):
                return
    finally:
        process.kill()
        process.wait()


def _worker(asked: str) -> str:
    if asked != "gpu":
        return asked
    from bimetal.ray.worker import any_gpu

    return any_gpu()


def _files(scratch: pathlib.Path, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for name in names:
        path = scratch / name
        inner = [f"{name}/{file}" for file, _ in folders.listing(path)] if path.is_dir() else [name]
        for file in inner:
            if (scratch / file).is_file():
                for offset, piece in folders.pieces(scratch, file):
                    yield {"kind": "file", "name": file, "offset": offset, "piece": piece}


def _failed(text: str, code: str) -> dict[str, Any]:
    return {"kind": "failed", "text": text, "code": code}
