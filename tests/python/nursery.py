"""Ranks of tests as processes forked from one that has imported torch: importing it takes two seconds of a processor, and most
tests start several ranks that live for less.

Each rank number has a nursery of its own, so that ranks differ in what an interpreter draws when it starts (the order of sets),
as on machines of their own. `bimetal` itself, and the test file, every rank imports by itself; interpreters end as ever.
"""

import ast
import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time

AT_START = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
# Variables that the interpreter, the loader or torch read when they start.
READ_AT_START = ("LD_", "GLIBC_", "MALLOC_", "PYTHON", "TORCH_", "PYTORCH_", "OMP_", "MKL_", "GOMP_", "KMP_", "OPENBLAS_")
LARGEST = 1 << 20
PATIENCE_S = 120

_nurseries = {}


class Forked:
    """A process of a nursery, with what tests use of subprocess.Popen."""

    def __init__(self, nursery):
        self.nursery, self.pid, self.returncode = nursery, None, None

    def begin(self):
        """Waits until it is there: before, it has no pid and cannot be used."""
        until = time.monotonic() + PATIENCE_S
        while self.pid is None:
            if time.monotonic() > until:
                raise AssertionError("the process that ranks are forked from does not answer")
            self.nursery.hear(1.0)

    def poll(self):
        self.nursery.hear(0)
        return self.returncode

    def wait(self, timeout=None):
        until = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = 1.0 if until is None else until - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self.nursery.hear(min(left, 1.0))
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Nursery:
    def __init__(self, file):
        self.channel, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.asked, self.running = [], {}  # those that have not begun yet, in their order; those that have not ended, by pid
        self.environment = {**os.environ, **AT_START}
        with there:
            self.process = subprocess.Popen([sys.executable, __file__, str(there.fileno()), file], pass_fds=[there.fileno()],
                                            stdin=subprocess.DEVNULL, start_new_session=True, env=self.environment)

    def can_be(self, environment):
        """Whether a process with these variables would have started as this one has."""
        def read(variables):
            return {name: value for name, value in variables.items() if name.startswith(READ_AT_START)}
        return read(environment) == read(self.environment)

    def ask(self, file, environment, output):
        process = Forked(self)
        self.asked.append(process)
        self.channel.send(json.dumps({"file": file, "environment": environment, "output": str(output)}).encode())
        return process

    def end(self):
        self.channel.close()
        self.process.wait(PATIENCE_S)

    def hear(self, timeout):
        """Takes the news that are there, or come within `timeout` seconds."""
        while select.select([self.channel], [], [], timeout)[0]:
            said = self.channel.recv(LARGEST)
            if not said:
                raise AssertionError("the process that ranks are forked from has ended")
            news = json.loads(said)
            if "begun" in news:
                process = self.asked.pop(0)
                process.pid = news["begun"]
                self.running[process.pid] = process
            elif news["ended"] in self.running:
                self.running.pop(news["ended"]).returncode = news["status"]
            timeout = 0


def is_wanted():
    """Whether the test says (tests/python/CMakeLists.txt) that its ranks need neither a parent in common, by which launchers' ranks
    meet, nor to be the test's own children."""
    return bool(os.environ.get("BIMETAL_TEST_NURSERY"))


def prepare(count, file):
    """Starts what ranks 0 to count - 1 are forked from, all at once: each imports for seconds."""
    for rank in range(count if sys.platform == "linux" else 0):
        if rank not in _nurseries:
            _nurseries[rank] = Nursery(file)
            atexit.register(_nurseries[rank].end)


def ask(rank, file, environment, output):
    """Asks for a prepared rank: `file` run by a process of its own, with only these variables and its output in
    `output`. Its begin() waits for it. None if only a new interpreter will do."""
    nursery = _nurseries.get(rank)
    return nursery.ask(file, environment, output) if nursery and nursery.can_be(environment) else None


def give_up_asking():
    """Ends those that owe an answer, which would be taken for the answer to what is asked next."""
    for rank, nursery in list(_nurseries.items()):
        if nursery.asked:
            del _nurseries[rank]
            nursery.process.kill()
            nursery.end()


# ---- in the nursery -----------------------------------------------------------------------------------


def import_what_it_begins_with(file):
    """torch, and what else of torch the file imports at its top."""
    with open(file) as source:
        body = ast.parse(source.read()).body
    names = {"torch", "torch.distributed"}
    for statement in body:
        if isinstance(statement, ast.Import):
            names |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and not statement.level:
            names.add(statement.module)
    for name in sorted(name for name in names if name.split(".")[0] == "torch"):
        importlib.import_module(name)
    gc.freeze()  # what stays for ever is not looked through again whenever a rank ends


def tell_of_ends(channel):
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        channel.send(json.dumps({"ended": pid, "status": os.waitstatus_to_exitcode(status)}).encode())


def next_rank(channel):
    """Forks for each request; returns it in the child."""
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready = select.select([channel, woken], [], [])[0]
        if woken in ready:
            woken.recv(LARGEST)
        tell_of_ends(channel)
        if channel not in ready:
            continue
        request = channel.recv(LARGEST)
        if not request:
            os._exit(0)  # the test has ended
        parent = os.getpid()
        if os.fork() == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()  # before anybody hears of it: it is ended by its process group
            ranks.die_with_parent()
            if os.getppid() != parent:
                os._exit(1)
            channel.send(json.dumps({"begun": os.getpid()}).encode())
            for end in (channel, woken, waker):
                end.close()
            return json.loads(request)


def become(request):
    """Takes on what a process that runs the file would have; returns the file's code."""
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(request["environment"])
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # from the system, as when it is imported; Python's own is by itself
    file = request["file"]
    sys.argv = [file]
    sys.path[0] = os.path.dirname(os.path.abspath(file))
    with open(file) as source:
        return compile(source.read(), file, "exec", dont_inherit=True)


if __name__ == "__main__":
    import ranks

    ranks.die_with_parent()
    import_what_it_begins_with(sys.argv[2])
    _code = become(next_rank(socket.socket(fileno=int(sys.argv[1]))))
    __file__ = sys.argv[0]
    for _name in [name for name in globals() if not name.startswith("_")]:
        del globals()[_name]
    exec(_code)  # at the top, as an interpreter would: its classes are __main__'s, and nothing is below it when it ends
