"""What a user asks of the cluster for one worker: ``{"cuda": 1}``, ``{"num_cpus": 2}``, ``{"labels": {...}}``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bimetal.ray.failure import error

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
    """Requests in the order of ranks. Raises bimetal.Error (``invalid_argument``) that quotes what is wrong."""
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
