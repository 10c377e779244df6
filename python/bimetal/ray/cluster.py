"""A user's requests to the cluster for each worker (``{"cuda": 1}``, ``{"num_cpus": 2}``, ``{"labels": {...}}``), the
cluster's offer, the requests that it can't fulfil, and setting resources aside."""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from bimetal.ray.head import News
from bimetal.ray.result import AttemptFailed, Failure, error

ACCELERATORS = ("cuda", "mps", "xpu")  # the tags of nodes that `bimetal.ray up` and `join` start
CPU_TAG = "cpu"
_CPUS = ("num_cpus", "CPU")
_GPUS = ("num_gpus", "GPU")
_NOT_RESOURCES = ("labels", "worker")


@dataclass(frozen=True)
class WorkerRequest:
    """One worker.

    Attributes:
        resources: what Ray is to set aside, by Ray's names (``CPU``, ``GPU``, and tags). Never empty.
        labels: what the node's labels have to be: values, ``!value``, ``in(a, b)``, ``!in(a, b)``.
        worker: what it runs on, as ``bimetal train --worker`` takes it; ``gpu`` is whatever GPU Ray gives it.
        text: what the user wrote.
        role: what it is asked for: ``worker`` or ``server``.
    """

    resources: dict[str, float]
    labels: dict[str, str] = field(default_factory=dict)
    worker: str = "cpu"
    text: str = ""
    role: str = "worker"

    def __str__(self) -> str:
        return self.text


def parse_all(workers: Iterable[Mapping[str, Any] | str]) -> list[WorkerRequest]:
    """Requests in the order of ranks. Raises bimetal.Error (``invalid_argument``) that quotes the fault."""
    if isinstance(workers, (str, Mapping)):
        workers = [workers]
    if isinstance(workers, int):
        raise error(f'workers={workers} says how many, but not what each is to have: a list has one request for each, as '
                    f'workers=["cuda"] * {workers} or [{{"num_cpus": 2}}] * {workers}', "invalid_argument")
    requests = [parse(worker) for worker in workers]
    if not requests:
        raise error('no workers: give at least one, as in workers=[{"cuda": 1}, {"num_cpus": 2}]', "invalid_argument")
    return requests


def parse(worker: Mapping[str, Any] | str) -> WorkerRequest:
    """One request: a mapping, or the name of a tag (``"mps"`` is ``{"mps": 1}``)."""
    asked = {worker: 1} if isinstance(worker, str) else dict(worker)
    text = json.dumps(asked, default=str)
    labels = {str(key): str(value) for key, value in dict(asked.get("labels") or {}).items()}
    resources: dict[str, float] = {}
    for key, value in asked.items():
        if key not in _NOT_RESOURCES:
            name = "CPU" if key in _CPUS else "GPU" if key in _GPUS else str(key)
            resources[name] = _amount(key, value, text)
    _one_device(resources, text)
    if not resources:
        resources = {"CPU": 1.0}
    return WorkerRequest(resources, labels, str(asked.get("worker") or _worker_for(resources)), text)


def _amount(key: str, value: Any, text: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise error(f"worker {text}: {key!r} has to be a number above 0 (a share of one, as 0.5, where several workers "
                    f"share it)", "invalid_argument")
    return float(value)


def _one_device(resources: Mapping[str, float], text: str) -> None:
    for name in (*ACCELERATORS, CPU_TAG, "GPU"):
        if resources.get(name, 0) > 1:
            raise error(f"worker {text}: a worker drives one device; for {resources[name]:g} of them write "
                        f"{resources[name]:g} workers", "invalid_argument")


def _worker_for(resources: Mapping[str, float]) -> str:
    for name in ACCELERATORS:
        if name in resources:
            return name if name == "mps" else f"{name}:0"  # Ray shows it no other
    if "GPU" in resources:
        return "gpu"
    threads = int(resources.get("CPU", 0))
    return f"cpu:threads={threads}" if threads and CPU_TAG not in resources else "cpu"


_NODE_ID = "ray.io/node-id"
_SAY_AFTER = 2.0  # seconds of waiting before the user is told
_OF_NO_INTEREST = ("memory", "object_store_memory")
HEAD = "node:__internal_head__"  # Ray's mark of the node that the cluster cannot be without


@dataclass(frozen=True)
class Node:
    """A living node: all of its resources, not only the free ones."""

    id: str
    name: str
    address: str
    resources: dict[str, float]
    labels: dict[str, str]

    def fits(self, request: WorkerRequest) -> bool:
        return not self.lacks(request) and self.matches(request)

    def lacks(self, request: WorkerRequest) -> list[str]:
        return [name for name, amount in request.resources.items() if self.resources.get(name, 0) < amount]

    def matches(self, request: WorkerRequest) -> bool:
        return all(label_matches(self.labels.get(key), rule) for key, rule in request.labels.items())

    @property
    def place(self) -> str:
        return f"{self.address} ({self.name})"

    @property
    def offer(self) -> str:
        offered = ", ".join(f"{name} {amount:g}" for name, amount in sorted(self.resources.items()) if name != HEAD)
        return offered or "nothing"


def label_matches(value: str | None, rule: str) -> bool:
    """Whether a node's label obeys a rule of Ray's selectors: ``a``, ``!a``, ``in(a, b)``, ``!in(a, b)``."""
    wanted = not rule.startswith("!")
    rule = rule.removeprefix("!")
    listed = re.fullmatch(r"in\((.*)\)", rule)
    values = [part.strip() for part in listed[1].split(",")] if listed else [rule]
    return (value in values) is wanted


def head_address() -> str:
    """HOST:PORT of the head node of the cluster that this process is connected to."""
    return str(ray.get_runtime_context().gcs_address)


def living_nodes(without: Collection[str] = ()) -> list[Node]:
    """The nodes that Ray holds for alive, but those of the given ids."""
    nodes = []
    for node in ray.nodes():
        if node["Alive"] and node["NodeID"] not in without:
            offered = {name: amount for name, amount in node["Resources"].items()
                       if name == HEAD
                       or name not in _OF_NO_INTEREST and not name.startswith(("node:", "accelerator_type:"))}
            nodes.append(Node(node["NodeID"], node["NodeManagerHostname"], node["NodeManagerAddress"], offered,
                              dict(node.get("Labels") or {})))
    return nodes


def with_gpus(requests: Sequence[WorkerRequest], nodes: Sequence[Node]) -> list[WorkerRequest]:
    """The requests, with one of Ray's ``GPU`` for each tag that has some: then Ray shows a worker its card alone."""
    def completed(request: WorkerRequest) -> WorkerRequest:
        for tag in ACCELERATORS:
            if tag in request.resources and any(tag in node.resources and "GPU" in node.resources for node in nodes):
                return replace(request, resources={**request.resources, "GPU": request.resources[tag]})
        return request

    return [completed(request) for request in requests]


def connect(address: str = "auto") -> None:
    """Connects to a cluster, unless that has been done: RAY_ADDRESS says to which, else the one of this machine. The
    workers' output comes by their mailboxes, and not by Ray among its own lines.

    Raises:
        bimetal.Error: ``system`` if there is none.
    """
    if ray.is_initialized():
        return
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except ConnectionError as nobody:
        raise error(f"no Ray cluster answers: {nobody}. Start one with `python -m bimetal.ray up`, or name one in "
                    "RAY_ADDRESS", "system") from nobody


def what_fits(requests: Sequence[WorkerRequest], nodes: Sequence[Node]) -> list[int]:
    """Indices of the requests that the nodes can hold at once if nothing else runs there; first come, first served."""
    return list(placed(requests, nodes))


def placed(requests: Sequence[WorkerRequest], nodes: Sequence[Node]) -> dict[int, Node]:
    """For each of those the node that would hold it."""
    free = {node.id: dict(node.resources) for node in nodes}
    found = {}
    for index, request in enumerate(requests):
        for node in nodes:
            rest = free[node.id]
            if node.matches(request) and all(rest.get(name, 0) >= n for name, n in request.resources.items()):
                for name, amount in request.resources.items():
                    rest[name] -= amount
                found[index] = node
                break
    return found


def what_is_missing(requests: Sequence[WorkerRequest], nodes: Sequence[Node]) -> str:
    """Why the requests don't all fit, by name, and the resources there are; empty if they do."""
    fitting = set(what_fits(requests, nodes))
    left = [request for index, request in enumerate(requests) if index not in fitting]
    if not left:
        return ""
    reasons = []
    for text, count in Counter(_reason(request, requests, nodes) for request in left).items():
        reasons.append(text if count == 1 else f"{text} ({count} workers)")
    return ("the cluster cannot hold the workers asked for:\n  " + "\n  ".join(reasons) + "\nIt offers:\n  "
            + "\n  ".join(_listed(nodes) or ["nothing: no node is alive"])
            + "\nStart nodes that have it with `python -m bimetal.ray join HEAD`, or ask for what there is.")


def _listed(nodes: Sequence[Node]) -> list[str]:
    """Each with its resources; nodes of one machine by the beginning of their ids, too, by which Ray's own lists name
    them."""
    places = Counter(node.place for node in nodes)
    return [(f"{node.place[:-1]}, {node.id[:6]})" if places[node.place] > 1 else node.place) + f": {node.offer}"
            for node in nodes]


def _reason(request: WorkerRequest, requests: Sequence[WorkerRequest], nodes: Sequence[Node]) -> str:
    nowhere = [name for name in request.resources if all(node.resources.get(name, 0) <= 0 for node in nodes)]
    if nowhere:
        return f"{request.role} {request}: no node offers {', '.join(map(repr, nowhere))}"
    matching = [node for node in nodes if node.matches(request)]
    if not matching:
        return f"{request.role} {request}: no node has such labels"
    for name, amount in request.resources.items():
        most = max(node.resources.get(name, 0) for node in matching)
        if most < amount:
            return f"{request.role} {request}: no such node offers more than {most:g} × {name!r}"
    if not any(node.fits(request) for node in matching):
        return f"{request.role} {request}: no node offers all of that at once"
    asked: Counter[str] = Counter()
    for other in requests:
        asked.update(other.resources)
    short = [f"{asked[name]:g} × {name!r} are asked for in all, of {sum(n.resources.get(name, 0) for n in nodes):g}"
             for name in request.resources if asked[name] > sum(n.resources.get(name, 0) for n in nodes)]
    return f"{request.role} {request}: {', '.join(short) or 'the others take up its place'}"


def set_aside(requests: Sequence[WorkerRequest], without: Collection[str], seconds: float,
              tell: Callable[[str], None], news: News) -> PlacementGroup:
    """Sets the resources of all requests aside at once, so that two jobs can't each hold half of what both need.

    Args:
        requests: one bundle each; they fit (``what_is_missing``).
        without: ids of nodes not to use.
        seconds: how long to wait for other jobs to give resources back.
        tell: is told once, when there is a wait.
        news: of the cluster, whose end ends the wait, too.

    Raises:
        bimetal.Error: ``timeout``, naming what others hold.
        AttemptFailed: the cluster is over.
    """
    avoid = {_NODE_ID: f"!in({','.join(sorted(without))})"} if without else {}
    selectors: list[dict[str, str]] = [{**request.labels, **avoid} for request in requests]
    group = placement_group([dict(request.resources) for request in requests], strategy="PACK",
                            bundle_label_selector=selectors if any(selectors) else None)
    until = time.monotonic() + seconds
    try:  # Ctrl-C, too, gives back resources that may be set aside by then
        if group.wait(min(_SAY_AFTER, seconds)):
            return group
        tell(f"waiting up to {seconds:.0f} s for resources that others use: {_asked(requests)}; {_free()}")
        while time.monotonic() < until and not news.over:
            if group.wait(min(1.0, max(0.0, until - time.monotonic()))):
                return group
    except BaseException:
        give_back(group, news)
        raise
    give_back(group, news)
    if news.over:
        raise AttemptFailed(Failure(0, news.over, news.code))
    raise error(f"the cluster has the resources, but others still use them after {seconds:.0f} s: asked for "
                f"{_asked(requests)}; {_free()}. End what runs there, or wait longer with resource_timeout=", "timeout")


def give_back(group: PlacementGroup, news: News) -> None:
    """Gives back the resources that were set aside, if there still is somebody to give them back to."""
    if news.answers:
        remove_placement_group(group)


def _asked(requests: Sequence[WorkerRequest]) -> str:
    return ", ".join(map(str, requests))


def _free() -> str:
    free: Mapping[str, float] = ray.available_resources()
    names = sorted(n for n in free if n not in _OF_NO_INTEREST and not n.startswith(("node:", "accelerator_type:")))
    return "free are " + (", ".join(f"{name} {free[name]:g}" for name in names) or "none")
