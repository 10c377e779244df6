"""Which rank this process is, by the variables of whatever has started it, and the store by which the ranks find each other."""

from __future__ import annotations

import atexit
import datetime
import hashlib
import os
import pathlib
import re
import secrets
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch.distributed as dist

from bimetal._asked_store import AskedStore
from bimetal._errors import Error
from bimetal.elastic.members import ServedStore


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


# Variables that tell one job of a launcher from another on the same machine.
_JOB_IDS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMI_JOBID")


@dataclass
class Meeting:
    """A store that all ranks share. ``file``: the file that it is kept in, at a place where ranks started in the same
    way would find it again."""

    store: dist.Store
    file: pathlib.Path | None = None
    kept: object = None  # of the store, where it is Python's: torch keeps nothing that is

    def name_for_later(self) -> str:
        """A file's that no other job has: one that a killed job leaves behind misleads nobody."""
        return f"horovod-{secrets.token_hex(12)}"

    def go_on_in(self, name: str, rank: int, size: int) -> None:
        """Leaves the file where the ranks met for one of that name, which later worlds and process sets meet in.
        Called once every rank has its connections."""
        assert self.file is not None
        before, self.file = self.file, None
        later = before.with_name(name)
        self.store = dist.FileStore(str(later), size)
        if rank == 0:
            before.unlink(missing_ok=True)
            _remove_at_exit(later)


def open_meeting(place: Place, timeout: float, environment: Mapping[str, str] = os.environ) -> Meeting:
    """The store that the environment names: where all ranks are on this machine that of `bimetal launch`, which outlives them;
    MASTER_ADDR's; or, where all are on this machine, a private file.

    Raises:
        bimetal.Error: ``invalid_argument`` where nothing says where to meet, ``timeout`` where nobody serves the
            store, ``system`` where rank 0 cannot serve it.
    """
    if place.size == 1 and "MASTER_ADDR" not in environment:
        return Meeting(dist.HashStore())
    if "BIMETAL_BOARD" in environment and place.local_size == place.size:
        asked = AskedStore(ServedStore(environment["BIMETAL_BOARD"]))
        return Meeting(asked, kept=asked)
    address = _address(place, environment)
    if address is not None:
        serve = place.rank == 0 and not launcher_keeps_the_store(environment)
        return Meeting(_tcp_store(address, place, serve, timeout))
    if place.local_size == place.size:
        file = _private_file(environment)
        return Meeting(dist.FileStore(str(file), place.size), file=file)
    raise Error(f"{place.launcher} has started ranks that may be on several machines, and nothing says where they "
                f"meet: set MASTER_ADDR to the address of rank 0's machine and MASTER_PORT to a free port there, on "
                f"all ranks (Open MPI: mpirun -x MASTER_ADDR=… -x MASTER_PORT=29500; MPICH: mpiexec -genv …)",
                "invalid_argument")


def launcher_keeps_the_store(environment: Mapping[str, str]) -> bool:
    """As torchrun does, and says by this variable: then no rank serves it, and it outlives them all."""
    return environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _address(place: Place, environment: Mapping[str, str]) -> tuple[str, int] | None:
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    if host:
        if not port or not port.isdigit() or not 0 < int(port) < 65536:
            raise Error(f"MASTER_ADDR={host} is set, but MASTER_PORT={port or ''} is not a port from 1 to 65535",
                        "invalid_argument")
        return host, int(port)
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    if place.launcher == "srun" and place.local_size != place.size and nodes:
        return first_node(nodes), 20000 + int(environment.get("SLURM_JOB_ID", "0")) % 20000
    return None


def first_node(node_list: str) -> str:
    """The first host of one of Slurm's lists: ``node[07-09,12],big1`` begins with ``node07``."""
    match = re.match(r"([^,\[]+)(?:\[([0-9]+)[^\]]*\])?([^,\[]*)", node_list)
    if match is None:
        raise Error(f"the node list {node_list!r} cannot be read: set MASTER_ADDR and MASTER_PORT", "invalid_argument")
    return match[1] + (match[2] or "") + match[3]


def _tcp_store(address: tuple[str, int], place: Place, serve: bool, timeout: float) -> dist.Store:
    host, port = address
    if serve:
        return serve_store(host, port, timeout)
    try:
        _wait_until_served(host, port, timeout)
        return dist.TCPStore(host, port, is_master=False, timeout=datetime.timedelta(seconds=timeout))
    except (OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise Error(f"rank {place.rank} cannot reach the store at {host}:{port} that rank 0 or the launcher serves "
                    f"({reason}): is it running, is the address right on this machine, and does a firewall let that "
                    f"port through?", "timeout", place.rank) from None


def serve_store(host: str, port: int, timeout: float) -> dist.TCPStore:
    """A store for others to meet by; it ends with the object. Port 0: a free one (``.port`` tells).

    Raises:
        bimetal.Error: ``system`` where that address or port cannot be had.
    """
    # Bound by ourselves, to that address alone: torch would listen on all of the machine's.
    listening = _listen(host, port)
    port = listening.getsockname()[1]
    return dist.TCPStore(host, port, is_master=True, timeout=datetime.timedelta(seconds=timeout),
                         wait_for_workers=False, multi_tenant=True, master_listen_fd=listening.detach())


def _wait_until_served(host: str, port: int, timeout: float) -> None:
    """Raises OSError with the last reason. (torch's store tries for as long, but tells its user in stack traces.)"""
    until = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, port), timeout=min(5.0, timeout)).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                raise OSError(error.strerror or str(error)) from None
        time.sleep(0.1)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
            listening.listen(1024)
            return listening
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise Error(f"rank 0 cannot serve the store at MASTER_ADDR={host}, MASTER_PORT={port}: {error.strerror}. "
                    f"MASTER_ADDR must be an address of the machine of rank 0, and the port free", "system",
                    0) from None


def _remove_at_exit(file: pathlib.Path) -> None:
    own = os.getpid()

    def remove() -> None:
        if os.getpid() == own:  # and not a forked child
            file.unlink(missing_ok=True)
    atexit.register(remove)


def _private_file(environment: Mapping[str, str]) -> pathlib.Path:
    """A file that the ranks of this job agree on and that other users can neither read nor replace."""
    if not hasattr(os, "getuid"):
        raise Error("on this system ranks cannot meet by a file: set MASTER_ADDR=127.0.0.1 and MASTER_PORT to a free "
                    "port, on all ranks", "unsupported")
    folder = pathlib.Path(tempfile.gettempdir()) / f"bimetal-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise Error(f"{folder} is not a folder of this user's alone: remove it, or set MASTER_ADDR and MASTER_PORT",
                    "system")
    parent = os.getppid()
    try:  # process numbers are used again; with its time of start one is unmistakable
        started = pathlib.Path(f"/proc/{parent}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        started = ""
    key = [str(parent), started, *(environment.get(name, "") for name in _JOB_IDS)]
    return folder / f"horovod-{hashlib.sha256('/'.join(key).encode()).hexdigest()[:24]}"
