"""Kills a parameter server at a random moment, many times over, and compares each run's parameters with those of a run
that nobody disturbed.

With copies (servers.replicas = 2) the job goes on by itself; without them it is resumed from its last checkpoint. In
sync mode, in double precision, both must end with the undisturbed run's parameters.
"""

import argparse
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

from machine import describe
from ranks import BIMETAL, ROOT

sys.path.insert(0, str(ROOT / "tests" / "fault"))
from harness import all_pids, ranks_below, write_dataset  # noqa: E402

PATIENCE_S = 300
# How a step is cut into leases decides in which order gradients are added: rounding, which training amplifies.
LARGEST_DIFFERENCE = 1e-9


def job_file(folder, replicas, consistency):
    path = folder / "job.toml"
    path.write_text(f"""
[model]
name = "mlp"
[data]
path = "{folder / 'data'}"
[train]
epochs = 12
global_batch = 64
learning_rate = 0.01
momentum = 0.9
dtype = "float64"
evaluate = false
[parallel]
mode = "server"
[servers]
count = 2
replicas = {replicas}
consistency = "{consistency}"
[checkpoint]
dir = "{folder / 'checkpoints'}"
every_steps = 20
""")
    return path


def start(job, *arguments):
    return subprocess.Popen([BIMETAL, "train", job, "--worker", "cpu:threads=1", "--worker", "cpu:threads=1", *arguments],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env=os.environ | {"OMP_NUM_THREADS": "1"})


def servers_of(launcher, workers=2):
    """Process ids of the servers, by number."""
    return {rank - workers: pid for rank, pid in ranks_below(launcher.pid, all_pids()).items() if rank >= workers}


def parameters(checkpoints):
    """The newest checkpoint's doubles, in the file's order."""
    newest = max(checkpoints.glob("step-*"))
    data = (newest / "model.safetensors").read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    return newest.name, struct.unpack(f"<{(len(data) - begin) // 8}d", data[begin:])


def worst_difference(ours, theirs):
    return max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(ours, theirs, strict=True))


def kill_one(folder, job, lasts_s):
    """A run whose server `killed` is killed at some moment, and how long it was undisturbed; `killed` is None where the
    run was over by then."""
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    begun = time.monotonic()
    run = start(job)
    moment = random.uniform(0.05, 1.0) * lasts_s
    servers = {}
    while run.poll() is None and (time.monotonic() - begun < moment or not servers):
        time.sleep(0.005)
        if time.monotonic() - begun >= moment:
            servers = servers_of(run)
    killed = random.choice(sorted(servers)) if servers else None
    if killed is not None:
        os.kill(servers[killed], signal.SIGKILL)
    return run, killed, time.monotonic() - begun


def end_of(run, what):
    """The output of a run; it must end."""
    try:
        return run.communicate(timeout=PATIENCE_S)[0]
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode(errors="replace") if late.stdout else ""
        raise SystemExit(f"{what}: the job had not ended after {PATIENCE_S} s; it said:\n{said}") from None
    finally:
        run.kill()


def disturbed(folder, job, replicas, lasts_s):
    """One run with one kill: the server killed, how often the job had to be resumed, and how long a run lasts at most:
    one that is over too early is not counted, but tells that."""
    while True:
        run, killed, undisturbed_s = kill_one(folder, job, lasts_s)
        out = end_of(run, f"server {killed} was killed after {undisturbed_s:.2f} s")
        if killed is not None:
            break
        lasts_s = min(lasts_s, undisturbed_s)
    resumed = 0
    while run.returncode != 0:
        saved = (folder / "checkpoints").exists() and any((folder / "checkpoints").glob("step-*"))
        if replicas > 1:
            raise AssertionError(f"server {killed} was killed, and the job did not go on:\n{out}")
        resumed += 1
        run = start(job, *(["--resume", folder / "checkpoints"] if saved else []))
        out = end_of(run, "it was resumed")
        if resumed > 3:
            raise AssertionError(out)
    return killed, resumed, lasts_s


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=100, help="kills in each of the two ways (default 100)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keepers", type=int, choices=(1, 2), nargs="+", default=(2, 1),
                        help="keepers of each part of the parameters (default both: 2, then 1)")
    options = parser.parse_args()
    random.seed(options.seed)
    print(describe(BIMETAL), flush=True)
    for replicas in options.keepers:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            write_dataset(folder / "data")
            job = job_file(folder, replicas, "sync")
            begun = time.monotonic()
            quiet = start(job)
            out, _ = quiet.communicate(timeout=PATIENCE_S)
            if quiet.returncode != 0:
                raise SystemExit(out)
            lasts = time.monotonic() - begun
            last_step, expected = parameters(folder / "checkpoints")
            worst, resumed, by_server = 0.0, 0, {}
            for i in range(options.times):
                killed, again, lasts = disturbed(folder, job, replicas, lasts)
                step, found = parameters(folder / "checkpoints")
                if step != last_step:
                    raise SystemExit(f"kill {i} of server {killed}: the job ended at {step}, not {last_step}")
                worst = max(worst, worst_difference(found, expected))
                resumed += again
                by_server[killed] = by_server.get(killed, 0) + 1
                if (i + 1) % 10 == 0:
                    print(f"{i + 1} kills of {options.times}, worst difference {worst:.1e}", file=sys.stderr, flush=True)
            print(f"{'two copies' if replicas > 1 else 'one copy, resumed from checkpoints'}: {options.times} kills "
                  f"(by server: {dict(sorted(by_server.items(), key=str))}), {resumed} resumed, worst relative "
                  f"difference of a parameter {worst:.1e}", flush=True)
            if worst > LARGEST_DIFFERENCE:
                raise SystemExit("the parameters differ")


if __name__ == "__main__":
    main()
