"""The actor that hosts one worker: Ray starts one per request, and the driver tells it what to do."""

from __future__ import annotations

import datetime
import os
import pathlib
import platform
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ray
import torch

from bimetal import _build
from bimetal._asked_store import AskedStore
from bimetal._devices import usable_cores
from bimetal.command import program
from bimetal.elastic.run import doors, leave
from bimetal.ray.loop import LoopRun
from bimetal.ray.store import Shelf, at_hand, through_ray
from bimetal.runs import folders
from bimetal.runs.job_process import JobProcess, Mailbox

_LOOPBACK = "127.0.0.1"
_BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Place:
    """One rank's facts on its job.

    Attributes:
        rank, world_size, local_rank, local_world_size: as torchrun's variables.
        workers: the device of each local rank up to this one; the last is this one's.
        address, port: where the ranks of a job file meet; on loopback if all are on one machine.
        own_address: of this node, for the others; None: stay on loopback.
        server: number among the job's parameter servers; None: a worker.
        served: whether there are any: then number 0 is met at that port, else rank 0.
        least: members that an elastic job needs; 0: what the job says.
        door: of a member of the job, or several, where this rank comes to a job that trains already.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    workers: tuple[str, ...]
    address: str
    port: int
    own_address: str | None
    server: int | None = None
    served: bool = False
    least: int = 0
    door: str = ""

    def variables(self, token: str) -> dict[str, str]:
        """For the environment of the rank."""
        named = {"RANK": self.rank, "WORLD_SIZE": self.world_size, "LOCAL_RANK": self.local_rank,
                 "LOCAL_WORLD_SIZE": self.local_world_size, "MASTER_ADDR": self.address, "MASTER_PORT": self.port,
                 "BIMETAL_TOKEN": token}
        if self.served:
            named["BIMETAL_STORE"] = "parameter_server"
        if self.door:
            named["BIMETAL_DOOR"] = self.door
        if self.own_address:
            named["BIMETAL_ADDRESS"] = self.own_address
            named["BIMETAL_INTERFACE"] = os.environ.get("BIMETAL_INTERFACE") or self.own_address
        if self.server is not None:
            named["BIMETAL_SERVER"] = self.server
            named["BIMETAL_ADDRESS"] = self.own_address or _LOOPBACK
        return {name: str(value) for name, value in named.items()}

    def apart(self, cores: int) -> Place:
        """The same for a rank that may not take the others for neighbours: told that all are on one machine, ranks meet
        on loopback, which nodes of one machine with addresses of their own (containers, namespaces) do not share; and a
        newcomer has no place among them. The worker's text then tells how many of the machine's cores it may use."""
        if not self.door and (self.own_address is None or self.local_world_size != self.world_size):
            return self
        worker = self.workers[-1]
        if worker.partition(":")[0] == "cpu" and "threads=" not in worker:
            threads = f"threads={max(1, cores // self.local_world_size)}"
            worker = f"{worker},{threads}" if ":" in worker else f"{worker}:{threads}"
        return replace(self, local_rank=0, local_world_size=1, workers=(worker,))


class Worker:
    """Methods are called by the driver, on several threads at once; none waits for long but ``events``."""

    def __init__(self) -> None:
        self._mailbox = Mailbox()
        self._shelf = Shelf()
        self._made = folders.scratch("bimetal-ray-worker")
        self._scratch = self._made.path
        self._process: JobProcess | None = None

    def describe(self, worker: str) -> dict[str, Any]:
        """This actor's description. ``worker`` as requested; the answer has the device that it turned out to be."""
        address = ray.util.get_node_ip_address()
        return {"host": socket.gethostname(), "address": address, "machine": _machine() or address,
                "node": ray.get_runtime_context().get_node_id(), "pid": os.getpid(), "scratch": str(self._scratch),
                "worker": any_gpu() if worker == "gpu" else worker, "bimetal": _build.VERSION,
                "torch": str(torch.__version__), "system": f"{platform.system()} {platform.machine()}"}

    def sees(self, path: str, content: str) -> bool:
        """Whether a file of the driver's is here, too."""
        try:
            return pathlib.Path(path).read_text() == content
        except OSError:
            return False

    def free_port(self, one_machine: bool) -> tuple[str, int]:
        """The address at which this rank can be met: an address of this node, and a port of it that is free just
        now."""
        address = _LOOPBACK if one_machine else ray.util.get_node_ip_address()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family) as probe:
            probe.bind((address, 0))
            return address, probe.getsockname()[1]

    def start_job(self, place: Place, token: str, name: str, text: str, settings: list[str],
                  resume: str | None) -> None:
        """Starts the program on a job file, as the rank or the server that it is to be.

        Args:
            settings: of the form ``section.key=value``.
            resume: what to go on from, for who reads it.
        """
        place = place.apart(usable_cores())
        file = self._scratch / name
        file.write_text(text)
        report = self._scratch / "report.json"
        command = [program.for_jobs(), "train", str(file), "--report", str(report)]
        for worker in place.workers:
            command += ["--worker", worker]
        for setting in settings:
            command += ["--set", setting]
        if resume:
            command += ["--resume", resume]
        self._process = JobProcess(command, place.variables(token), report, self._mailbox)

    def start_loop(self, place: Place, token: str, function: Callable[..., Any], config: dict[str, Any],
                   timeout_s: float, first: Any, resume: str | None, outbox: str) -> None:
        """Starts a train loop. ``first`` is rank 0's actor; None: this is it, or one that comes later."""
        place = place.apart(usable_cores())
        for name in ("BIMETAL_TOKEN_FILE", "BIMETAL_ADDRESS", "BIMETAL_DOOR"):
            os.environ.pop(name, None)
        os.environ.update(place.variables(token), BIMETAL_WORKER=place.workers[-1], BIMETAL_ELASTIC=str(place.least or ""))
        store = None if place.door else AskedStore(at_hand(self._shelf) if first is None else through_ray(first))
        LoopRun(function, config, place.rank, place.world_size, place.workers[-1],
                datetime.timedelta(seconds=timeout_s), store, self._mailbox, pathlib.Path(resume) if resume else None,
                pathlib.Path(outbox)).start()

    def events(self, after: int, seconds: float) -> tuple[int, list[dict[str, Any]]]:
        """The events since event ``after``; see Mailbox.take."""
        return self._mailbox.take(after, seconds)

    def shelf(self, method: str, *arguments: Any) -> Any:
        """Rank 0's store, for the others."""
        return getattr(self._shelf, method)(*arguments)

    def stop(self, alone: bool = False) -> None:
        """Asks a job file's rank to save and end, or to leave if it is elastic; a train loop only where it is ``alone`` in that."""
        if self._process:
            self._process.stop()
        elif alone:
            leave()

    def door(self) -> str:
        """The address at which another worker may join the job; empty if it is not elastic."""
        return self._process.door if self._process else ",".join(doors())

    def list_files(self, folder: str) -> list[tuple[str, int]]:
        return folders.listing(pathlib.Path(folder))

    def read_file(self, folder: str, name: str, offset: int) -> bytes:
        return folders.read(pathlib.Path(folder), name, offset)

    def write_file(self, folder: str, name: str, offset: int, piece: bytes) -> None:
        folders.write(self._own(folder), name, offset, piece)

    def remove_folder(self, folder: str) -> None:
        shutil.rmtree(self._own(folder), ignore_errors=True)

    def leave(self) -> None:
        """Leaves nothing behind; the driver ends the process next."""
        if self._process:
            self._process.kill()
        self._made.remove()

    def _own(self, folder: str) -> pathlib.Path:
        path = pathlib.Path(folder)
        if self._scratch not in path.parents:
            raise ValueError(f"{folder} is not a folder of this worker")
        return path


def _machine() -> str:
    """The same for all nodes of one machine, whatever their addresses; empty where the system has no such thing."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def any_gpu() -> str:
    """The device that Ray has given this process by its own counting. RuntimeError if torch sees none."""
    for kind in ("cuda", "xpu"):
        if hasattr(torch, kind) and getattr(torch, kind).is_available():
            return f"{kind}:0"
    raise RuntimeError("Ray has given this worker a GPU, but this machine's torch sees none: install the torch wheel "
                       "that goes with it")
