#!/usr/bin/env python3
"""Jobs on two to five machines with networks of their own, from which workers and machines are killed, sleep, leave, come, and
lose their cable: every job ends with the parameters of one worker whom nothing disturbs.

BIMETAL_SEED: of another course; BIMETAL_SEEDS: so many of them, one after the other (`make endurance`); BIMETAL_EVENTS: no more than
so many in each, after which the job comes to its end undisturbed."""

import math
import os
import random
import re
import shutil
import signal
import time
import traceback

import job_on_hosts
import harness
from exact_job import ExactJob
from harness import BIMETAL, wait_until
from job_on_hosts import MBIT, JobOnHosts
from shaped_network import run
from text_job import TextJob

SLOW = "cpu:threads=1,speed=0.3"  # so that a job does not end before it is disturbed, however busy the machine is
HOSTS = 5
STEPS = 240
TIMEOUT_S, PEER_TIMEOUT_S = 3, 2
PATIENCE_S = 60

CNN, GPT = "cnn", "gpt"
COURSES = [(CNN, {}), (CNN, {"zero__level": 2, "zero__copies": 2}), (GPT, {"zero__level": 3}), (CNN, {"mesh__stages": 2}), (GPT, {}),
           (GPT, {"mesh__tensor": 2}), (CNN, {"zero__level": 1}), (GPT, {"mesh__stages": 2, "mesh__tensor": 2})]


class Machine:
    """A host, and what runs there."""

    def __init__(self, host, job):
        self.host, self.job = host, job
        self.away = False  # asleep or cut off
        self.begun = 0     # how often it had begun to train when it went away

    def alive(self):
        return self.job.process.poll() is None


@harness.waits
class RandomEvents(JobOnHosts, ExactJob, TextJob):
    RATES = [400 * MBIT] * HOSTS
    image_side = 12  # a course is over before its events are dull

    # ---- machines --------------------------------------------------------------------------------

    def on(self, host, *arguments, **options):
        """With a name of its own, and without the memory that hosts of this machine have in common."""
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"pc{host}", BIMETAL]
        return self.start(*arguments, program=self.network.command(host, named), environment={"BIMETAL_ISLAND": f"host{host}"}, **options)

    def rank_of(self, machine):
        """The process of its worker, or None."""
        pids = self.ranks_of(machine.job)
        return pids[0] if pids else None

    def members(self):
        """Those who train, not those who are still coming."""
        return [one for one in self.machines if not one.away and one.alive() and one.job.out.count("training") > one.begun
                and self.rank_of(one)]

    def is_over(self):
        return self.last.exists()

    def goes_on(self):
        return not self.is_over() and any(one.alive() for one in self.machines)

    def comes_to_its_end(self):
        """Undisturbed, while those who were away come back."""
        def done():
            self.do_what_is_due()
            return not self.goes_on()

        wait_until(done, "the end of the job", self.machines[0].job)

    def wait_for_all(self):
        """One that finds nobody waits for itself, and may before have waited at the door of another one that did."""
        end = time.monotonic() + 2 * PATIENCE_S
        while any(one.alive() for one in self.machines) and time.monotonic() < end:
            time.sleep(0.1)
        for one in self.machines:
            one.job.wait()

    def victim(self):
        """None where the others could not go on without it: most of them have to be there, or half with the first machine, unless
        either side may go on."""
        there = self.members()
        members = there
        if len(members) == 2 and not self.either:
            members = [one for one in members if one.host != 0] if self.first_stayed else []
        if len(there) < 2 or not members:
            return None
        self.witnesses = [(one.job, len(one.job.out)) for one in there]  # it may have been away before
        return self.random.choice(members)

    def told(self, pid):
        return any(re.search(rf"(lost|left): .*\(process {pid}\)", job.out[known:]) for job, known in self.witnesses)

    def goes(self, victim, pid):
        """The others have seen that it is not there any more. If either side may go on, events may come in between."""
        self.first_stayed = self.first_stayed and victim.host != 0
        if self.either:
            return
        wait_until(lambda: self.told(pid) or not self.goes_on(), f"the loss of pc{victim.host}",
                   self.machines[0].job)

    def later(self, seconds, action):
        self.waiting.append((time.monotonic() + seconds, action))

    def do_what_is_due(self, all_of_it=False):
        for one in list(self.waiting):
            if all_of_it or one[0] <= time.monotonic():
                self.waiting.remove(one)
                one[1]()

    # ---- events ----------------------------------------------------------------------------------

    def a_machine_joins(self):
        taken = {one.host for one in self.machines if one.alive()} | self.cut
        free = [host for host in range(HOSTS) if host not in taken]
        there = [one for one in self.members() if "bimetal join" in one.job.out]
        if not free or not there:
            return False
        address = re.findall(r"bimetal join (\S+)", there[0].job.out)[-1]
        host = self.random.choice(free)
        self.machines.append(Machine(host, self.on(host, "join", address, "--token-file", self.token, "--worker", SLOW)))
        return True

    def a_worker_is_killed(self, victim):
        pid = self.rank_of(victim)
        os.kill(pid, signal.SIGKILL)
        self.goes(victim, pid)

    def a_machine_dies(self, victim):
        pid = self.rank_of(victim)
        for one in (victim.job.pid, *self.ranks_of(victim.job)):
            os.kill(one, signal.SIGKILL)
        victim.job.process.wait()
        self.goes(victim, pid)

    def a_worker_leaves(self, victim):
        pid = self.rank_of(victim)
        victim.away = True  # from now on nobody counts on it
        os.kill(pid, signal.SIGTERM)
        self.goes(victim, pid)

    def is_away(self, victim, begin, end, short_s, long_s):
        """For a short time, which changes no membership, or for longer, and then it comes back."""
        if self.random.random() < 0.3:
            begin()
            time.sleep(self.random.uniform(*short_s))
            end()
            return
        seconds = long_s[0] * (long_s[1] / long_s[0]) ** self.random.random()
        print(f" away for {seconds:.0f} s:", flush=True)
        victim.away, victim.begun = True, victim.job.out.count("training")
        pid = self.rank_of(victim)
        begin()

        def back():
            end()
            victim.away = False

        self.later(seconds, back)
        self.goes(victim, pid)

    # Neither where either side may go on: one that wakes up when all whom it knew are gone would go on by itself.

    def a_worker_sleeps(self, victim):
        pid = self.rank_of(victim)

        def wake():
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass  # its job has given it up

        most = harness.patient(TIMEOUT_S)
        self.is_away(victim, lambda: os.kill(pid, signal.SIGSTOP), wake, (most / 3, most / 2), (3 * most, 90))

    def a_cable_is_pulled(self, victim):
        port = f"port{victim.host}"

        def pull():
            self.cut.add(victim.host)
            run("ip", "-n", self.network.middle, "link", "set", port, "down")

        def plug_in():
            run("ip", "-n", self.network.middle, "link", "set", port, "up")
            self.cut.discard(victim.host)

        most = harness.patient(PEER_TIMEOUT_S)
        self.is_away(victim, pull, plug_in, (most / 6, most / 2), (4 * most, 20 * most))

    # ---- courses ---------------------------------------------------------------------------------

    def test_random_events(self):
        first, seeds = (int(os.environ.get(name) or usual) for name, usual in (("BIMETAL_SEED", 4), ("BIMETAL_SEEDS", 3)))
        total = 0
        for seed in range(first, first + seeds):
            with self.subTest(BIMETAL_SEED=seed):
                for folder in ("elastic", "alone", f"whole-elastic-{STEPS}"):
                    shutil.rmtree(self.folder / folder, ignore_errors=True)
                try:
                    total += self.go_through(seed)
                except BaseException:
                    print(f"seed {seed} has failed: {traceback.format_exc()}\n{self.said()}", flush=True)
                    raise
                finally:
                    self.do_what_is_due(all_of_it=True)
                    self.kill_leftovers()
            print(f"{total} events in {seed - first + 1} jobs", flush=True)

    def write_course(self, name, model, **settings):
        # As of the GPT. These few samples are learnt by heart in 240 steps, and the usual 1e-8 makes the rounding of gradients that are
        # almost 0 large: images of 28 pixels differed by up to 3.4e-12 without any event, by other micro-batches alone; these do by 3e-14.
        write, settings = self.write_exact_job, {"train__epsilon": 1e-3, **settings}
        if model == GPT:
            write, settings = self.write_text_job, {"train__global_batch": 96, "train__micro_batch": 12, **settings}
        return write(name, **{"train__steps": STEPS, "train__evaluate": False, "checkpoint__every_steps": 10, **settings})

    def begin(self, model, strategy):
        settings = {"elastic__patience_s": PATIENCE_S, "parallel__timeout_s": TIMEOUT_S, "fabric__peer_timeout_s": PEER_TIMEOUT_S, **strategy}
        if self.either:
            settings["elastic__keeper"] = "either"
        job_file = self.write_course("elastic", model, **settings)
        parts = math.prod(strategy.get(f"mesh__{key}", 1) for key in ("stages", "tensor"))
        workers = self.random.choice([count for count in range(2, HOSTS + 1) if count % parts == 0])
        first = self.on(0, "train", job_file, "--listen", self.address, "--token-file", self.token, "--world-size", workers, "--worker", SLOW)
        self.machines = [Machine(0, first)]
        first.wait_for_output("bimetal join")
        for host in range(1, workers):
            self.machines.append(Machine(host, self.join(host, "--worker", SLOW)))
        self.checkpoints = self.folder / "elastic"
        self.wait_for_checkpoint(first)

    def said(self):
        return "\n".join(f"pc{one.host}: {one.job.out}\n{one.job.err}" for one in self.machines)

    def go_through(self, seed):
        self.random = random.Random(seed)
        model, strategy = COURSES[seed % len(COURSES)]
        self.either = self.random.random() < 0.3
        self.first_stayed, self.cut, self.waiting, self.machines = True, set(), [], []
        print(f"seed {seed}: {model} {strategy}{' either' * self.either}", flush=True)
        self.last = self.folder / "elastic" / f"step-{STEPS:08}"
        self.begin(model, strategy)
        events, most = 0, int(os.environ.get("BIMETAL_EVENTS") or 0)
        while self.goes_on():
            self.do_what_is_due()
            if events == most > 0:
                self.comes_to_its_end()
                break
            event = self.random.choice([self.a_machine_joins, self.a_machine_joins, self.a_worker_is_killed, self.a_machine_dies,
                                        self.a_worker_leaves] + [self.a_worker_sleeps, self.a_cable_is_pulled] * (not self.either))
            there = [one.host for one in self.members()]
            if event == self.a_machine_joins:
                happens, who = self.a_machine_joins(), ""
            elif happens := self.victim():
                who = f": pc{happens.host}"
                event(happens)
            if happens:
                print(f" {event.__name__}{who} of {there}", flush=True)
                events += 1
            time.sleep(self.random.uniform(0.1, 1.5))
        self.do_what_is_due(all_of_it=True)
        self.wait_for_all()
        self.assertTrue(self.is_over(), "the job has not come to its end")
        self.assertGreater(events, 3)
        alone = self.write_course("alone", model, checkpoint__every_steps=STEPS)
        self.train(alone, workers=("cpu:threads=1",)).done()
        self.assert_same_end("elastic", STEPS, scaled=True)
        self.assert_nothing_left()
        return events


if __name__ == "__main__":
    job_on_hosts.main()
