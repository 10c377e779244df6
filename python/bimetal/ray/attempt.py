"""One try at a job: actors on resources set aside, their ranks and addresses, and their reports until the end."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from bimetal import _build
from bimetal._errors import Error
from bimetal.ray import cluster
from bimetal.ray.cluster import WorkerRequest
from bimetal.ray.head import News
from bimetal.ray.result import AttemptFailed, Change, Failure, error, root_cause
from bimetal.ray.vacancies import Vacancies
from bimetal.ray.watch import POLL_SECONDS, Departures, Losses, Watched
from bimetal.ray.worker import Place, Worker

_START_SECONDS = 120.0  # for an actor's process: it imports torch, on a cold disk perhaps
_CALL_SECONDS = 60.0  # for any other call of an actor
_SILENCE_SECONDS = 45.0  # beyond that, after which a rank counts as lost
_END_SECONDS = 10.0  # for workers to end after the parameter servers have
_DEATH_SECONDS = 2.0  # within which Ray tells that a process is gone whose node is alive
_UNSURE_SECONDS = 30.0  # by then Ray itself has noticed that a node is gone
_THREADS = 16  # of an actor, for calls at the same time


class Attempt:
    """A context manager: the actors are gone and their resources given back when it is left.

    Args:
        requests: one rank each, in order.
        servers: parameter servers, whose ranks follow; with them the job goes on for as long as it has one worker.
        without: ids of nodes not to use.
        resource_timeout: seconds to wait for resources in use.
        tell: is told what is waited for.
        news: of the cluster.
        least: members that an elastic job needs; 0: what the job says.
        replacements: actors to start in the places of those that an elastic job has lost.

    Attributes:
        order: places of the workers that are there, by the ranks that they have now.
        changes: how the workers have changed while the job went on.
    """

    def __init__(self, requests: Sequence[WorkerRequest], servers: Sequence[WorkerRequest], without: Collection[str],
                 resource_timeout: float, tell: Callable[[str], None], news: News, least: int = 0, replacements: int = 0):
        self.requests = [*requests, *servers]
        self.workers = len(requests)
        self.order = list(range(self.workers))
        self.facts: list[dict[str, Any]] = []
        self.changes: list[Change] = []
        self.vacancies = Vacancies(self._begin_again, replacements)
        self._without = without
        self._resource_timeout = resource_timeout
        self._tell = tell
        self._news = news
        self._group: PlacementGroup | None = None
        self.actors: list[Any] = []
        self._watched: Watched | None = None
        self._losses = Losses(self.workers, len(servers))
        self._departures = Departures([], news)
        self._stopped = False  # by the user
        self._told_to_end = False
        self._served_until: float | None = None  # since when the parameter servers have had the result
        self._least = least
        self._newcomers: set[int] = set()
        self._left: set[int] = set()  # have said that they leave an elastic job
        self._ended = False  # a worker has come to the end
        self._unsure: dict[str, float] = {}  # nodes that did not answer, until when they are not used

    @property
    def servers(self) -> range:
        """Ranks of the parameter servers."""
        return range(self.workers, len(self.requests))

    @property
    def lead(self) -> int:
        """The rank whose checkpoints and figures count: the worker that is rank 0, or parameter server 0."""
        return self.workers if self.servers or not self.order else self.order[0]

    def number_of(self, rank: int) -> int | None:
        """The rank that it has now; None for parameter server 0."""
        if self.servers and rank == self.lead:
            return None
        return self.order.index(rank) if rank in self.order else rank

    def __enter__(self) -> Attempt:
        try:
            self._group = cluster.set_aside(self.requests, self._without, self._resource_timeout, self._tell,
                                            self._news)
            for index in range(len(self.requests)):  # one by one: those that have been made are ended in any case
                self.actors.append(self._make_actor(index))
            self.facts = self._ask_who()
            self._departures = Departures([fact["node"] for fact in self.facts], self._news)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def call(self, rank: int, method: str, *arguments: Any, seconds: float = _CALL_SECONDS) -> Any:
        """Calls a method of a rank's actor. AttemptFailed if the rank is gone."""
        return self._answer(rank, getattr(self.actors[rank], method).remote(*arguments), seconds)

    def places(self) -> list[Place]:
        """Ranks, addresses and devices; the leading rank's machine is asked for a free port."""
        hosts = {(fact["host"], fact["address"]) for fact in self.facts}
        self._one_machine = len(hosts.union((node.name, node.address) for node in cluster.living_nodes())) == 1
        return self._places(*self.call(self.lead, "free_port", self._one_machine))

    def place_of_newcomer(self, rank: int) -> Place | None:
        """Beside those who are there; None: none of them can be joined any more."""
        doors = list(dict.fromkeys(door for each in self._doors([rank]) for door in each.split(",")))
        if not doors:
            self._losses.add(Failure(rank, f"{self._name(rank)}: nobody is left whom it could join", "aborted", rank))
            return None
        address, _, port = doors[0].rpartition(":")
        return replace(self._places(address.strip("[]"), int(port))[rank], door=",".join(doors))

    def _places(self, address: str, port: int) -> list[Place]:
        # By machine, not by address: nodes of one machine share its processors. Containers have names of their own.
        machines = [(fact["host"], fact["machine"]) for fact in self.facts]
        world = len(self.facts)
        sizes = Counter(machines[:self.workers])  # servers are no rivals for the processors
        local: dict[tuple[str, str], list[str]] = {machine: [] for machine in machines}
        places = []
        for rank, (machine, fact) in enumerate(zip(machines, self.facts)):
            own_address = None if self._one_machine else fact["address"]
            if rank in self.servers:
                places.append(Place(rank, world, 0, 1, (), address, port, own_address, rank - self.workers, True))
                continue
            here = local[machine]
            here.append(fact["worker"])
            places.append(Place(rank, world, len(here) - 1, sizes[machine], tuple(here), address, port, own_address, None,
                                bool(self.servers), self._least))
        return places

    @staticmethod
    def make_token() -> str:
        """A secret for this try alone. It goes to the ranks as an argument of Ray's calls."""
        return secrets.token_hex(32)

    def on_all(self, calls: Mapping[int, Any]) -> None:
        """Waits for one call of each of these ranks."""
        for rank, call in calls.items():
            self._answer(rank, call, _CALL_SECONDS)

    def _answer(self, rank: int, call: Any, seconds: float) -> Any:
        try:
            return ray.get(call, timeout=seconds)
        except (RayActorError, GetTimeoutError) as gone:
            raise self._lost([rank], gone) from gone
        except RayTaskError as failed:
            if isinstance(failed.cause, Error):  # without Ray's account of how it travelled
                raise Error(f"{self._name(rank)}: {failed.cause}", failed.cause.code, rank) from None
            raise

    def stop(self) -> None:
        """Asks the ranks of a job file to save and end; does not wait. Parameter servers see to their workers."""
        self._stopped = True
        self._save_and_end()

    def _save_and_end(self) -> None:
        if not self._told_to_end:  # twice would be at once
            self._told_to_end = True
            for actor in self.actors[self.workers if self.servers else 0:]:
                actor.stop.remote()

    def watch(self, stoppable: bool) -> Iterator[tuple[int, dict[str, Any]]]:
        """The ranks' reports, as (rank, event), until all have ended. May be called again after it was left.

        A worker that the others do without is an event of kind ``given_up``, a rank whose node is being ended one of kind
        ``leaving``: of all at once if that is the cluster's end. ``vacant`` is a place in which a new actor runs.

        Args:
            stoppable: whether ``stop`` lets the ranks save; otherwise it waits for the next checkpoint when a node
                leaves.

        Raises:
            AttemptFailed: as soon as it is clear which rank has failed; ``in_order`` if all is saved and a node leaves.
        """
        watched = self._watched = self._watched or Watched(self.actors)
        while watched.open and not self._losses.decided() and not self._served_out():
            for rank, said in watched.hear(1.0):
                if failure := self._failure_in(rank, said):
                    if rank not in self._left:
                        self._lose(failure)
                        continue
                    said = {"kind": "ended", "interrupted": True, "report": None}  # nobody has waited for more
                if said["kind"] == "leads" or said.get("leads"):
                    self.order = [rank, *(other for other in self.order if other != rank)]
                if said["kind"] == "left":
                    self._losses.elastic = True
                    self._left.add(rank)
                    continue
                if said["kind"] == "ended" and rank not in self._departures.ranks | self._left:
                    self._ended = True
                if self.servers and rank == self.lead and said["kind"] == "ended":
                    self._served_until = time.monotonic()
                    yield from self._given_up(at_the_end=True)
                yield rank, said
                self._after_departure(rank, said, stoppable)
            for rank in watched.silent(_SILENCE_SECONDS + POLL_SECONDS):
                self._lose(self._gone(rank, None))
            if self._served_until is None:
                yield from self._given_up()
            yield from self._departing(stoppable)
            yield from self._filled()
            if self._served_until is None and self._ended and watched.open <= self._newcomers:
                self._served_until = time.monotonic()  # for latecomers
        if self._served_until is None and self._losses.fatal():
            raise self._failed(self._losses.open)

    def _departing(self, stoppable: bool) -> Iterator[tuple[int, dict[str, Any]]]:
        """Lets ranks save and end whose nodes are being ended: the workers alone where servers go on, else all."""
        if new := self._departures.notice():
            if self._departures.of_all:
                yield self.lead, {"kind": "leaving", "text": self._departures.of_all}
            else:
                for rank in new:
                    yield rank, {"kind": "leaving", "text": f"{self._name(rank)}: its node is being ended"}
            self._find_out_elastic()
            if not self._goes_on():
                self._save_and_end()
            else:
                for rank in new:
                    self.actors[rank].stop.remote(alone=True)
        if not self._goes_on() and self._departures.overdue(stoppable):
            raise self._departed()

    def _goes_on(self) -> bool:
        """Whether the job can do without those that leave."""
        leaving = self._departures.ranks
        there = self.workers - len(leaving | self._losses.gone)
        return bool(self.servers or self._losses.elastic) and there >= max(self._least, 1) and not leaving.intersection(self.servers)

    def _after_departure(self, rank: int, said: dict[str, Any], stoppable: bool) -> None:
        """AttemptFailed if that was the last word that is waited for before the job leaves a node."""
        ordered = rank in self._departures.ranks
        if said["kind"] == "ended" and (rank in self._left or ordered and self._goes_on()):
            self._losses.leave(rank)
            self._vacate("left", rank, f"{self._name(rank)} has left" + (": its node was ended" if ordered else ""), again=ordered)
        elif not self._departures.ranks or self._stopped or self._goes_on():
            return
        elif rank == self.lead and (said["kind"] == "ended" and said["interrupted"]
                                    or said["kind"] == "checkpoint" and not stoppable):
            raise self._departed()

    def _departed(self) -> AttemptFailed:
        return self._departures.end_of_try(self._name(min(self._departures.ranks)))

    def _given_up(self, at_the_end: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
        for failure in self._losses.survived(at_the_end):
            self._vacate("lost", failure.rank, failure.text)
            yield failure.rank, {"kind": "given_up", "text": failure.text}

    def _lose(self, failure: Failure) -> None:
        self._find_out_elastic()
        self._losses.add(failure)

    def can_lose(self, rank: int) -> bool:
        """Whether the others would go on without that rank."""
        self._find_out_elastic()
        return self._losses.elastic and bool(self._doors([rank]))

    def _find_out_elastic(self) -> None:
        if not self.servers and not self._losses.elastic:
            self._losses.elastic = bool(self._doors())

    def _doors(self, without: Collection[int] = ()) -> list[str]:
        """The addresses at which newcomers can join living workers of an elastic job."""
        there = self._watched.open if self._watched else ()
        asked = [self.actors[rank].door.remote() for rank in sorted(there) if rank not in without]
        doors = []
        for call in ray.wait(asked, num_returns=len(asked), timeout=_DEATH_SECONDS)[0] if asked else ():
            with contextlib.suppress(RayError):
                doors.append(ray.get(call))
        return [door for door in doors if door]

    def _vacate(self, what: str, rank: int, text: str, again: bool = True) -> None:
        """Another actor may take that worker's place, where the job is elastic, unless it is not to be filled ``again``."""
        self.changes.append(Change(what, rank, text))
        self._newcomers.discard(rank)
        if not self._losses.elastic:
            return
        self.order.remove(rank)
        if again and not self._told_to_end:
            until = time.monotonic() + _UNSURE_SECONDS
            self._unsure.update(dict.fromkeys(self._dead_nodes([rank]), until))
            self._dismiss([self.actors[rank]])
            self.vacancies.add(rank, counts=what == "lost")

    def _begin_again(self, rank: int) -> tuple[Any, Any] | None:
        """An actor in that place, which Ray has moved if its node is gone; None: there is no room just now."""
        if self._ended or self._told_to_end or self._departures.of_all or not self._news.answers:
            return None
        table = placement_group_table(self._group)
        unsure = {node for node, end in self._unsure.items() if end > time.monotonic()}
        nodes = {node.id for node in cluster.living_nodes({*unsure, *self._news.leaving})}
        if table["state"] != "CREATED" or table["bundles_to_node_id"].get(rank) not in nodes:
            return None
        actor = self._make_actor(rank)
        return actor, actor.describe.remote(self.requests[rank].worker)

    def _filled(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for rank, actor, fact, seconds in self.vacancies.filled():
            self.actors[rank], self.facts[rank] = actor, fact
            self._losses.come(rank)
            self._departures.come(rank, fact["node"])
            self._newcomers.add(rank)
            self._left.discard(rank)
            self.order.append(rank)
            self._watched.watch(rank)
            text = f"{self._name(rank)} comes in the place of one that was lost"
            self.changes.append(Change("came", rank, text, seconds))
            yield rank, {"kind": "vacant", "text": text}

    def _served_out(self) -> bool:
        """Whether the job is done, for so long that nobody needs to be waited for."""
        return self._served_until is not None and time.monotonic() - self._served_until > _END_SECONDS

    def _failure_in(self, rank: int, said: Any) -> Failure | None:
        if isinstance(said, RayActorError):
            return self._gone(rank, said)
        if said["kind"] != "failed":
            return None
        text = f"{self._name(rank)} {said['text']}" if said["died"] else f"{self._name(rank)}: {said['text']}"
        return Failure(rank, text, said["code"], said.get("about"), said["died"], said["own"])

    def _failed(self, failures: dict[int, Failure]) -> AttemptFailed:
        cause = root_cause(list(failures.values()))
        blamed = cause.about if cause.code == "peer_lost" and not self.servers else None
        if not cause.died and blamed is not None and blamed not in failures:
            # The others have lost it, and it says nothing itself.
            cause = Failure(blamed, f"{self._name(blamed)} was lost: {cause.text}", "peer_lost", blamed, died=True)
        silent = [rank for rank in range(len(self.actors)) if rank not in failures or failures[rank].died]
        return AttemptFailed(cause, self._dead_nodes(silent))

    def _lost(self, ranks: list[int], why: BaseException) -> AttemptFailed:
        failure = self._gone(ranks[0], why if isinstance(why, RayActorError) else None)
        return AttemptFailed(failure, self._dead_nodes(ranks))

    def _gone(self, rank: int, why: RayActorError | None) -> Failure:
        reason = "its process is gone" if why else "it does not answer any more"
        return Failure(rank, f"{self._name(rank)} was lost: {reason}", "peer_lost", rank, died=True)

    def _dead_nodes(self, ranks: Sequence[int]) -> frozenset[str]:
        """Among those ranks' nodes, the ones that don't answer, whether Ray has noticed or not."""
        pings = {self.actors[rank].events.remote(0, 0.0): rank for rank in ranks}
        answered, silent = ray.wait(list(pings), num_returns=len(pings), timeout=_DEATH_SECONDS) if pings else ([], [])
        lost = [pings[ping] for ping in silent]
        for ping in answered:
            try:
                ray.get(ping)
            except ActorDiedError:
                pass  # Ray knows that the process is gone, and so whether its node is
            except RayActorError:
                lost.append(pings[ping])
        nodes = self._nodes() if lost else {}
        return frozenset(nodes[rank] for rank in lost if nodes.get(rank))

    def _nodes(self) -> dict[int, str]:
        """Each rank's, as far as known."""
        if self.facts:
            return {rank: fact["node"] for rank, fact in enumerate(self.facts)}
        return placement_group_table(self._group)["bundles_to_node_id"] if self._news.answers else {}

    def _name(self, rank: int) -> str:
        if rank >= len(self.facts):
            return f"rank {rank}"
        fact = self.facts[rank]
        return f"rank {rank} ({fact['worker']} on {fact['host']}, {fact['address']}, pid {fact['pid']})"

    def _make_actor(self, index: int) -> Any:
        resources = dict(self.requests[index].resources)
        options = {"num_cpus": resources.pop("CPU", 0), "num_gpus": resources.pop("GPU", 0), "resources": resources}
        strategy = PlacementGroupSchedulingStrategy(placement_group=self._group, placement_group_bundle_index=index)
        return ray.remote(Worker).options(
            **options, scheduling_strategy=strategy, max_restarts=0, max_concurrency=_THREADS).remote()

    def _ask_who(self) -> list[dict[str, Any]]:
        asked = [actor.describe.remote(request.worker) for actor, request in zip(self.actors, self.requests)]
        facts = []
        for rank, call in enumerate(asked):
            try:
                facts.append(self._started(rank, call))
            except GetTimeoutError as slow:
                failure = Failure(rank, f"the process for {self.requests[rank].role} {self.requests[rank]} did not start within "
                                  f"{_START_SECONDS:.0f} s", "timeout", rank, died=True)
                raise AttemptFailed(failure, self._dead_nodes([rank])) from slow
            except RayError as failed:
                raise self._start_failure(rank, failed) from failed
        for rank, fact in enumerate(facts):
            if fact["bimetal"] != _build.VERSION:
                raise error(f"rank {rank} on {fact['host']} ({fact['address']}) has Bimetal {fact['bimetal']}, the "
                            f"driver has {_build.VERSION}: install the same on all nodes", "protocol_mismatch", rank)
        return facts

    def _started(self, rank: int, call: Any) -> dict[str, Any]:
        """An actor's description of itself once its process runs; AttemptFailed if the cluster is over before that."""
        until = time.monotonic() + _START_SECONDS
        while True:
            try:
                return ray.get(call, timeout=1.0)
            except GetTimeoutError:
                if over := self._news.over:
                    raise AttemptFailed(Failure(rank, over, self._news.code)) from None
                if time.monotonic() >= until:
                    raise

    def _start_failure(self, rank: int, failed: RayError) -> Exception:
        text, request = str(failed), self.requests[rank]
        if "No module named 'bimetal" in text:
            return error(f"a node for {request.role} {request} has no Bimetal that its Python can import: install it there, by "
                         "pip install, or by PYTHONPATH=build/python before the node is started", "unsupported", rank)
        if isinstance(failed, RayActorError) and "error raised in its creation" not in text:
            failure = Failure(rank, f"the process for {request.role} {request} is gone: {text}", "peer_lost", rank, died=True)
            return AttemptFailed(failure, self._dead_nodes([rank]))
        return error(f"{request.role} {request} could not start: {text}", "unsupported", rank)

    def _end(self) -> None:
        """No actor is left and no resources are kept, even if something interrupts it, such as a second Ctrl-C."""
        self._news.look()
        try:
            self._dismiss([*self.actors, *self.vacancies.coming])
        finally:
            if self._group is not None:
                cluster.give_back(self._group, self._news)

    def _dismiss(self, actors: Sequence[Any]) -> None:
        try:
            leaving = [actor.leave.remote() for actor in actors]
            ray.wait(leaving, num_returns=len(leaving), timeout=1.0) if leaving else None
        finally:
            for actor in actors:
                # Ray's kill goes by way of the head node, if it still is there.
                ray.kill(actor) if self._news.answers else actor.__ray_terminate__.remote()
