"""Trains on a Ray cluster, and goes on when a worker or a whole node is lost."""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ray
from ray.exceptions import RayError

from bimetal.ray import cluster
from bimetal.ray.attempt import Attempt
from bimetal.ray.checkpoints import Checkpoints, newest_in
from bimetal.ray.cluster import WorkerRequest, parse_all
from bimetal.ray.head import News
from bimetal.ray.result import AttemptFailed, Change, Event, Restart, Result, error, print_event
from bimetal.ray.target import JobFile, TrainLoop

_LOOK_EVERY = 0.5  # seconds between two looks for nodes that are missing
_SUSPECT_SECONDS = 30.0  # by then Ray itself has noticed that a node is gone
_STOP_SECONDS = 30.0  # for ranks to save and end after Ctrl-C


class Trainer:
    """Trains a job file or a train loop on workers that Ray provides, one rank and one device each.

    Args:
        target: the path of a job file (TOML, docs/job_file.md), which the C++ core trains; or a function, which is
            called on every rank as ``function(config)`` (or without arguments, if it takes none) with
            ``torch.distributed`` on backend bimetal already initialised. In it ``bimetal.device()``,
            ``bimetal.BalancedBatchSampler``, ``bimetal.ray.report`` and ``bimetal.ray.get_checkpoint`` work.
        workers: what to ask of the cluster, one entry per rank, in order: ``{"cuda": 1}``, ``{"mps": 1}``,
            ``{"xpu": 1}`` or ``{"cpu": 1}`` (tags of nodes started by ``python -m bimetal.ray up`` and ``join``),
            ``{"GPU": 1}``, ``{"num_cpus": 2}`` (so many threads), resources of your own, and any of them together.
            ``"labels": {"os": "Darwin"}`` asks for a node's labels. ``"worker"`` says what to run on where that does
            not follow: ``{"num_cpus": 1, "worker": "cpu:threads=1,speed=0.5"}``. A word alone is a tag: ``"mps"``.
        servers: for a job file with ``parallel.mode = "server"`` (docs/parameter_server.md): what to ask of the cluster
            for its parameter servers, one entry each, as for workers. None: all of them run on the head node, beside
            whatever else runs there. With them the job goes on when a worker is lost, as long as one is left.
        config: for the function.
        settings: keys of the job file to change, as ``{"train.epochs": 3}``.
        storage: folder on this machine for checkpoints; a job file's ``checkpoint.dir`` unless given, which is
            runs/NAME where the file does not say. None of a train loop, or where that key is empty: none are kept, and a
            failure means to begin anew. It need not be on a share.
        storage_shared: whether all nodes see that folder; None: find out.
        resume: a checkpoint to begin with, or a folder of which to take the newest.
        max_failures: lost workers and nodes to survive before giving up. Errors of the program, such as an exception
            in the train loop or a key that is wrong, are never tried again.
        min_workers: go on with at least so many when others' resources have gone, and begin with no fewer; the first
            of ``workers`` come first. None: all. Without a restart an elastic job goes on with as many as
            it says itself (``elastic.min_workers``, or ``min_workers=`` of ``bimetal.elastic.run``), or this number
            where it is larger.
        resource_timeout: seconds to wait for resources in use, and after a failure for nodes to come back.
        timeout_s: of a train loop's process group: longest wait of a collective.
        on_event: is called with each Event, on the thread of ``fit()``; exceptions that it raises end the job.

    Raises:
        bimetal.Error: ``invalid_argument`` for arguments that cannot work.
    """

    def __init__(self, target: str | os.PathLike[str] | Callable[..., Any],
                 workers: Iterable[Mapping[str, Any] | str], *,
                 servers: Iterable[Mapping[str, Any] | str] | None = None, config: Mapping[str, Any] | None = None,
                 settings: Mapping[str, Any] | None = None, storage: str | os.PathLike[str] | None = None,
                 storage_shared: bool | None = None, resume: str | os.PathLike[str] | None = None,
                 max_failures: int = 3, min_workers: int | None = None, resource_timeout: float = 60.0,
                 timeout_s: float = 60.0, on_event: Callable[[Event], None] = print_event):
        self._requests = parse_all(workers)
        self._least = len(self._requests) if min_workers is None else min_workers
        if not 1 <= self._least <= len(self._requests):
            raise error(f"min_workers={min_workers}: from 1 to the {len(self._requests)} workers there are",
                        "invalid_argument")
        self._target: JobFile | TrainLoop
        if callable(target):
            _not_both("settings", settings, "a train loop", "pass config=")
            self._target = TrainLoop(target, dict(config or {}), timeout_s)
        else:
            _not_both("config", config, "a job file", "pass settings=")
            self._target = JobFile.read(target, settings or {})
        self._least_elastic = max(min_workers or 0, self._target.least())
        if self._least_elastic > len(self._requests):
            raise error(f"elastic.min_workers={self._least_elastic}: workers= has {len(self._requests)}", "invalid_argument")
        self._servers = self._target.servers(parse_all(servers) if servers else [])
        self._storage = pathlib.Path(storage) if storage else self._target.storage()
        self._shared = storage_shared
        self._resume = newest_in(pathlib.Path(resume), "resume=") if resume else None
        self._max_failures = max_failures
        self._resource_timeout = resource_timeout
        self._on_event = on_event

    def fit(self) -> Result:
        """Trains to the end. Connects to the cluster first, if the program has not: RAY_ADDRESS says to which, else
        the one of this machine; there must be one.

        Returns:
            the Result, also after Ctrl-C has ended a job file's ranks (then ``metrics["interrupted"]`` is true).

        Raises:
            bimetal.Error: ``unsupported`` for resources that no node offers, before anything is started;
                ``timeout`` where others use them for too long; the code and rank of what ended the job otherwise.
        """
        cluster.connect()
        checkpoints = Checkpoints(self._storage, self._target.keep(), self._shared, self._resume)
        with News(cluster.head_address()) as news:
            try:
                return self._fit(checkpoints, news)
            except RayError:
                _require(news, checkpoints)
                raise
            finally:
                if news.over:
                    ray.shutdown()  # Ray would end this process a minute later

    def _fit(self, checkpoints: Checkpoints, news: News) -> Result:
        restarts: list[Restart] = []
        changes: list[Change] = []
        suspects: dict[str, float] = {}  # nodes that did not answer, until when they are not used
        failures, failed_at = 0, 0.0
        cause: str | None = None  # of the failure that is to be survived just now
        while True:
            try:
                requests = self._choose(suspects, news, checkpoints, first=cause is None)
                attempt = Attempt(requests, self._servers, suspects, self._resource_timeout, self._notice, news,
                                  self._least_elastic, self._max_failures - failures)
                with attempt:
                    checkpoints.look(attempt, range(len(attempt.actors)))
                    self._token = attempt.make_token()
                    attempt.on_all(self._target.start(attempt, attempt.places(), self._token, checkpoints))
                    if cause is not None:
                        restarts.append(Restart(cause, checkpoints.newest, time.monotonic() - failed_at, len(requests)))
                        self._notice(f"{_workers(len(requests))} again after {restarts[-1].seconds:.1f} s")
                        cause = None
                    self._follow(attempt, checkpoints)
                    return self._result(attempt, checkpoints, restarts, [*changes, *attempt.changes])
            except AttemptFailed as failed:
                _require(news, checkpoints)
                changes += attempt.changes
                failures += attempt.vacancies.started
                now = time.monotonic()
                failed_at = failed_at if cause is not None else now  # another try may have failed to start
                cause = self._after(failed, failures, checkpoints)
                failures += not failed.in_order
                suspects.update(dict.fromkeys(failed.lost_nodes, now + _SUSPECT_SECONDS))

    def _after(self, failed: AttemptFailed, survived: int, checkpoints: Checkpoints) -> str:
        """The answer to a failure: the cause, to go on with, or the error that ends it all."""
        cause, where = failed.cause, _where(checkpoints)
        if not cause.worth_another_try:
            raise error(cause.text + where, cause.code, cause.rank) from None
        if survived >= self._max_failures and not failed.in_order:
            raise error(f"{cause.text}{where}\n  The job has survived {survived} failures, as many as max_failures= "
                        "allows", cause.code, cause.rank) from None
        begin = f"from {checkpoints.newest}" if checkpoints.newest else "from the beginning: there is no checkpoint yet"
        self._notice(f"{cause.text}; going on {begin}")
        return cause.text

    def _choose(self, suspects: dict[str, float], news: News, checkpoints: Checkpoints,
                first: bool) -> list[WorkerRequest]:
        """The workers that the cluster can hold now; waits for nodes to come back, but not before the first try."""
        until = time.monotonic() + (0.0 if first else self._resource_timeout)
        told = False
        while True:
            _require(news, checkpoints)
            for node in [node for node, end in suspects.items() if end < time.monotonic()]:
                del suspects[node]
            nodes = cluster.living_nodes({*suspects, *news.leaving})
            requests = cluster.with_gpus([*self._servers, *self._requests], nodes)
            fitting = [requests[index] for index in cluster.what_fits(requests, nodes)]
            workers = [request for request in fitting if request.role == "worker"]
            missing = cluster.what_is_missing(requests, nodes)
            if len(workers) >= self._least and len(fitting) - len(workers) == len(self._servers):
                if missing:
                    self._notice(f"{len(workers)} of {len(self._requests)} workers: "
                                 + missing.partition("\nStart nodes")[0])
                return workers
            if time.monotonic() >= until:
                raise error(missing, "unsupported")
            if not told:
                self._notice(f"waiting up to {self._resource_timeout:.0f} s for nodes: {missing}")
                told = True
            time.sleep(_LOOK_EVERY)

    def _follow(self, attempt: Attempt, checkpoints: Checkpoints) -> None:
        """Passes on the ranks' reports until all have ended well."""
        try:
            self._pass_on(attempt, checkpoints)
        except KeyboardInterrupt:
            if not isinstance(self._target, JobFile):
                raise
            self._notice("stopping after this step, with a checkpoint where the job has them; Ctrl-C again ends at "
                         "once")
            attempt.stop()
            self._pass_on(attempt, checkpoints, time.monotonic() + _STOP_SECONDS)

    def _pass_on(self, attempt: Attempt, checkpoints: Checkpoints, until: float = float("inf")) -> None:
        for rank, said in attempt.watch(stoppable=isinstance(self._target, JobFile)):
            if said["kind"] == "leaving":
                self._notice(said["text"])
            elif said["kind"] == "given_up":
                self._notice(f"{said['text']}; the job goes on without it")
            elif said["kind"] in ("checkpoint", "vacant"):
                try:
                    self._keep(attempt, checkpoints, rank, said) if said["kind"] == "checkpoint" else \
                        self._bring_in(attempt, checkpoints, rank, said)
                except AttemptFailed:
                    if not attempt.can_lose(rank):
                        raise
            elif event := self._target.event(rank, attempt.number_of(rank), said):
                self._on_event(event)
            if time.monotonic() > until:
                raise error(f"the ranks did not end within {_STOP_SECONDS:.0f} s", "timeout")

    def _keep(self, attempt: Attempt, checkpoints: Checkpoints, rank: int, said: Mapping[str, Any]) -> None:
        if kept := checkpoints.take(attempt, rank, said["path"]):
            self._on_event(Event("checkpoint", attempt.number_of(rank), f"checkpoint {kept}", checkpoint=kept))

    def _bring_in(self, attempt: Attempt, checkpoints: Checkpoints, rank: int, said: Mapping[str, Any]) -> None:
        """Starts the rank of a new actor, which joins the others."""
        if place := attempt.place_of_newcomer(rank):
            self._notice(said["text"])
            checkpoints.look(attempt, [rank])
            attempt.on_all(self._target.start(attempt, [place], self._token, checkpoints))

    def _result(self, attempt: Attempt, checkpoints: Checkpoints, restarts: list[Restart], changes: list[Change]) -> Result:
        facts = [{"rank": rank, **{name: attempt.facts[place][name] for name in ("host", "address", "node", "worker")}}
                 for rank, place in enumerate(attempt.order)]
        metrics, workers, history = self._target.figures(facts, attempt.order)
        return Result(metrics, workers, checkpoints.newest, restarts, changes, history)

    def _notice(self, text: str) -> None:
        self._on_event(Event("notice", None, f"bimetal.ray: {text}"))


def _require(news: News, checkpoints: Checkpoints) -> None:
    """bimetal.Error if the cluster is over: another try would not help."""
    if over := news.verdict():
        raise error(over + _where(checkpoints), news.code) from None


def _where(checkpoints: Checkpoints) -> str:
    return f"\n  Last checkpoint: {checkpoints.newest}; go on with resume=" if checkpoints.newest else ""


def _workers(count: int) -> str:
    return f"{count} worker runs" if count == 1 else f"{count} workers run"


def _not_both(name: str, given: Any, target: str, instead: str) -> None:
    if given:
        raise error(f"{name}= does not go with {target}: {instead}", "invalid_argument")
