"""The jobs that elastic.py compares: three workers of one thread each, one of which is lost, and another one comes."""

import contextlib
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

from job_file import hidden_for, write_job
from ranks import BIMETAL, ROOT, free_port

sys.path.insert(0, str(ROOT / "tests" / "fault"))
from harness import all_pids, parent_of, ranks_below, write_dataset  # noqa: E402

WORKERS = 3
WARM_UP, MEASURED = 10, 20  # steps before a loss
LOOK_S = 0.01
PATIENCE_S = 600


class Side:
    """The processes of one side's job, which end with it."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.processes, self.killed = [], []
        folder.mkdir()

    def __enter__(self):
        self.begin()
        return self

    def __exit__(self, *_):
        for process in self.processes + self.killed:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def start(self, command):
        with open(self.folder / f"{len(self.processes + self.killed)}.out", "wb") as output:
            self.processes.append(subprocess.Popen(
                [str(part) for part in command], stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True, env=self.environment()))

    def environment(self):
        return os.environ | {"OMP_NUM_THREADS": "1"}

    def output(self, number):
        return (self.folder / f"{number}.out").read_text(errors="replace")

    def wait_for(self, condition, what):
        """The result of `condition`, once there is one."""
        end = time.monotonic() + PATIENCE_S
        while (found := condition()) is None:
            ended = any(process.poll() is not None for process in self.processes)
            if ended or time.monotonic() > end:
                said = "".join(f"\n{path.name}: {path.read_text(errors='replace')[-2000:]}" for path in sorted(self.folder.glob("*.out")))
                raise SystemExit(f"{self.name}: {what}: {'a process has ended' if ended else f'not within {PATIENCE_S} s'}{said}")
            time.sleep(0.02)
        return found

    def round(self):
        """Seconds of a step, of a loss and of a newcomer."""
        times = self.wait_for(self.warm_up, "the first steps")
        step = statistics.median(later - earlier for earlier, later in zip(times[-MEASURED:], times[-MEASURED + 1:]))
        time.sleep(random.uniform(0, step))
        victim = self.processes[-1]
        killed = time.monotonic()
        self.kill(victim)
        self.processes.remove(victim)
        self.killed.append(victim)
        loss = self.first_step_of(WORKERS - 1, killed) - killed - step
        time.sleep(self.options.pause)
        started = time.monotonic()
        self.start_another()
        return step, loss, self.first_step_of(WORKERS, started) - started

    def warm_up(self):
        times = self.step_times()
        return times if len(times) >= WARM_UP + MEASURED else None


class Bimetal(Side):
    name = "Bimetal"

    def begin(self):
        options, folder = self.options, self.folder
        write_dataset(folder / "data", train=100 * options.batch)
        job = write_job(folder / "job.toml", model={"name": "mlp", "hidden": hidden_for(options.parameters)},
                        data={"path": str(folder / "data")},
                        train={"epochs": 1_000_000, "global_batch": options.batch, "optimizer": "adam", "learning_rate": 1e-4,
                               "evaluate": False},
                        checkpoint={"dir": ""}, elastic={"min_workers": 1})
        self.token = folder / "token"
        subprocess.run([BIMETAL, "token", self.token], check=True, capture_output=True)
        self.address, self.monitor = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.ends = {}   # of steps, by their numbers
        self.after = {}  # by a number of workers: the last step before they went on
        self.start([BIMETAL, "train", job, "--listen", self.address, "--world-size", WORKERS, "--token-file", self.token,
                    "--monitor", self.monitor, "--worker", "cpu:threads=1"])
        self.wait_for(lambda: "bimetal join" in self.output(0) or None, "its start")
        for _ in range(WORKERS - 1):
            self.start_another()
        self.over = threading.Event()
        self.watching = threading.Thread(target=self.watch, daemon=True)
        self.watching.start()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.over.set()
        self.watching.join()

    def start_another(self):
        self.start([BIMETAL, "join", self.address, "--token-file", self.token, "--worker", "cpu:threads=1"])

    def kill(self, joined):
        """The worker itself, and not the command that has started it."""
        pid, = ranks_below(joined.pid, all_pids()).values()
        os.kill(pid, signal.SIGKILL)

    def watch(self):
        """The monitor says how long ago the last step ended, so that asking a few times a step is exact, and costs little."""
        while not self.over.wait(LOOK_S):
            try:
                with urllib.request.urlopen(f"http://{self.monitor}/status", timeout=5) as page:
                    status = json.load(page)
            except OSError:
                continue  # it has not begun
            if status["step"]:
                self.ends.setdefault(status["step"], time.monotonic() - status["since_step_s"])
            for notice in status["notices"]:
                if found := re.match(r"(\d+) workers? goe?s? on from step (\d+)", notice):
                    self.after.setdefault(int(found[1]), int(found[2]))

    def step_times(self):
        return list(self.ends.values())

    def first_step_of(self, workers, _):
        def found():
            if workers not in self.after:
                return None
            return min((end for step, end in list(self.ends.items()) if step > self.after[workers]), default=None)
        return self.wait_for(found, f"a step of {workers} workers")


class Scripts(Side):
    """Workers that each write the steps that count into a file: when one ended, how many took part, its number."""

    def start_worker(self, *command):
        self.commits.append(self.folder / f"{len(self.commits)}.commits")
        self.start([*command, "--commits", self.commits[-1], "--hidden", hidden_for(self.options.parameters),
                    "--batch", self.options.batch // WORKERS])

    def begin(self):
        self.commits = []
        for _ in range(WORKERS):
            self.start_another()

    def kill(self, worker):
        for pid in [worker.pid, *self.children(worker)]:
            os.kill(pid, signal.SIGKILL)

    def children(self, _):
        return []

    def steps(self, worker):
        path = self.commits[worker]
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [(float(end), int(count), int(step)) for end, count, step in map(str.split, lines)]

    def step_times(self):
        """The step times of all three together: they do not begin at once."""
        return [end for end, count, _ in self.steps(0) if count == WORKERS]

    def first_step_of(self, workers, since):
        """Steps that are made again do not count for those who are left."""
        worker = 0 if workers < WORKERS else len(self.commits) - 1
        def found():
            steps = self.steps(worker)
            made = max((step for end, _, step in steps if end <= since), default=0)
            return min((end for end, count, step in steps if end > since and count == workers and step > made), default=None)
        return self.wait_for(found, f"a step of {workers} workers")


class Torchft(Scripts):
    name = "torchft"
    script = ROOT / "bench" / "torchft_worker.py"

    def environment(self):
        return super().environment() | {"PYTHONPATH": str(self.options.torchft), "RUST_LOG": "off"}

    def begin(self):
        options = self.options
        self.start([sys.executable, self.script, "--lighthouse", "--join-ms", options.join_ms, "--tick-ms", options.tick_ms,
                    "--silence-ms", options.silence_ms])
        self.port = self.wait_for(lambda: re.search(r"http://.*:(\d+)\n", self.output(0)), "its lighthouse")[1]
        super().begin()

    def start_another(self):
        self.start_worker(sys.executable, self.script, "--lighthouse-address", f"http://127.0.0.1:{self.port}",
                          "--name", f"replica{len(self.commits)}", "--heartbeat-ms", self.options.heartbeat_ms)


class Torchrun(Scripts):
    """One agent for each worker, which is lost with it; a checkpoint every few steps."""

    name = "torchrun"

    def begin(self):
        self.port = free_port()
        super().begin()

    def start_another(self):
        options, host = self.options, not self.commits
        agent = ["--nnodes", f"1:{WORKERS}", "--nproc-per-node", 1, "--max-restarts", 1000, "--monitor-interval", 0.05,
                 "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "bench",
                 "--rdzv-conf", f"last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2,is_host={host}",
                 "--local-addr", "127.0.0.1"]
        self.start_worker(sys.executable, "-m", "torch.distributed.run", *agent, ROOT / "bench" / "elastic_worker.py", "torchrun",
                          "--checkpoint", self.folder / "checkpoint", "--every", options.every)

    def children(self, agent):
        return [pid for pid in all_pids() if parent_of(pid) == agent.pid]

    def __exit__(self, *error):
        orphans = [pid for agent in self.processes for pid in self.children(agent)]  # in sessions of their own
        super().__exit__(*error)
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Horovod(Scripts):
    """Horovod's own does not build for this torch: its interface, as Bimetal has it."""

    name = "hvd.elastic"

    def begin(self):
        self.port, self.ranks = free_port(), iter([*range(WORKERS), WORKERS - 1])
        super().begin()

    def environment(self):
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT / "build" / "python")]))
        return super().environment() | {"PYTHONPATH": path, "RANK": str(self.rank), "WORLD_SIZE": str(WORKERS),
                                        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}

    def start_another(self):
        self.rank = next(self.ranks)
        self.start_worker(sys.executable, ROOT / "bench" / "elastic_worker.py", "hvd", "--every", self.options.every)


SIDES = {"bimetal": Bimetal, "torchft": Torchft, "torchrun": Torchrun, "hvd": Horovod}
