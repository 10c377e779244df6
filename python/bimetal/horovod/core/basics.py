"""The questions that Horovod scripts ask about ranks and about what is built in."""

from __future__ import annotations

from typing import Any

from bimetal._errors import Error
from bimetal.horovod.core import membership, world
from bimetal.horovod.core.objects import broadcast_object
from bimetal.horovod.core.process_sets import add_those_of_init
from bimetal.horovod.core.recording import start_as_the_environment_says
from bimetal.horovod.core.world import is_initialized, shutdown

__all__ = ["ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled", "init",
           "is_homogeneous", "is_initialized", "local_rank", "local_size", "mpi_built", "mpi_enabled",
           "mpi_threads_supported", "nccl_built", "rank", "rocm_built", "shutdown", "size"]


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


def mpi_threads_supported() -> bool:
    """False: collectives do not go through MPI."""
    return False


def mpi_enabled() -> bool:
    """False: collectives do not go through MPI, also where mpirun has started the ranks."""
    return False


def mpi_built() -> bool:
    """False: collectives do not go through MPI."""
    return False


def gloo_enabled() -> bool:
    """False: Bimetal's own fabric stands in the place of Gloo."""
    return False


def gloo_built() -> bool:
    """False: Bimetal's own fabric stands in the place of Gloo."""
    return False


def nccl_built() -> int:
    """0: tensors of devices are exchanged through host memory."""
    return 0


def ddl_built() -> bool:
    """False."""
    return False


def ccl_built() -> bool:
    """False."""
    return False


def cuda_built() -> bool:
    """False: nothing here was compiled against CUDA; CUDA tensors are staged by torch."""
    return False


def rocm_built() -> bool:
    """False: as cuda_built()."""
    return False
