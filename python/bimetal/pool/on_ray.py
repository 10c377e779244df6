"""A Ray cluster's devices: each run is a task that asks for its device's resources, on the node where that is."""

from __future__ import annotations

import json
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import bimetal.ray  # noqa: F401, I001  first: it says what to install where Ray is missing, and presents the cluster's token
import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError, TaskCancelledError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from bimetal import _build
from bimetal._errors import Error
from bimetal.command import program
from bimetal.pool.pool import Device, Run
from bimetal.ray import cluster, run_node
from bimetal.ray.cluster import ACCELERATORS, Node, WorkerRequest, parse
from bimetal.ray.head import News
from bimetal.ray.worker import any_gpu
from bimetal.runs import folders
from bimetal.runs.job_process import SOLO, JobProcess, Mailbox

_START_SECONDS = 120.0  # for a task: others may use the resources, and its process imports torch
_ANSWER_SECONDS = 5.0  # in which a node that is alive answers


@dataclass
class _Task:
    run: Run
    device: Device
    events: Any  # Ray's generator of references
    asked: float
    started: bool = False


class RayHost:
    """Runs as tasks of a cluster.

    Args:
        workers: what to ask for, as ``bimetal.ray.Trainer`` takes it: a tag (``cuda``), ``num_cpus=2``, or JSON
            (``{"cuda": 1}``); empty: every accelerator that the nodes offer, else each of their CPUs.
        address: HEAD or HEAD:PORT; None: RAY_ADDRESS, else this machine's.
        tell: is told what people have to know.

    Raises:
        bimetal.Error: ``unsupported`` for resources that no node offers, ``system`` if no cluster answers; while runs
            are heard of, ``aborted`` or ``peer_lost`` if the cluster ends.
    """

    def __init__(self, workers: Sequence[str], address: str | None, tell: Callable[[str], None]):
        asked = [parse(_request(worker)) for worker in workers]
        cluster.connect(run_node.with_port(*run_node.split_port(address)) if address else "auto")
        self._news = News(cluster.head_address())
        self._news.look()
        nodes = cluster.living_nodes(self._news.leaving)
        requests = cluster.with_gpus(asked or _all_of(nodes), nodes)
        if not requests:
            raise Error("the cluster's nodes offer no accelerators and no CPUs: name with --worker what to use",
                        "unsupported")
        if missing := cluster.what_is_missing(requests, nodes):
            raise Error(missing, "unsupported")
        self.devices = [_device(requests[index], node) for index, node in cluster.placed(requests, nodes).items()]
        self._tell = tell
        self._tasks: dict[str, _Task] = {}
        self._told_of_end = False

    def __enter__(self) -> RayHost:
        self._news.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._news.__exit__()
        if self._news.answers:
            for task in self._tasks.values():
                ray.cancel(task.events, force=True)
        ray.shutdown()

    def start(self, run: Run, device: Device) -> None:
        request, node = device.where
        resources = dict(request.resources)
        options = {"num_cpus": resources.pop("CPU", 0), "num_gpus": resources.pop("GPU", 0), "resources": resources}
        parcel = Parcel(run.arguments, device.worker, pack(run.folder, run.brings), run.returns, _build.VERSION)
        events = ray.remote(work).options(
            **options, num_returns="streaming", max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)).remote(parcel)
        self._tasks[run.name] = _Task(run, device, events, time.monotonic())

    def hear(self, seconds: float) -> Iterator[tuple[str, dict[str, Any]]]:
        if not self._told_of_end and (over := self._news.over):
            self._told_of_end = True  # what still runs may be heard of until its end
            raise Error(over, self._news.code)
        until = time.monotonic() + seconds
        while self._tasks:
            by_events = {task.events: task for task in self._tasks.values()}
            ready, _ = ray.wait(list(by_events), num_returns=1, timeout=max(0.0, until - time.monotonic()))
            if not ready:
                break
            task = by_events[ready[0]]
            said = self._next(task)
            if said["kind"] == "started":
                task.started = True
            elif said["kind"] == "file":
                folders.write(task.run.folder / ".incoming", said["name"], said["offset"], said["piece"])
            elif said["kind"] in ("ended", "failed"):
                yield self._over(task, said)
                return
            else:
                yield task.run.name, said
        yield from self._overdue()

    def stop(self, run: Run) -> None:
        if self._news.answers and (task := self._tasks.get(run.name)):
            ray.cancel(task.events)

    def _next(self, task: _Task) -> dict[str, Any]:
        """The next event; what Ray has to say of a task that is gone is one, too."""
        try:
            return ray.get(next(task.events), timeout=_ANSWER_SECONDS)
        except (TaskCancelledError, StopIteration):
            return {"kind": "failed", "text": "was stopped", "code": "aborted"}
        except RayTaskError as failed:
            return {"kind": "failed", "text": _cause(failed), "code": "internal"}
        except (RayError, GetTimeoutError) as gone:
            if over := self._news.verdict():
                raise Error(over, self._news.code) from gone
            lost = not self._answers(task.device.where[1])
            what = "its node is gone" if lost else f"its process on the node is gone: {type(gone).__name__}"
            return {"kind": "failed", "text": what, "code": "peer_lost", "lost": lost}

    def _over(self, task: _Task, said: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        del self._tasks[task.run.name]
        incoming = task.run.folder / ".incoming"
        if said["kind"] == "ended":
            for path in incoming.glob("*"):
                target = task.run.folder / path.name
                shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
                path.rename(target)
        elif said["code"] in ("invalid_argument", "corrupt_data"):
            said = {**said, "text": f"{said['text']}\n  The data set has to lie on each node of the cluster, where [data] "
                                    f"path says; this was on {task.device.where[1].address}"}
        shutil.rmtree(incoming, ignore_errors=True)
        return task.run.name, said

    def _overdue(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Tasks whose resources others do not give back."""
        for task in [task for task in self._tasks.values() if not task.started]:
            if time.monotonic() - task.asked > _START_SECONDS:
                ray.cancel(task.events)
                yield self._over(task, {
                    "kind": "failed", "code": "timeout", "lost": True,
                    "text": f"{task.device.name} could not begin within {_START_SECONDS:.0f} s: others use it, or its "
                            "node does not answer"})

    def _answers(self, node: Node) -> bool:
        if all(node.id != living.id for living in cluster.living_nodes(self._news.leaving)):
            return False
        here = NodeAffinitySchedulingStrategy(node.id, soft=False)
        ping = ray.remote(_pong).options(num_cpus=0, max_retries=0, scheduling_strategy=here).remote()
        try:
            return ray.get(ping, timeout=_ANSWER_SECONDS)
        except (RayError, GetTimeoutError):
            return False


def _pong() -> bool:
    return True


def _request(text: str) -> Any:
    """A --worker of the command line, as worker_request.parse takes it."""
    if text.startswith("{"):
        try:
            return json.loads(text)
        except ValueError as bad:
            raise Error(f"--worker {text}: {bad}", "invalid_argument") from bad
    if "=" not in text:
        return text
    try:
        return {name: float(amount) for name, _, amount in (part.partition("=") for part in text.split(","))}
    except ValueError:
        raise Error(f"--worker {text}: on Ray a worker is a tag as cuda, NAME=AMOUNT as num_cpus=2, or JSON as "
                    '{"num_cpus": 1, "worker": "cpu:threads=1,speed=0.5"}', "invalid_argument") from None


def _all_of(nodes: Sequence[Node]) -> list[WorkerRequest]:
    """One request for each accelerator; for each CPU where there is none."""
    found = [{name: 1} for node in nodes for name in (*ACCELERATORS, "GPU")
             for _ in range(int(node.resources.get(name, 0)))
             if name != "GPU" or not any(tag in node.resources for tag in ACCELERATORS)]
    return [parse(asked) for asked in found or [{"num_cpus": 1} for node in nodes
                                                for _ in range(int(node.resources.get("CPU", 0)))]]


def _device(request: WorkerRequest, node: Node) -> Device:
    return Device(f"{request.worker} on {node.address}", request.worker, f"{request.worker} {request.text} {node.id}",
                  (request, node))


def _cause(failed: RayTaskError) -> str:
    text = str(failed)
    if "No module named 'bimetal" in text:
        return ("this node has no Bimetal that its Python can import, or another version: install it there, by pip "
                "install, or by PYTHONPATH=build/python before the node is started")
    return text.strip().splitlines()[-1] if text.strip() else type(failed).__name__


_LOOK_SECONDS = 1.0  # a cancelled task notices it no later


@dataclass
class Parcel:
    """The arguments of a task.

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
    """The contents of files and folders; missing ones are left out."""
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
    command = [program.for_jobs(), *parcel.arguments, "--worker", any_gpu() if parcel.worker == "gpu" else parcel.worker]
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
