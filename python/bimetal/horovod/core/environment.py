"""Which rank this process is, by the variables of whatever has started it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from bimetal._errors import Error


@dataclass(frozen=True)
class Place:
    """A rank among others. ``local_rank`` and ``local_size`` are None where the launcher does not tell them."""

    rank: int
    size: int
    local_rank: int | None
    local_size: int | None
    launcher: str  # as messages name it


@dataclass(frozen=True)
class _Launcher:
    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str


# The first whose rank is set counts: torch's variables may be set by hand under any other launcher.
_LAUNCHERS = (
    _Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    _Launcher("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    _Launcher("mpirun of Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
              "OMPI_COMM_WORLD_LOCAL_SIZE"),
    _Launcher("mpirun of MPICH or its kin", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # A batch script has SLURM_PROCID, too, without being one of several tasks: only steps have this size.
    _Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""),
)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "") if name else ""
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise Error(f"{name}={text!r} is not a number", "invalid_argument") from None


def _local_size(environment: Mapping[str, str], launcher: _Launcher, size: int) -> int | None:
    if launcher.name == "srun":
        return size if environment.get("SLURM_STEP_NUM_NODES") == "1" else None
    return _number(environment, launcher.local_size)


def find_place(environment: Mapping[str, str] = os.environ) -> Place:
    """This process's place among the ranks; alone, if nothing says that there are others.

    Raises:
        bimetal.Error: ``invalid_argument`` for variables that cannot be read or contradict each other.
    """
    for launcher in _LAUNCHERS:
        rank, size = _number(environment, launcher.rank), _number(environment, launcher.size)
        if rank is None or (size is None and launcher.name == "srun"):
            continue
        if size is None:
            raise Error(f"{launcher.rank}={rank} is set, but {launcher.size} is not: set both, or none for a "
                        f"process by itself", "invalid_argument")
        if not 0 <= rank < size:
            raise Error(f"{launcher.rank}={rank} and {launcher.size}={size}: a rank is at least 0 and less than the "
                        f"number of ranks", "invalid_argument")
        return Place(rank, size, _number(environment, launcher.local_rank),
                     _local_size(environment, launcher, size), launcher.name)
    return Place(0, 1, 0, 1, "nothing")
