"""Processes that ranks fork, as DataLoader's workers are, while collectives run on other threads."""

import os
import signal
import sys
import threading
import time
import unittest

import ranks
import torch
import torch.distributed as dist

FORKS = 300


def fork_often(work):
    """Forks while work(stop) runs on a thread. Returns how many children did not get as far as Python again."""
    stop = threading.Event()
    failed = []

    def run():
        try:
            work(stop)
        except BaseException as error:  # noqa: BLE001
            failed.append(error)
    thread = threading.Thread(target=run)
    thread.start()
    stuck = 0
    while thread.is_alive():
        for _ in range(0 if stop.is_set() else FORKS):
            child = os.fork()
            if child == 0:
                os._exit(7)
            if not ends_in_time(child):
                stuck += 1
                break
        stop.set()
        thread.join(0.01)
    if failed:
        raise failed[0]
    return stuck


def ends_in_time(child, status=7):
    until = time.monotonic() + 20
    while time.monotonic() < until:
        pid, how = os.waitpid(child, os.WNOHANG)
        if pid:
            assert os.waitstatus_to_exitcode(how) == status, how
            return True
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def all_stop(stop):
    """Whether this rank is through; all ranks have to be."""
    mine = torch.tensor([int(stop.is_set())])
    dist.all_reduce(mine, dist.ReduceOp.MIN)
    return bool(mine)


def callbacks_meanwhile():
    """Futures' callbacks run on threads of the process group."""
    def work(stop):
        while not all_stop(stop):
            futures = [dist.all_reduce(torch.ones(20_000), async_op=True).get_future().then(lambda f: f.value()[0])
                       for _ in range(8)]
            assert all(future.wait()[0] == dist.get_world_size() for future in futures)
    return fork_often(work)


def children_that_end_as_programs_do():
    """By sys.exit(), after which Python tidies up: the parent's groups are not the child's to end."""
    import bimetal.horovod.torch as hvd
    hvd.init()
    dist.init_process_group("bimetal")
    dist.all_reduce(torch.ones(100_000))
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            sys.exit(9)
        children.append(child)
    ended = [ends_in_time(child, 9) for child in children]
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum)[0] == hvd.size()
    dist.all_reduce(torch.ones(3))
    return ended


class Fork(unittest.TestCase):
    def slow(self):
        path = os.environ.get("BIMETAL_SLOW_THREAD_STATES")
        return {"LD_PRELOAD": path} if path else None

    def test_while_callbacks_run(self):
        self.assertEqual(ranks.on_ranks(2, callbacks_meanwhile, timeout=280, environment=self.slow()), [0, 0])

    def test_children_that_end_as_programs_do(self):
        self.assertEqual(ranks.on_ranks(2, children_that_end_as_programs_do, backend=None), [[True] * 3] * 2)


if __name__ == "__main__":
    ranks.main(globals())
