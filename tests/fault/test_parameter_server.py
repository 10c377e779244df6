"""Parameter servers: workers are killed, stopped, come and go, and the job goes on; a killed server ends it."""

import json
import os
import re
import shutil
import signal
import time
import urllib.request

import harness
from harness import TwoMachines, wait_until

TRAINING_SAMPLES = 1024
EPOCHS, STEPS = 20, 320  # of a training in whose midst something breaks


class ParameterServer(TwoMachines):
    def server_job(self, **settings):
        return self.write_job(parallel__mode="server", **settings)

    def assert_each_sample_once(self, report, epochs):
        self.assertEqual(sum(w["samples"] for w in report["workers"]), epochs * TRAINING_SAMPLES)

    def test_two_unequal_workers_and_two_servers(self):
        settings = {"train__epochs": EPOCHS, "train__evaluate": True, "train__dtype": "float64", "checkpoint__dir": ""}
        job_file = self.server_job(servers__count=2, **settings)
        report = self.reported(job_file, workers=("cpu:threads=1", "cpu:threads=1,speed=0.25"))
        self.assert_each_sample_once(report, EPOCHS)
        self.assertEqual(report["server"]["staleness_max"], 0)
        self.assertEqual(report["server"]["updates"], report["steps"])
        self.assertEqual(report["steps"], STEPS)
        alone = self.reported(self.write_job(**settings))
        self.assertAlmostEqual(report["train_loss"], alone["train_loss"], delta=1e-10)
        self.assertEqual(report["test_accuracy"], alone["test_accuracy"])
        curve = [(point["step"], point["test_accuracy"]) for point in report["evaluations"]]
        self.assertEqual(curve, [(point["step"], point["test_accuracy"]) for point in alone["evaluations"]])
        self.assertEqual(len(curve), EPOCHS)
        # The first worker has all steps until the other one is there, too.
        late = report["history"][len(report["history"]) // 2:]
        self.assertGreater(sum(point["shares"][0] for point in late), sum(point["shares"][1] for point in late))

    def test_its_workers_and_their_staleness_can_be_watched(self):
        job = self.train(self.server_job(servers__consistency="bounded", checkpoint__dir=""), "--monitor", "127.0.0.1:0",
                         workers=("cpu:threads=1", "cpu:threads=1,speed=0.5"))
        job.wait_for_output("monitor at")
        address = re.search(r"monitor at (\S+);", job.out)[1]
        job.wait_for_output("has joined")
        wait_until(lambda: self.last_step(job) > 100, "steps of both workers", job)
        shown = self.start("top", address, "--once", "--json").done()
        status = json.loads(shown.out)
        self.assertEqual([worker["rank"] for worker in status["workers"]], [0, 1])
        self.assertEqual(sum(worker["share"] for worker in status["workers"]), 64)
        text = urllib.request.urlopen(f"http://{address}/metrics", timeout=10).read().decode()
        staleness = [float(value) for value in re.findall(r"^bimetal_worker_max_staleness_updates{.*} (\S+)$", text, re.M)]
        self.assertEqual(len(staleness), 2, text)
        self.assertTrue(all(0 <= value <= 2 for value in staleness), staleness)
        job.end()

    def test_a_job_that_does_not_learn_says_so_and_what_may_help(self):
        settings = {"train__epochs": 30, "train__learning_rate": 1e-12, "checkpoint__dir": ""}
        ahead = {"parallel__mode": "server", "servers__consistency": "async", "servers__prefetch": "on"}  # whose gradients are old
        for mode, advice in ((ahead, 'servers.consistency = "sync"'), ({}, "train.clip_norm may help")):
            job = self.train(self.write_job(**settings, **mode), workers=("cpu:threads=1",)).done()
            notes = re.findall(r"note: the loss has not fallen in 400 steps.*", job.out)
            self.assertEqual(len(notes), 1, job.out)
            self.assertIn(advice, notes[0])

    def test_a_killed_worker_costs_its_own_step_only(self):
        """Or those of several leases, where parameters come ahead."""
        for consistency, prefetch in (("sync", "auto"), ("bounded", "auto"), ("bounded", "on"), ("async", "on")):
            with self.subTest(consistency, prefetch=prefetch):
                job_file = self.server_job(servers__consistency=consistency, servers__prefetch=prefetch, servers__count=2,
                                           train__epochs=EPOCHS, train__evaluate=True, checkpoint__every_steps=0)
                job = self.train(job_file, "--report", self.folder / "run.json",
                                 workers=("cpu:threads=1,speed=0.5", "cpu:threads=1,speed=0.5"))
                wait_until(self.saved_steps, "the end of the first epoch", job)
                self.kill(job, 1)
                report = self.report_of(job)
                self.assert_each_sample_once(report, EPOCHS)
                self.assertEqual([w["state"] for w in report["server"]["workers"]], ["here", "lost"])
                self.assertRegex(job.out + job.err, "worker 1 .* is lost: .*goes on without it")
                if prefetch == "on":  # of one worker alone, whose leases were computed one after the other, it would be 0
                    self.assertGreater(report["server"]["workers"][0]["staleness_mean"], 0.5)
                if consistency == "bounded":
                    self.assertLessEqual(report["server"]["staleness_max"], 2)
                self.assertEqual(len(report["evaluations"]), EPOCHS)
                self.assert_nothing_left()
                shutil.rmtree(self.checkpoints)

    def test_tensors_of_one_host_go_through_memory_that_a_kill_leaves_nothing_of(self):
        named = self.named_memory()
        job_file = self.server_job(servers__replicas=2, train__epochs=EPOCHS, checkpoint__every_steps=0)
        sent = {}
        for transport in ("tcp", "auto"):
            job = self.train(job_file, "--report", self.folder / "run.json",
                             environment={"BIMETAL_DEBUG": "info", "BIMETAL_TRANSPORT": transport})
            if transport == "auto":
                wait_until(self.saved_steps, "the end of the first epoch", job)
                ranks = self.ranks_of(job)
                os.kill(ranks[1], signal.SIGKILL)  # a worker
                wait_until(lambda: re.search("worker 1 .* is lost", job.out + job.err), "the worker's loss", job)
                os.kill(ranks[3], signal.SIGKILL)  # server 1, the copy
            report = self.report_of(job.wait())
            self.assert_each_sample_once(report, EPOCHS)
            through_memory = re.findall("tensors to and from .* go through shared memory", job.out + job.err)
            self.assertEqual(len(through_memory), 4 if transport == "auto" else 0, job.err)
            sent[transport] = report["bytes_sent"]
            self.assert_nothing_left()
            self.assertEqual(self.named_memory(), named)
            shutil.rmtree(self.checkpoints)
        self.assertLess(sent["auto"], sent["tcp"] / 10)

    @harness.waits
    def test_a_stopped_worker_is_passed_over_and_comes_back(self):
        for consistency, prefetch in (("bounded", "auto"), ("async", "on")):
            with self.subTest(consistency, prefetch=prefetch):
                job_file = self.server_job(servers__consistency=consistency, servers__prefetch=prefetch, checkpoint__dir="")
                job = self.train(job_file, "--report", self.folder / "run.json")
                job.wait_for_output("has joined")  # the second worker
                pid = self.ranks_of(job)[1]
                os.kill(pid, signal.SIGSTOP)
                job.wait_for_output("says nothing any more")
                steps = self.last_step(job)
                wait_until(lambda: self.last_step(job) > steps + 50, "steps without worker 1", job)
                os.kill(pid, signal.SIGCONT)
                job.wait_for_output("is back")
                job.end()
                self.assert_nothing_left()

    @staticmethod
    def named_memory():
        """Bimetal's alone: other programs come and go."""
        return {name for name in os.listdir("/dev/shm") if "bimetal" in name}

    @staticmethod
    def last_step(job):
        return max((int(step) for step in re.findall(r"step (\d+)", job.out)), default=0)

    def test_a_job_that_is_done_can_be_resumed(self):
        job_file = self.server_job(servers__count=2, train__steps=5)
        self.train(job_file).done()
        for _ in range(2):  # whether workers come before the servers have gone is chance
            self.train(job_file, "--resume", self.checkpoints).done()

    def test_a_killed_server_ends_the_job_which_can_be_resumed(self):
        job_file = self.server_job(servers__count=2)
        job = self.train(job_file)
        self.wait_for_checkpoint(job)
        wait_until(lambda: len(self.ranks_of(job)) == 4, "four processes", job)
        pid = self.ranks_of(job)[3]  # the workers come first
        os.kill(pid, signal.SIGKILL)
        self.assert_one_message(job, harness.PEER_LOST, "parameter server 1", f"pid {pid}", "signal 9")
        self.assert_nothing_left()
        self.assert_no_half_checkpoint()
        self.assert_can_resume(job_file)

    def test_with_copies_a_killed_server_costs_no_update(self):
        settings = {"train__epochs": EPOCHS, "train__dtype": "float64", "train__evaluate": True}
        alone = self.reported(self.write_job(checkpoint__dir="", **settings))
        ahead = {"servers__consistency": "async", "servers__prefetch": "on"}
        for killed, more in ((0, {}), (3, {}), (0, ahead), (1, {**ahead, "fabric__transport": "tcp"})):  # 0 and 2 keep the first part
            with self.subTest(server=killed, **more):
                job_file = self.server_job(servers__count=2, servers__replicas=2, **settings, **more)
                job = self.train(job_file, "--report", self.folder / "run.json")
                self.wait_for_checkpoint(job)
                self.kill(job, 2 + killed)
                report = self.report_of(job)
                self.assertRegex(job.out + job.err, f"server {killed} is lost")
                self.assertEqual(report["steps"], alone["steps"])
                if not more:
                    self.assertEqual(report["server"]["updates"], report["steps"])
                    self.assertAlmostEqual(report["train_loss"], alone["train_loss"], delta=1e-10)
                    self.assertEqual(report["test_accuracy"], alone["test_accuracy"])
                elif killed != 0:  # else what server 0 had heard last of the workers' figures may be gone
                    self.assert_each_sample_once(report, EPOCHS)
                self.assertEqual(self.saved_steps()[-1], STEPS)
                self.assert_nothing_left()
                self.assert_no_half_checkpoint()
                shutil.rmtree(self.checkpoints)

    def test_with_copies_a_stopped_server_is_passed_over_for_good(self):
        """One that does not lead; test_superseded.py has server 0."""
        job_file = self.server_job(servers__count=2, servers__replicas=2, parallel__timeout_s=3, train__epochs=EPOCHS)
        job = self.train(job_file, "--report", self.folder / "run.json")
        self.wait_for_checkpoint(job)
        pid = self.ranks_of(job)[2 + 3]
        self.stop_between_saves(pid)
        job.wait_for_output("server 3 is lost")
        os.kill(pid, signal.SIGCONT)  # and it ends
        wait_until(lambda: pid not in self.processes(), "its end", job)
        self.assertEqual(self.report_of(job)["steps"], STEPS)
        self.assertEqual(self.saved_steps()[-1], STEPS)
        self.assert_nothing_left()
        self.assert_no_half_checkpoint()

    def test_an_error_of_the_job_is_no_reason_to_take_over(self):
        job_file = self.server_job(servers__replicas=2, train__learning_rate=1e38, servers__max_not_finite=3)
        job = self.train(job_file, workers=("cpu:threads=1",)).wait()
        self.assert_one_message(job, harness.NOT_FINITE, "worker 0", "number 3", "max_not_finite")
        self.assertNotIn("leads the job", job.out)

    def test_workers_may_come_after_a_server_has_died(self):
        job = self.host(self.server_job(servers__replicas=2), "--report", self.folder / "run.json", world_size=1)
        self.wait_for_checkpoint(job)
        os.kill(self.ranks_of(job)[1], signal.SIGKILL)
        job.wait_for_output("server 1 leads the job")
        joined = self.join(job)
        job.wait_for_output("worker 1 (cpu")
        joined.end()
        job.end()
        self.assert_saved_where_it_stopped(job)

    def test_ctrl_c_saves_where_it_stopped(self):
        for consistency, prefetch in (("sync", "auto"), ("async", "on")):
            with self.subTest(consistency, prefetch=prefetch):
                job_file = self.server_job(servers__consistency=consistency, servers__prefetch=prefetch)
                job = self.train(job_file)
                self.wait_for_checkpoint(job)
                job.end()
                self.assert_saved_where_it_stopped(job)
                self.assert_can_resume(job_file)
                self.assert_nothing_left()
                shutil.rmtree(self.checkpoints)

    def test_workers_join_and_leave_while_it_runs(self):
        job_file = self.server_job(servers__consistency="bounded")
        job = self.host(job_file, "--report", self.folder / "run.json", world_size=1)
        self.wait_for_checkpoint(job)
        stranger = self.folder / "other"
        self.start("token", stranger).done()
        self.assert_one_message(self.join(job, token=stranger), harness.UNAUTHORIZED, "token")
        joined = self.join(job)
        job.wait_for_output("worker 1 (cpu")
        wait_until(lambda: re.search(r"images/s \(\d+ \+ [1-9]\d*\)", job.out), "a step with worker 1", job)
        joined.end()
        job.wait_for_output("has left")
        job.end()
        workers = json.loads((self.folder / "run.json").read_text())["server"]["workers"]
        # Ctrl-C goes to worker 0, too: the job may end before it has said goodbye.
        self.assertIn(workers[0]["state"], ("here", "left"))
        self.assertEqual(workers[1]["state"], "left")
        self.assertGreater(workers[1]["updates"], 0)

    @harness.waits
    def test_who_joins_as_the_job_ends_leaves_and_says_so(self):
        """Its worker is stopped before it has met anybody."""
        host = self.host(self.server_job(checkpoint__dir=""), world_size=1)
        host.wait_for_output("loss")
        guest = self.join(host)
        harness.wait_until(lambda: self.ranks_of(guest), "the guest's worker", guest)
        os.kill(self.ranks_of(guest)[0], signal.SIGSTOP)
        host.end()
        ended = time.monotonic()
        guest.wait()
        took = time.monotonic() - ended
        print(f"the guest left {took:.1f} s after the job's first machine")
        self.assertLess(took, 40)  # of the 60 s that it would look for the job; a second if it's quiet
        self.assert_one_message(guest, harness.PEER_LOST, f"the job of {host.address} has ended, or that machine is gone")


if __name__ == "__main__":
    harness.main()
