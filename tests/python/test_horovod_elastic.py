"""hvd.elastic for PyTorch with ranks that are killed: survivors go on from the last commit, replacements join."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import ranks
import torch
from torch import nn

import bimetal
import bimetal.horovod.run as launch
import bimetal.horovod.torch as hvd
from bimetal.horovod.core import meeting

STEPS = 60


def model_64():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 17), nn.Tanh(), nn.Linear(17, 3)).double()


def batch(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return (torch.randn(4, 6, dtype=torch.float64, generator=generator),
            torch.randn(4, 3, dtype=torch.float64, generator=generator))


def train(enough):
    """Until enough(state): with the size of the world at each step that counted."""
    hvd.init()
    model = model_64()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    resets = []

    @hvd.elastic.run
    def loop(state):
        while not enough(state):
            inputs, targets = batch(state.step, hvd.rank())
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            state.step += 1
            state.sizes = [*state.sizes, hvd.size()]
            state.commit()
            print(f"step {state.step} of {hvd.size()} ranks at {time.monotonic()}", flush=True)
            time.sleep(0.02)
        return "through"
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0, sizes=[])
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    try:
        how = loop(state)
    except bimetal.Error as error:
        return {"error": error.code, "text": str(error)}
    replayed = replay(state.sizes)
    worst = max(((a - b).abs() / b.abs().clamp(min=1e-3)).max().item() for a, b in zip(model.parameters(), replayed))
    return {"how": how, "sizes": state.sizes, "rank": hvd.rank(), "size": hvd.size(), "worst": worst, "resets": resets,
            "local": [hvd.local_rank(), hvd.local_size()]}


def replay(sizes):
    """One process that takes each step over the batches of as many ranks as there were."""
    model = model_64()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step, size in enumerate(sizes):
        batches = [batch(step, rank) for rank in range(size)]
        optimizer.zero_grad()
        nn.functional.mse_loss(model(torch.cat([x for x, _ in batches])), torch.cat([y for _, y in batches])).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def train_some_steps():
    return train(lambda state: state.step >= STEPS)


def train_until_they_are_three_again():
    return train(lambda state: 2 in state.sizes and state.sizes[-10:] == [3] * 10)


def sum_of_ones(go):
    hvd.init()
    print("ready", flush=True)
    until = time.monotonic() + 400
    while not os.path.exists(go) and time.monotonic() < until:
        time.sleep(0.1)
    return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()


def samples_of_an_epoch():
    """The samples that each rank sees in two epochs, by ElasticSampler and a loop that commits."""
    hvd.init()
    sampler = hvd.elastic.ElasticSampler(range(200), seed=3)
    seen = []

    @hvd.elastic.run
    def loop(state):
        while state.epoch < 2:
            for number, indices in enumerate(torch.utils.data.DataLoader(range(200), 4, sampler=sampler)):
                hvd.allreduce(torch.ones(1))
                sampler.record_batch(number, 4)
                seen.append([state.epoch, indices.tolist()])
                state.commit()
                print(f"batch of {hvd.size()} ranks", flush=True)
                time.sleep(0.02)
            state.epoch += 1
            sampler.set_epoch(state.epoch)
            state.commit()
        return seen
    return loop(hvd.elastic.TorchState(sampler=sampler, epoch=0))


class World:
    """Ranks and the store that outlives them, as a launcher keeps it."""

    def __init__(self, count, body, **environment):
        self.store = meeting.serve_store("127.0.0.1", 0, 60)
        self.environment = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": str(self.store.port), **environment}
        self.job = ranks.start(count, body, backend=None, environment=self.environment)

    def __enter__(self):
        return self.job

    def __exit__(self, *_):
        self.job.__exit__()


def wait_for_living(job, pattern):
    """Until every rank that still runs has printed it."""
    until = time.monotonic() + 240
    living = [rank for rank, process in enumerate(job.processes) if process.poll() is None]
    while not all(re.search(pattern, job.output(rank)) for rank in living):
        if time.monotonic() > until or any(job.processes[rank].poll() is not None for rank in living):
            raise AssertionError(job.text())
        time.sleep(0.02)


def kill(job, victim, after):
    """Once every living rank has printed `after`. The time of death."""
    wait_for_living(job, after)
    died = time.monotonic()
    job.processes[victim].send_signal(signal.SIGKILL)
    job.processes[victim].wait(30)
    return died


class Elastic(unittest.TestCase):
    def survivors(self, job, alive, timeout=240):
        until = time.monotonic() + timeout
        for rank in alive:
            try:
                status = job.processes[rank].wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.fail(f"not done after {timeout} s\n{job.text()}")
            self.assertEqual(status, 0, job.text())
        return [job.value(rank) for rank in alive]

    def check(self, results, sizes):
        self.assertEqual([one["rank"] for one in results], list(range(len(results))))
        self.assertEqual([one["local"] for one in results], [[rank, len(results)] for rank in range(len(results))])
        for one in results:
            self.assertEqual((one["how"], one["size"]), ("through", len(results)), one)
            self.assertEqual(one["sizes"], results[0]["sizes"])
            self.assertEqual(list(dict.fromkeys(one["sizes"])), sizes)
            self.assertLess(one["worst"], 1e-12)

    def test_a_killed_rank(self):
        with World(3, train_some_steps) as job:
            died = kill(job, 1, r"step 10 of 3")
            results = self.survivors(job, (0, 2))
            self.check(results, [3, 2])
            self.assertEqual(len(results[0]["sizes"]), STEPS)
            self.assertEqual(results[0]["resets"], [2])
            again = float(re.search(r"of 2 ranks at ([0-9.]+)", job.output(0))[1]) - died
            print(f"going on {again:.1f} s after the kill", file=sys.stderr)
            self.assertLess(again, 30)

    def test_rank_0_and_then_another_one(self):
        with World(4, train_some_steps) as job:
            kill(job, 0, r"step 5 of 4")
            kill(job, 2, r"step \d+ of 3")
            self.check(self.survivors(job, (1, 3)), [4, 3, 2])

    def test_a_replacement_is_taken_in(self):
        world = World(3, train_until_they_are_three_again)
        with world as job:
            kill(job, 1, r"step 5 of 3")
            wait_for_living(job, r"of 2 ranks")  # one that comes at once takes the lost rank's place in the same world
            with ranks.start(1, train_until_they_are_three_again, backend=None, environment=world.environment,
                             each=lambda _: {"RANK": "1", "WORLD_SIZE": "3"}) as later:
                old = self.survivors(job, (0, 2))
                self.assertEqual(later.wait(60), [0], later.text())
                results = [old[0], old[1], later.value(0)]
            self.check(results, [3, 2])
            self.assertEqual(results[0]["sizes"][-1], 3)

    def test_samples_are_seen_once(self):
        with World(3, samples_of_an_epoch) as job:
            kill(job, 1, r"(batch of 3 ranks\s+){5}")
            results = self.survivors(job, (0, 2))
            for epoch in (0, 1):
                seen = [index for one in results for number, indices in one if number == epoch for index in indices]
                lost = 200 - len(set(seen))
                self.assertLessEqual(lost, 0 if epoch else 4 * 12)  # what the lost rank had done
                self.assertLessEqual(len(seen) - len(set(seen)), 4 + 2)  # an uncommitted batch each, filling up

    def test_a_store_that_dies_with_rank_0(self):
        with ranks.start(3, train_some_steps, backend=None) as job:
            kill(job, 0, r"step 5 of 3")
            self.check(self.survivors(job, (1, 2)), [3, 2])

    def test_a_rank_that_is_started_twice(self):
        port = str(ranks.free_port())
        with tempfile.TemporaryDirectory() as folder, \
                ranks.start(2, sum_of_ones, folder + "/go", backend=None, environment={"MASTER_PORT": port}) as job:
            job.wait_for("ready", 240)
            with ranks.start(1, sum_of_ones, folder + "/go", backend=None, environment={"MASTER_PORT": port},
                             each=lambda _: {"RANK": "1", "WORLD_SIZE": "2"}) as double:
                self.assertNotEqual(double.wait(240), [0])
                self.assertIn("another process with rank 1 has started already", double.output(0))
            pathlib.Path(folder, "go").touch()
            self.assertEqual(job.wait(60), [0, 0], job.text())

    def test_a_rank_that_is_stopped_comes_back(self):
        with World(3, train_until_they_are_three_again, HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="3") as job:
            wait_for_living(job, r"step 5 of 3")
            job.processes[1].send_signal(signal.SIGSTOP)
            until = time.monotonic() + 60
            while "of 2 ranks" not in job.output(0) and time.monotonic() < until:
                time.sleep(0.02)
            job.processes[1].send_signal(signal.SIGCONT)
            results = self.survivors(job, (0, 2, 1))
            self.assertEqual([one["rank"] for one in results], [0, 1, 2])
            self.assertEqual(list(dict.fromkeys(results[2]["sizes"])), [3, 2])
            self.assertEqual((results[2]["sizes"][-1], results[2]["sizes"]), (3, results[0]["sizes"]))
            self.assertLess(max(one["worst"] for one in results), 1e-12)


RUN = [sys.executable, "-m", "bimetal.horovod.run"]
SCRIPT = """
import os, signal, sys
import torch, bimetal.horovod as hvd
hvd.init()
restarts = "--restarts" in sys.argv

@hvd.elastic.run
def train(state):
    # With replacements: until all are there again, be it that none of the steps had to do without them.
    while state.step < 200 if not restarts else state.step < 40 or state.sizes[-5:] != [3] * 5:
        hvd.allreduce(torch.ones(1000))
        state.step += 1
        state.sizes = [*state.sizes, hvd.size()]
        state.commit()
        if state.step == 10 and os.environ["RANK"] == "0" and hvd.rank() == 0 and hvd.size() == 3:
            os.kill(os.getpid(), signal.SIGKILL)

state = hvd.elastic.TorchState(step=0, sizes=[])
train(state)
print(f"rank {hvd.rank()} of {hvd.size()} is through", flush=True)
"""

# For scripts whose ranks act one after the other.
IN_TURN = """
import os, sys, time, traceback
rank, folder = os.environ["RANK"], os.environ["HOROVOD_TEST_FOLDER"]
def tell(name): open(os.path.join(folder, name), "w").close()
def there(name): return os.path.exists(os.path.join(folder, name))
def wait_for(*names):
    while not all(map(there, names)): time.sleep(0.05)
"""


class Launcher(unittest.TestCase):
    def run_it(self, *arguments, script=SCRIPT, **environment):
        with tempfile.TemporaryDirectory() as folder:
            return subprocess.run([*RUN, *arguments], capture_output=True, text=True, timeout=300, check=False,
                                  env={**os.environ, "HOROVOD_TEST_SCRIPT": script, "HOROVOD_TEST_FOLDER": folder, **environment})

    def command(self, *more):
        return [sys.executable, "-c", "import os; exec(os.environ['HOROVOD_TEST_SCRIPT'])", *more]

    def test_ranks_outlive_rank_0(self):
        run = self.run_it("-np", "3", "--elastic", *self.command())
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertEqual(sorted(re.findall(r"rank \d of \d is through", run.stdout)),
                         [f"rank {rank} of 2 is through" for rank in range(2)])
        self.assertRegex(run.stderr, r"rank 0 on \S+ \(pid \d+\) was killed by signal 9 \(Killed\); 2 ranks go on\n")

    def test_lost_ranks_are_started_again(self):
        run = self.run_it("-np", "3", "--elastic", "--restarts", "1", *self.command("--restarts"))
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertRegex(run.stderr, r"rank 0 on .* was killed by signal 9 \(Killed\); 2 ranks go on, and it is started again")
        self.assertEqual(sorted(re.findall(r"rank \d of \d is through", run.stdout)),
                         [f"rank {rank} of 3 is through" for rank in range(3)])

    def test_too_few_are_left(self):
        run = self.run_it("-np", "3", "--elastic", "--min-np", "3", *self.command(), HOROVOD_ELASTIC_TIMEOUT="2")
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertEqual(run.stdout, "")

    def test_without_elastic_one_failure_ends_all(self):
        run = self.run_it("-np", "2", *self.command(), script="import os, sys, time\n"
                          "sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(100)")
        self.assertEqual(run.returncode, 7, run.stderr)
        self.assertRegex(run.stderr, r"rank 1 on .* ended with exit status 7; the other ranks were stopped")

    def test_of_tracebacks_that_of_the_cause_is_shown(self):
        # The others miss rank 1 and end before it does, as ranks with less to tidy up do.
        run = self.run_it("-np", "3", *self.command(), script=IN_TURN + "if rank == '1':\n"
                          "    try: raise KeyError('the cause')\n"
                          "    except KeyError: traceback.print_exc(); tell('it'); wait_for('0', '2'); time.sleep(0.7); sys.exit(3)\n"
                          "wait_for('it'); tell(rank); raise RuntimeError('rank 1 is gone')")
        self.assertEqual(run.returncode, 3, run.stderr)
        self.assertIn("[1] KeyError: 'the cause'", run.stderr)
        self.assertRegex(run.stderr, r"rank 1 on .* ended with exit status 3; the other ranks were stopped")
        self.assertNotIn("is gone", run.stderr)
        self.assertIn("left out: what ranks 0, 2 said of it", run.stderr)

    def test_who_has_caught_an_exception_is_not_blamed_for_what_fails_later(self):
        run = self.run_it("-np", "2", *self.command(), script=IN_TURN + "if rank == '1':\n"
                          "    wait_for('caught'); time.sleep(3); tell('it'); raise KeyError('the cause')\n"
                          "try: raise OSError('tried again')\n"
                          "except OSError: traceback.print_exc(); tell('caught')\n"
                          "while not there('it'): time.sleep(0.1); print('going on', flush=True)\n"
                          "time.sleep(0.5); raise RuntimeError('rank 1 is gone')")
        self.assertRegex(run.stderr, r"rank 1 on .* ended with exit status 1; the other ranks were stopped")
        self.assertIn("[1] KeyError: 'the cause'", run.stderr)
        self.assertIn("[0] OSError: tried again", run.stderr)

    @unittest.skipUnless("BIMETAL" in os.environ, "needs the program")
    def test_hosts(self):
        run = self.run_it("-np", "2", "-H", "localhost:2", *self.command(), script="import os\n"
                          "print(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(sorted(run.stdout.splitlines()), [f"[{rank}] {rank} of 2" for rank in range(2)])
        self.assertEqual(launch.launch_command(launch.parse(
            ["-np", "3", "--hostfile", "hosts", "-p", "2222", "-i", "key", "--no-prefix", "python", "x.py", "-n"]))[1:],
            ["launch", "-n", "3", "--hostfile", "hosts", "--ssh-port", "2222", "--ssh-option", "IdentityFile=key",
             "--no-prefix", "--", "python", "x.py", "-n"])

    def test_what_makes_no_sense(self):
        for arguments, text in (([], "-np"), (["-np", "2"], "a command is missing"), (["-np", "0", "x"], "at least 1"),
                                (["-np", "2", "--elastic", "-H", "a:2", "x"], "--elastic is for this machine")):
            run = self.run_it(*arguments)
            self.assertEqual(run.returncode, 2)
            self.assertIn(text, run.stderr)
        self.assertIn("/no/such/program", self.run_it("-np", "2", "/no/such/program").stderr)


if __name__ == "__main__":
    ranks.main(globals())
