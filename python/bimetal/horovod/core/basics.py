"""The calls that Horovod scripts make in every framework alike: about ranks and built-in features, and process sets."""

from __future__ import annotations

from typing import Any

from bimetal._errors import Error
from bimetal._errors import Error as HorovodInternalError
from bimetal.horovod.core import membership, world
from bimetal.horovod.core.objects import allgather_object, broadcast_object
from bimetal.horovod.core.process_sets import add_process_set, add_those_of_init, remove_process_set
from bimetal.horovod.core.recording import start_as_the_environment_says, start_timeline, stop_timeline
from bimetal.horovod.core.request import Adasum, Average, Max, Min, Product, Sum
from bimetal.horovod.core.submit import ProcessSet, barrier, global_process_set, join
from bimetal.horovod.core.world import is_initialized, shutdown

__all__ = ["Adasum", "Average", "HorovodInternalError", "Max", "Min", "ProcessSet", "Product", "Sum", "add_process_set",
           "allgather_object", "barrier", "broadcast_object", "ccl_built", "cross_rank", "cross_size", "cuda_built",
           "ddl_built", "global_process_set", "gloo_built", "gloo_enabled", "init", "is_homogeneous", "is_initialized",
           "join", "local_rank", "local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "rank",
           "remove_process_set", "rocm_built", "shutdown", "size", "start_timeline", "stop_timeline"]


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Meets the other ranks, as the environment describes them (docs/horovod.md); alone where it describes none.

    Where ``torch.distributed`` is initialised already, its ranks and store are used. Collective; a second call
    does nothing.

    Args:
        comm: for Horovod's signature: all ranks take part, so None or nothing in it.
        process_sets: a list of ``ProcessSet`` to add; or "dynamic", since more can always be added.

    Raises:
        bimetal.Error: ``invalid_argument`` for variables that make no sense, ``timeout`` naming the ranks that did
            not come within HOROVOD_GLOO_TIMEOUT_SECONDS (300), ``unsupported`` for a communicator.
    """
    if comm:
        raise Error("init() takes all ranks: communicators are not there; use process_sets=", "unsupported")
    if world.is_initialized():
        return
    if world.meet():
        place = world.first_place()
        world.enter(world.meeting().store, place.rank, place.size, world.next_generation())
        _leave_the_meeting_place()
        add_those_of_init(process_sets)
    else:
        membership.come_later()
    world.end_with_the_process()
    start_as_the_environment_says()


def _leave_the_meeting_place() -> None:
    """A file by which the ranks have met goes away: the same launcher may start others. Collective."""
    meeting, here = world.meeting(), world.current()
    if meeting.file is not None:
        meeting.go_on_in(broadcast_object(meeting.name_for_later(), name="meeting"), here.rank, here.size)
        here.store = meeting.store


def rank() -> int:
    """This process's number among all, from 0. ValueError before init(), as in all that follow."""
    return world.current().rank


def size() -> int:
    """How many processes there are."""
    return world.current().size


def local_rank() -> int:
    """This process's number among those of its host, from 0: which device to take."""
    return world.current().local_rank


def local_size() -> int:
    """How many processes this host has."""
    return world.current().local_size


def cross_rank() -> int:
    """This host's number among those that have a process of this local rank."""
    return world.current().cross_rank


def cross_size() -> int:
    """How many hosts have a process of this local rank."""
    return world.current().cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have equally many processes."""
    return world.current().homogeneous


def mpi_enabled() -> bool:
    """False, as all that follow: collectives go by Bimetal's own fabric, and those of devices' tensors through host memory."""
    return False


mpi_threads_supported = mpi_built = gloo_enabled = gloo_built = ddl_built = ccl_built = cuda_built = rocm_built = mpi_enabled


def nccl_built() -> int:
    """0: tensors of devices are exchanged through host memory."""
    return 0
