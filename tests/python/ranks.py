"""Ranks of a torch.distributed job as processes of a test.

A test file has functions that run on every rank, and unittest cases that start them with ``on_ranks``; it
ends with ``ranks.main(globals())``, which does what this process is for.
"""

import ctypes
import importlib.util
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import nursery

BODY = "BIMETAL_TEST_BODY"
ARGUMENTS = "BIMETAL_TEST_ARGUMENTS"
RESULT = "BIMETAL_TEST_RESULT"
LEAVE = "BIMETAL_TEST_LEAVE"  # end without destroy_process_group()

# The variables by which a launcher of torch's kind tells a rank what it is.
VARIABLES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]


class Job:
    """Processes that are gone when the job is left, whatever happens.

    `environment` is added for all, `each(rank)` for one; `unset` names what they are not to see. `file`: a rank's command runs
    it, and so may a process that has torch already (nursery.py).
    """

    def __init__(self, ranks, commands, environment=None, unset=(), each=None, file=None):
        self.folder = tempfile.TemporaryDirectory(prefix="bimetal-test-")
        self.results = [pathlib.Path(self.folder.name) / f"{rank}.json" for rank in range(ranks)]
        self.outputs = [pathlib.Path(self.folder.name) / f"{rank}.txt" for rank in range(ranks)]
        common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks),
                  "LOCAL_WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
                  **(environment or {})}
        self.processes = []
        try:
            if file:
                nursery.prepare(ranks, file)
            for rank, command in enumerate(commands):
                own = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank), RESULT: str(self.results[rank])}
                own = {name: value for name, value in own.items() if name not in unset} | (each(rank) if each else {})
                self.processes.append(self.begun(rank, command, own, file))
            for process in self.processes:
                if not isinstance(process, subprocess.Popen):
                    process.begin()
        except BaseException:
            nursery.give_up_asking()
            self.__exit__()
            raise

    def begun(self, rank, command, environment, file):
        asked = nursery.ask(rank, file, environment, self.outputs[rank]) if file else None
        if asked:
            return asked
        with open(self.outputs[rank], "wb") as output:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                    start_new_session=True, env=environment)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        there = [process for process in self.processes if process.pid is not None]
        try:
            for process in there:
                try:
                    os.killpg(process.pid, signal.SIGKILL)  # and what it has started
                except ProcessLookupError:
                    pass
            for process in there:
                process.wait()
        finally:
            self.folder.cleanup()

    def wait(self, timeout):
        """Exit statuses; AssertionError with all output when somebody is not through in time."""
        until = time.monotonic() + timeout
        for process in self.processes:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"not done after {timeout} s\n{self.text()}") from None
        return [process.returncode for process in self.processes]

    def wait_for(self, word, timeout):
        """Until every rank has printed it; AssertionError with all output if one ends before, or after `timeout` s."""
        until = time.monotonic() + timeout
        while not all(word in self.output(rank) for rank in range(len(self.outputs))):
            if time.monotonic() > until or any(process.poll() is not None for process in self.processes):
                raise AssertionError(self.text())
            time.sleep(0.05)

    def output(self, rank):
        """Its output; nothing before a forked rank has made its file."""
        try:
            return self.outputs[rank].read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def text(self):
        return "\n".join(f"--- rank {rank}\n{self.output(rank)}" for rank in range(len(self.outputs)))

    def value(self, rank):
        """The result of the rank's body."""
        return json.loads(self.results[rank].read_text())


def start(count, body, *arguments, backend="bimetal", environment=None, unset=(), each=None):
    """Starts `body` (a function of the calling file) on `count` ranks that have a default group."""
    file = arguments[0] if body is _bodies else body.__globals__["__file__"]
    return Job(count, [[sys.executable, file]] * count,
               {BODY: body.__name__, ARGUMENTS: json.dumps([backend, list(arguments)]), **(environment or {})},
               unset, each, file if nursery.is_wanted() else None)


def on_ranks(count, body, *arguments, backend="bimetal", timeout=150, environment=None):
    """The result of `body` on each rank (through JSON). AssertionError with all output if any rank fails."""
    with start(count, body, *arguments, backend=backend, environment=environment) as job:
        statuses = job.wait(timeout)
        if any(statuses):
            raise AssertionError(f"exit statuses {statuses}\n{job.text()}")
        return [job.value(rank) for rank in range(count)]


def several(count, calls, timeout=300):
    """The results of each rank's bodies, [(body, arguments…)…] one after the other in the same processes, since
    starting them takes longer."""
    return on_ranks(count, _bodies, calls[0][0].__globals__["__file__"], [(body.__name__, *arguments) for body, *arguments in calls],
                    timeout=timeout)


def _bodies(_, calls):
    names = sys.modules["__main__"].__dict__
    return [names[name](*arguments) for name, *arguments in calls]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def installed(*packages):
    return all(map(importlib.util.find_spec, packages))


def needs(*packages):
    """Skips a case, or a class of them, where one of these is not installed."""
    return unittest.skipUnless(installed(*packages), f"needs {', '.join(packages)}")


def skip_all_without(*packages, how):
    """Ends the program with 77, which CTest counts as skipped, where one of these is not installed."""
    if not installed(*packages):
        print(f"skipped: needs {', '.join(packages)}; {how}")
        sys.exit(77)


def save(value):
    pathlib.Path(os.environ[RESULT]).write_text(json.dumps(value))


def raises(kind, call, *fragments):
    """The exception of that kind that call() raises; AssertionError if it does not, or without the fragments."""
    try:
        call()
    except kind as error:
        for fragment in fragments:
            assert fragment in str(error), f"{fragment!r} is not in: {error}"
        return error
    raise AssertionError(f"no {kind.__name__}")


def refused(call, code, *fragments):
    """bimetal's error with that code, likewise."""
    import bimetal
    error = raises(bimetal.Error, call, *fragments)
    assert error.code == code, (error.code, error)
    return error


def die_with_parent():
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def old_gloo_is_there(torch, dist):
    """Whether there is a group of Gloo's that torch ends with Python's lock held, for which Gloo's threads may wait: seen in 2.4."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 11) or not dist.is_initialized():
        return False
    return "gloo" in map(dist.get_backend, dist.distributed_c10d._world.pg_map)


def main(names):
    if BODY not in os.environ:
        unittest.main(module=names["__name__"], verbosity=2)
        return
    die_with_parent()
    import torch
    import torch.distributed as dist

    import bimetal  # noqa: F401

    torch.set_num_threads(1)
    backend, arguments = json.loads(os.environ[ARGUMENTS])
    if backend:
        dist.init_process_group(backend)
    body = os.environ[BODY]
    save((_bodies if body == _bodies.__name__ else names[body])(*arguments))
    if backend == "gloo" or old_gloo_is_there(torch, dist):
        # The back end that others are compared with. Its threads may hold a callback of Python's still, which aborts a
        # process whose interpreter ends meanwhile.
        dist.barrier()
        sys.stdout.flush()
        os._exit(0)
    if dist.is_initialized() and LEAVE not in os.environ:
        dist.destroy_process_group()
