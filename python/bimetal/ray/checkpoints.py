"""Checkpoints of a job on a cluster: kept on the driver's machine or a share, brought to the ranks that need them."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

from bimetal.ray.attempt import Attempt
from bimetal.ray.result import error
from bimetal.runs import folders, saved

_PIECE_SECONDS = 10.0  # for one: a node that has died in the midst is noticed by then
_MARK = "bimetal-sees"


class Checkpoints:
    """The folder of a job's checkpoints, and the newest of this run.

    Ranks that see the folder (they run on the driver's machine, or it lies on a share) write and read it
    themselves. For others the files go through Ray, in pieces.

    Args:
        folder: on the driver's machine; None: checkpoints are left where they are made, and lost with that machine.
        keep: how many of those that this class stores stay.
        shared: whether all nodes see the folder; None: find out.
        resume: a checkpoint to begin with, or a folder of them.
    """

    def __init__(self, folder: pathlib.Path | None, keep: int, shared: bool | None, resume: pathlib.Path | None):
        self.folder = folder.absolute() if folder else None
        self._keep = keep
        self._shared = shared
        self._sees: dict[int, bool] = {}
        self._begin_with = resume
        self.newest: pathlib.Path | None = None
        if self.folder is not None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as bad:
                raise error(f"cannot make the folder for checkpoints {self.folder}: {bad}", "system") from bad

    def look(self, attempt: Attempt, ranks: Sequence[int]) -> None:
        """Finds out which of these see the folder."""
        if self.folder is None or self._shared is not None:
            self._sees.update({rank: bool(self._shared) for rank in ranks})
            return
        with folders.Aside(self.folder / _MARK) as folder:
            mark, content = folder / "mark", os.urandom(8).hex()
            mark.write_text(content)
            self._sees.update({rank: attempt.call(rank, "sees", str(mark), content) for rank in ranks})

    def folder_at_work(self, attempt: Attempt, rank: int, name: str) -> str:
        """The folder in which a rank writes checkpoints if it leads."""
        return str(self.folder) if self.folder is not None and self._sees[rank] else _scratch(attempt, rank, name)

    def place(self, attempt: Attempt, ranks: Sequence[int]) -> list[str | None]:
        """Brings the checkpoint that the job goes on from to these ranks, once per machine; the path that each finds it
        under."""
        source = self.newest or self._begin_with
        if source is None:
            return [None] * len(ranks)
        brought: dict[str, str] = {}
        paths: list[str | None] = []
        for rank in ranks:
            node = attempt.facts[rank]["node"]
            if self._sees[rank]:
                # For a program's own folder, its newest checkpoint: one that has been announced may have given way
                # meanwhile.
                paths.append(str(self.folder if self._is_jobs(source) else source.absolute()))
                continue
            if node not in brought:
                of_job = saved.of_job(self.folder) if self._is_jobs(source) else []
                brought[node] = self._send(attempt, rank, of_job[0][1] if of_job else source)
            paths.append(brought[node])
        return paths

    def take(self, attempt: Attempt, rank: int, path: str) -> pathlib.Path | None:
        """Makes a checkpoint that a rank has announced the newest; the place where it is kept."""
        if self.folder is None:
            return None
        if self._sees[rank]:
            self.newest = pathlib.Path(path)
        else:
            kept = self._fetch(attempt, rank, path)
            if kept is None:
                return None
            self.newest = kept
            if _scratch(attempt, rank, "outbox") in path:
                attempt.call(rank, "remove_folder", path)
        saved.prune(saved.of_loop(self.folder), self._keep)
        if not self._sees[rank]:  # else the program does so
            saved.prune(saved.of_job(self.folder), self._keep)
        return self.newest

    def _is_jobs(self, source: pathlib.Path) -> bool:
        """Whether a job file's ranks have made it in this run, and not a train loop."""
        return source == self.newest and saved.is_of_job(source)

    def _fetch(self, attempt: Attempt, rank: int, path: str) -> pathlib.Path | None:
        target = self.folder / pathlib.PurePath(path).name
        if not saved.is_of_job(target):
            target = saved.next_of_loop(self.folder)

        def adopt(arrived: pathlib.Path) -> None:
            # Its place where it was made says nothing here: that may be a folder that was empty an hour ago.
            if saved.is_of_job(target):
                saved.adopt(arrived, saved.next_place(saved.of_job(self.folder)))

        def piece(name: str, offset: int) -> bytes:
            return attempt.call(rank, "read_file", path, name, offset, seconds=_PIECE_SECONDS)

        try:
            files = attempt.call(rank, "list_files", path, seconds=_PIECE_SECONDS)
            return folders.receive_whole(files, piece, target, adopt)
        except FileNotFoundError:  # Ray hands on what its actors raise under its own class
            return None  # a newer one has taken its place meanwhile, and is announced
        except OSError as bad:
            raise error(f"the checkpoint {path} of rank {rank} could not be stored as {target}: {bad}", "system",
                        rank) from bad
        except ValueError as damaged:
            raise error(f"the checkpoint {path} of rank {rank} is damaged, or was on its way here: {damaged}",
                        "corrupt_data", rank) from damaged

    def _send(self, attempt: Attempt, rank: int, source: pathlib.Path) -> str:
        target = _scratch(attempt, rank, f"checkpoints/{source.name}")
        for name, _ in folders.listing(source):
            for offset, piece in folders.pieces(source, name):
                attempt.call(rank, "write_file", target, name, offset, piece, seconds=_PIECE_SECONDS)
        return target


def _scratch(attempt: Attempt, rank: int, name: str) -> str:
    return f"{attempt.facts[rank]['scratch']}/{name}"


def newest_in(source: pathlib.Path, what: str) -> pathlib.Path:
    """The checkpoint that ``resume=`` names: a checkpoint itself, or the last saved of a folder of them. bimetal.Error
    if there is none, and those of ``saved.newest``."""
    if not source.is_dir():
        raise error(f"{what}: there is no checkpoint {source}", "invalid_argument")
    return saved.newest(source) or source
