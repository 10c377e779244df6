"""Runs the real `bimetal` in small, fast jobs, breaks something, and checks what is left behind.

Every process that a test starts carries a variable with the test's own identity, which its children
inherit: so the harness finds each of them, whatever its parent is by then.
"""

import fcntl
import json
import math
import os
import pathlib
import re
import resource
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BIMETAL = os.environ.get("BIMETAL") or str(REPOSITORY / "build" / "bimetal")
MARK = "BIMETAL_FAULT_TEST"
# How many times longer than on a quiet machine the short timeouts of jobs are, after which a healthy process counts as lost:
# $BIMETAL_TEST_PATIENCE, or by the load. Tests that time an order of events, and no seconds, pass with any.
PATIENCE = float(os.environ.get("BIMETAL_TEST_PATIENCE") or max(1, os.getloadavg()[0] / (2 * os.cpu_count())))
PATIENCE_S = 120 * PATIENCE  # a noisy machine of two cores; nothing here waits that long unless it is broken
SHORT_S = 6  # the longest of these timeouts

# Exit statuses of docs/errors.md.
INVALID_ARGUMENT, TIMEOUT, PEER_LOST, ABORTED, UNAUTHORIZED = 2, 4, 5, 6, 7
PROTOCOL_MISMATCH, CALL_MISMATCH, OUT_OF_MEMORY, NOT_FINITE, SYSTEM, INTERRUPTED = 8, 9, 11, 12, 13, 130
UNSUPPORTED = 3


def alone(reason):
    """Marks a case, or a class of them, beside which nothing may run: CTest's registration reads the attribute."""
    def mark(case):
        case.alone = reason
        return case
    return mark


def waits(case):
    """Marks a case, or a class of them, that waits more than it computes: others may run beside it."""
    case.waits = True
    return case


def patient(seconds):
    """A job's short timeout, as it is on this machine."""
    return math.ceil(PATIENCE * seconds)


def limited(which, most):
    """For Popen: what the process and its children may have at most."""
    return {"preexec_fn": lambda: resource.setrlimit(which, (most, most))}


def free_port(host="127.0.0.1"):
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def own_address():
    """The address by which other machines would reach this one; skips the test if there is none beyond loopback.
    Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            raise unittest.SkipTest("this machine has no address beyond loopback") from None
        return probe.getsockname()[0]


def write_idx(path, dims, data):
    header = struct.pack(">BBBB", 0, 0, 8, len(dims)) + b"".join(struct.pack(">I", d) for d in dims)
    path.write_bytes(header + data)


def write_dataset(folder, train=1024, test=128, side=28):
    """Images whose brightness tells their label: anything learns them."""
    folder.mkdir()
    for prefix, count in (("train", train), ("t10k", test)):
        labels = bytes(i % 10 for i in range(count))
        images = b"".join(
            bytes((label * 25 + (i * 7 + p * p) % 11) % 256 for p in range(side * side))
            for i, label in enumerate(labels[:10])
        )
        images = (images * (count // 10 + 1))[: count * side * side]
        write_idx(folder / f"{prefix}-images-idx3-ubyte", (count, side, side), images)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", (count,), labels)


def write_token(path):
    """As `bimetal token` does, whose start takes longer."""
    path.touch(0o600)
    path.write_text(secrets.token_hex(32) + "\n")
    return path


class Job:
    """One `bimetal` command in the background, with its output."""

    def __init__(self, test, arguments, program=None, environment=None, folder=None, **popen):
        self.out_path = test.folder / f"{uuid.uuid4().hex}.out"
        self.err_path = self.out_path.with_suffix(".err")
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.process = subprocess.Popen(
                [*(program or [BIMETAL]), *map(str, arguments)],
                stdout=out, stderr=err, stdin=subprocess.DEVNULL, start_new_session=True,
                cwd=folder or test.folder, env={**test.environment, **(environment or {})}, **popen)

    @property
    def out(self):
        return self.out_path.read_text(errors="replace")

    @property
    def err(self):
        return self.err_path.read_text(errors="replace")

    @property
    def pid(self):
        return self.process.pid

    def interrupt(self):
        """Ctrl-C at the terminal: SIGINT to the foreground process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self):
        """By Ctrl-C, in good order."""
        self.interrupt()
        return self.done(INTERRUPTED)

    def wait(self):
        try:
            self.status = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job hangs; it said:\n{self.out}\n{self.err}") from None
        return self

    def done(self, status=0):
        """Waits for its end, with that exit status."""
        self.wait()
        if self.status != status:
            raise AssertionError(f"exit status {self.status} in place of {status}; it said:\n{self.out}\n{self.err}")
        return self

    def wait_for_output(self, text):
        wait_until(lambda: text in self.out + self.err or self.process.poll() is not None,
                   f"output '{text}'", self)
        if text not in self.out + self.err:
            raise AssertionError(f"the job ended without '{text}':\n{self.out}\n{self.err}")

    def error(self):
        """The one message of a failed job."""
        return "\n".join(re.findall(r"bimetal: error: (.*(?:\n  .*)*)", self.err))


def wait_until(condition, what, job=None):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            said = f"; the job said:\n{job.out}\n{job.err}" if job else ""
            raise AssertionError(f"waited in vain for {what}{said}")
        time.sleep(0.02)


class FaultTest(unittest.TestCase):
    """A folder with data and a job file; after each test nothing may be left running or lying."""

    image_side = 28

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="bimetal-fault-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        self.checkpoints = self.folder / "checkpoints"
        self.mark = uuid.uuid4().hex
        self.environment = {**os.environ, MARK: self.mark, "TMPDIR": str(self.temporary),
                            "BIMETAL_CACHE": str(self.folder / "cache"), "OMP_NUM_THREADS": "1",
                            "NO_COLOR": "1"}
        for name in ("RANK", "WORLD_SIZE", "BIMETAL_TOKEN", "BIMETAL_TOKEN_FILE"):
            self.environment.pop(name, None)
        write_dataset(self.folder / "data", side=self.image_side)
        self.addCleanup(self.kill_leftovers)

    def tearDown(self):
        self.assert_nothing_left()

    # ---- jobs ------------------------------------------------------------------------------------

    def write_job(self, name="job.toml", **settings):
        """`settings` are section__key=value; the job runs for ever unless they say otherwise."""
        keys = {"model__name": "mlp", "data__path": str(self.folder / "data"),
                "train__epochs": 1_000_000, "train__global_batch": 64, "train__evaluate": False,
                "train__learning_rate": 0.001, "checkpoint__dir": str(self.checkpoints),
                "checkpoint__every_steps": 20, "cluster__join_timeout_s": 60,
                "parallel__timeout_s": 30, **settings}
        sections = {}
        for key, value in keys.items():
            section, name_of_key = key.split("__", 1)
            if name_of_key in ("timeout_s", "peer_timeout_s") and value <= SHORT_S:
                value = patient(value)
            sections.setdefault(section, []).append(f"{name_of_key} = {toml(value)}")
        text = "\n".join(f"[{s}]\n" + "\n".join(lines) for s, lines in sections.items())
        path = self.folder / name
        path.write_text(text + "\n")
        return path

    def start(self, *arguments, **options):
        return Job(self, arguments, **options)

    def train(self, job, *arguments, workers=("cpu:threads=1", "cpu:threads=1"), **options):
        specs = [text for worker in workers for text in ("--worker", worker)]
        return self.start("train", job, *specs, *arguments, **options)

    def wait_for_checkpoint(self, job):
        wait_until(lambda: self.saved_steps() or job.process.poll() is not None, "a checkpoint", job)
        self.assertTrue(self.saved_steps(), f"the job ended early:\n{job.out}\n{job.err}")

    def wait_for_a_told_checkpoint(self, job):
        """Once a second one is there: a first may be on disk before rank 0 has said so, all the more where the disk is busy."""
        self.wait_for_checkpoint(job)
        first = self.saved_steps()[0]
        wait_until(lambda: max(self.saved_steps(), default=0) > first or job.process.poll() is not None, "a second checkpoint", job)

    def report_of(self, job, name="run.json"):
        """The report of a job that is done, or comes to its end."""
        job.done()
        return json.loads((self.folder / name).read_text())

    def reported(self, job_file, *arguments, workers=("cpu:threads=1",), **options):
        """The report of a training that comes to its end, by one worker if nothing else is said."""
        return self.report_of(self.train(job_file, "--report", self.folder / "run.json", *arguments, workers=workers, **options))

    def kill(self, job, rank):
        """Its process id."""
        pid = self.ranks_of(job)[rank]
        os.kill(pid, signal.SIGKILL)
        return pid

    def stop_between_saves(self, pid):
        """Stops a process while it puts no checkpoint into place: nobody else could until it wakes up, and the job would end with that."""
        self.checkpoints.mkdir(exist_ok=True)
        turn = os.open(self.checkpoints, os.O_RDONLY)
        fcntl.flock(turn, fcntl.LOCK_EX)
        os.kill(pid, signal.SIGSTOP)
        os.close(turn)

    def stop_while_one_reads(self, reader, pid):
        """Stops a process while the first of the ranks checks a checkpoint, for which all of them wait."""
        saved = f"{self.checkpoints}/step-"
        wait_until(lambda: any(path.startswith(saved) for path in open_files(reader)) or state_of(reader) == "gone", "a checkpoint being read")
        os.kill(pid, signal.SIGSTOP)

    def small_disk(self, folder, size):
        """Skips the test where none can be mounted."""
        folder.mkdir(exist_ok=True)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, check=False).returncode:
            self.skipTest("mounting a small disk is not allowed here")
        self.addCleanup(subprocess.run, ["umount", "-l", folder], check=False)

    def saved_steps(self):
        return sorted(int(p.name.split("-")[1]) for p in self.checkpoints.glob("step-*"))

    def ranks_of(self, job):
        """Process ids of a job's ranks, in the order of their numbers."""
        found = ranks_below(job.pid, self.processes())
        return [found[rank] for rank in sorted(found)]

    # ---- what must hold after every fault --------------------------------------------------------

    def assert_one_message(self, job, status, *parts):
        """The job fails with this status and says once why, naming all of `parts`."""
        self.assertEqual(job.wait().status, status, f"{job.out}\n{job.err}")
        self.assertEqual(job.err.count("error:"), 1, job.err)
        for part in parts:
            self.assertIn(part, job.error())

    def assert_nothing_left(self):
        self.assertEqual(self.processes(), [], "processes are left")
        left = [path for path in self.temporary.iterdir() if not path.name.startswith("torchinductor_")]  # torch's own cache
        self.assertEqual(left, [], "temporary files are left")

    def assert_no_half_checkpoint(self):
        strange = [p.name for p in self.checkpoints.glob("*") if not p.name.startswith("step-") and "training.json" not in p.name]
        self.assertEqual(strange, [])

    def assert_saved_where_it_stopped(self, job):
        steps = re.search(r"stopped after (\d+) steps", job.out)
        self.assertTrue(steps, f"{job.out}\n{job.err}")
        self.assertEqual(self.saved_steps()[-1], int(steps[1]))

    def assert_can_resume(self, job_file, **options):
        """A job goes on from the checkpoints, and its next save leaves nothing half-done."""
        last = self.saved_steps()[-1]
        self.train(job_file, "--resume", self.checkpoints, "--set", f"train.steps={last + 5}",
                   **options).done()
        self.assertEqual(self.saved_steps()[-1], last + 5)
        self.assert_no_half_checkpoint()

    def processes(self):
        mark = f"{MARK}={self.mark}".encode()
        return [pid for pid in all_pids() if mark in environment_of(pid) and state_of(pid) != "gone"]

    def kill_leftovers(self):
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


class TwoMachines(FaultTest):
    """Jobs on several machines, with loopback in place of the network."""

    def setUp(self):
        super().setUp()
        self.token = write_token(self.folder / "token")

    def host(self, job_file, *arguments, world_size=2, workers=("cpu:threads=1",), **options):
        listen = () if "--listen" in arguments else ("--listen", "127.0.0.1:0")
        job = self.train(job_file, *listen, "--world-size", world_size,
                         "--token-file", self.token, *arguments, workers=workers, **options)
        job.wait_for_output("bimetal join")
        job.address = re.search(r"bimetal join (\S+)", job.out)[1]
        return job

    def lead(self, job_file, *arguments, workers=("none",), **options):
        """The first machine of a job with parameter servers, without workers unless it is given some."""
        job = self.train(job_file, "--listen", "127.0.0.1:0", "--token-file", self.token, *arguments, workers=workers, **options)
        job.wait_for_output("workers may come and go")
        job.address = re.search(r"bimetal join (\S+)", job.out)[1]
        return job

    def join(self, host, *arguments, token=None, workers=("cpu:threads=1",), **options):
        specs = [text for worker in workers for text in ("--worker", worker)]
        return self.start("join", host.address, "--token-file", token or self.token, *specs,
                          *arguments, **options)


class DataElsewhere(TwoMachines):
    """Jobs that name the folder "data" of wherever they run: the second machine runs in a folder of its own, and has a
    cache of its own."""

    def setUp(self):
        super().setUp()
        self.elsewhere = self.folder / "elsewhere"
        self.elsewhere.mkdir()
        self.cache = self.folder / "their cache"

    def join_elsewhere(self, host, *arguments, **options):
        return self.join(host, *arguments, folder=self.elsewhere, **options,
                         environment={"BIMETAL_CACHE": str(self.cache), "BIMETAL_ISLAND": "elsewhere"})

    def in_cache(self):
        return list((self.cache / "data").iterdir()) if (self.cache / "data").exists() else []

    def assert_kept_whole(self):
        """The one data set in the second machine's cache, whose folder it returns."""
        kept, = self.in_cache()
        self.assertFalse(kept.name.startswith("."), "half a data set is left")
        ours = sorted((self.folder / "data").iterdir())
        self.assertEqual([p.name for p in ours], sorted(p.name for p in kept.iterdir()))
        for path in ours:
            self.assertEqual(path.read_bytes(), (kept / path.name).read_bytes(), path.name)
        return kept

    def assert_trained(self, *jobs):
        for job in jobs:
            job.done()
        self.assert_nothing_left()

    def stop_while_sending(self, host):
        """The second machine, whose receiver is stopped when it begins, so that the sending is under way and stays so; and that one."""
        guest = self.join_elsewhere(host)
        wait_until(lambda: self.in_cache() or guest.process.poll() is not None, "the sending", guest)
        receiver, = self.ranks_of(guest)
        os.kill(receiver, signal.SIGSTOP)
        return guest, receiver

    def enlarge(self, images=100_000):
        """75 MiB of images, mostly holes: it takes a while to send them."""
        data = self.folder / "data"
        write_idx(data / "train-images-idx3-ubyte", (images, 28, 28), b"")
        os.truncate(data / "train-images-idx3-ubyte", 16 + images * 28 * 28)
        write_idx(data / "train-labels-idx1-ubyte", (images,), bytes(images))


def toml(value):
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def environment_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def variable_of(pid, name):
    for entry in environment_of(pid):
        if entry.startswith(f"{name}=".encode()):
            return entry.split(b"=", 1)[1].decode()
    return None


def state_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "gone"


def parent_of(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return None


def ranks_below(launcher, pids):
    """Those of the processes that a launcher has started as ranks, by their numbers."""
    found = {}
    for pid in pids:
        if parent_of(pid) == launcher and (rank := variable_of(pid, "RANK")) is not None:
            found[int(rank)] = pid
    return found


def open_files(pid):
    """Paths, and sockets by the name that Linux gives them."""
    found = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    except OSError:
        pass  # the process, or a descriptor of it, has just gone
    return found


def socket_inodes(pid):
    return {name[len("socket:["):-1] for name in open_files(pid) if name.startswith("socket:[")}


def tcp_sockets(pid):
    """(local port, remote port, state) of a process's TCP sockets (IPv4)."""
    inodes = socket_inodes(pid)
    rows = (line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:])
    return [(int(row[1].split(":")[1], 16), int(row[2].split(":")[1], 16), row[3]) for row in rows if row[9] in inodes]


def connected(pid, port):
    return any(state == "01" and remote == port for _, remote, state in tcp_sockets(pid))


def listening_ports(pid):
    return [local for local, _, state in tcp_sockets(pid) if state == "0A"]


class TimedResult(unittest.TextTestResult):
    """Says of each case how long it took."""

    def startTest(self, test):
        super().startTest(test)
        self.begun = time.monotonic()

    def stopTest(self, test):
        super().stopTest(test)
        self.stream.writeln(f"  {time.monotonic() - self.begun:.1f} s")


class TimedRunner(unittest.TextTestRunner):
    resultclass = TimedResult


def main():
    if not sys.platform.startswith("linux"):
        print("skipped: finds processes by /proc")
        sys.exit(77)
    unittest.main(verbosity=2, testRunner=TimedRunner)
