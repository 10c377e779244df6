"""Process sets come and go: on all ranks alike."""

from __future__ import annotations

from collections.abc import Iterable

from bimetal._errors import Error
from bimetal.horovod.core import world
from bimetal.horovod.core.engine import Engine
from bimetal.horovod.core.objects import allgather_object
from bimetal.horovod.core.request import Misuse
from bimetal.horovod.core.submit import ProcessSet, global_process_set


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Gives some ranks collectives of their own. All ranks call it, with the same ranks, those outside too.

    The set shares the connections that there are already. It lasts until ``remove_process_set`` or ``shutdown()``,
    and in an elastic job no longer than the world: add it again in a reset callback.

    Returns:
        The set: ``process_set`` itself, or one made of the list.

    Raises:
        ValueError: for ranks that are not there, and for a set, or one of the same ranks, that has been added.
        bimetal.Error: ``call_mismatch`` on all ranks where they do not name the same.
    """
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    here = world.current()
    everyones = allgather_object(made.ranks, name="process_sets.add")
    for rank, ranks in enumerate(everyones):
        if ranks != everyones[0]:
            raise Error(f"rank 0 adds a process set of ranks {everyones[0]}, but rank {rank} one of {ranks}",
                        "call_mismatch", rank)
    if made.ranks[-1] >= here.size:
        raise Misuse(f"{made} has ranks that are not there: there are {here.size}, from 0")
    for other in [global_process_set, *here.sets.values()]:
        if other.ranks == made.ranks:
            raise Misuse(f"{made} is there already: it is number {other.process_set_id}")
    number = here.number_of_next_set()
    if here.rank in made.ranks:
        here.set_engines[number] = Engine(world.make_group_of(made.ranks, number), made.ranks)
    made.process_set_id = number
    here.sets[number] = made
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Ends a process set. All ranks call it. Pending requests in it fail.

    Returns:
        False if there is nothing to remove: it is not added, or is that of all ranks.
    """
    here = world.current()
    number = process_set.process_set_id
    if not number or here.sets.get(number) is not process_set:
        return False
    numbers = allgather_object(number, name="process_sets.remove")
    for rank, other in enumerate(numbers):
        if other != numbers[0]:
            raise Error(f"rank 0 removes process set {numbers[0]}, but rank {rank} number {other}", "call_mismatch", rank)
    del here.sets[number]
    process_set.process_set_id = None
    if engine := here.set_engines.pop(number, None):
        engine.close(world.SECONDS_TO_CLOSE)
    return True


def add_those_of_init(process_sets: object) -> None:
    """The sets that Horovod's init() takes: sets or lists of ranks to add, or "dynamic", which says that some may come
    later."""
    if process_sets is None or process_sets == "dynamic":
        return
    if isinstance(process_sets, str) or not isinstance(process_sets, Iterable):
        raise Misuse(f"process_sets of init() are a list of process sets, or \"dynamic\", not {process_sets!r}")
    for process_set in process_sets:
        add_process_set(process_set)
