"""Parameter servers on other machines than the job's first, which may have no worker (loopback stands for the network)."""

import json
import os
import shutil
import signal
import time

import harness
from harness import TwoMachines

ONE = "cpu:threads=1"
EPOCHS, STEPS = 20, 320  # of a training in whose midst something breaks


class ServersElsewhere(TwoMachines):
    def server_job(self, **settings):
        return self.write_job(parallel__mode="server", servers__count=2, checkpoint__dir="", **settings)

    def serve(self, job_file, *arguments, workers=(ONE,)):
        """The job's first machine, with one of its two servers."""
        job = self.lead(job_file, "--servers-here", 1, *arguments, workers=workers)
        self.assertRegex(job.out, r"waiting for 1 parameter server from elsewhere; .*bimetal join \S+ --server")
        return job

    def test_machines_of_servers_alone_and_of_workers_alone(self):
        settings = {"train__epochs": 3, "train__dtype": "float64"}
        host = self.serve(self.server_job(**settings), "--report", self.folder / "run.json", workers=("none",))
        server = self.join(host, "--server", workers=())
        server.wait_for_output("as parameter server 1")
        worker = self.join(host)
        report = self.report_of(host)
        self.assertEqual([server.wait().status, worker.wait().status], [0, 0], server.err + worker.err)
        self.assertEqual([w["samples"] for w in report["workers"]], [3 * 1024])
        alone = self.reported(self.write_job(checkpoint__dir="", **settings))
        self.assertAlmostEqual(report["train_loss"], alone["train_loss"], delta=1e-10)

    def serve_with_copies(self, workers=(ONE,), **settings):
        """Two machines with a worker each, and with one of the two servers, which keep the same."""
        settings = {"servers__count": 1, "servers__replicas": 2, "train__epochs": EPOCHS, "train__dtype": "float64",
                    "train__evaluate": True, **settings}
        host = self.serve(self.write_job(parallel__mode="server", **settings), "--report", self.folder / "run.json",
                          workers=workers)
        guest = self.join(host, "--server", workers=(ONE,))
        self.wait_for_checkpoint(host)
        return host, guest

    def trained_alone(self):
        job_file = self.write_job(checkpoint__dir="", train__epochs=EPOCHS, train__dtype="float64", train__evaluate=True)
        return self.reported(job_file)

    def assert_trained_like(self, alone, out):
        """`out`: of the machine whose server led at the end."""
        self.assertRegex(out, rf"epoch {EPOCHS}: test accuracy {100 * alone['test_accuracy']:.2f} %")
        self.assertEqual(self.saved_steps()[-1], STEPS)
        self.assert_no_half_checkpoint()
        self.assert_nothing_left()
        shutil.rmtree(self.checkpoints)

    def test_a_killed_server_whose_copy_is_elsewhere_costs_no_update(self):
        alone = self.trained_alone()
        for killed in (0, 1):
            with self.subTest(server=killed):
                host, guest = self.serve_with_copies()
                self.kill((host, guest)[killed], 1)
                self.assertEqual([host.wait().status, guest.wait().status], [0, 0], f"{host.err}\n{guest.err}")
                self.assertIn(f"parameter server {killed} has failed; the job goes on with its copy",
                              (host, guest)[killed].err)
                if killed == 0:
                    self.assertIn("server 1 leads the job from now on", guest.out)
                else:
                    report = json.loads((self.folder / "run.json").read_text())
                    self.assertAlmostEqual(report["train_loss"], alone["train_loss"], delta=1e-10)
                self.assert_trained_like(alone, (host, guest)[1 - killed].out)

    def test_the_first_machine_is_lost(self):
        alone = self.trained_alone()
        for whole in (True, False):
            with self.subTest("its launcher, too" if whole else "it has a server alone"):
                host, guest = self.serve_with_copies(workers=(ONE,) if whole else ("none",))
                os.kill(host.pid if whole else self.ranks_of(host)[0], signal.SIGKILL)
                guest.done()
                self.assertNotEqual(host.wait().status, 0)
                self.assertIn("server 1 leads the job from now on", guest.out)
                self.assert_trained_like(alone, guest.out)

    def test_a_killed_server_elsewhere_ends_the_job_everywhere(self):
        host = self.serve(self.server_job(train__steps=100000, train__epochs=100000))
        server = self.join(host, "--server", workers=())
        host.wait_for_output("epoch 1")
        self.kill(server, 0)
        self.assertNotEqual(server.wait().status, 0)
        self.assertIn("parameter server 1", server.err)
        self.assertNotEqual(host.wait().status, 0)
        self.assertRegex(host.err, "server 1")

    @harness.waits
    def test_ctrl_c_while_a_server_is_missing_ends_it_at_once(self):
        host = self.serve(self.server_job())
        worker = self.join(host)
        worker.wait_for_output("joining")
        begun = time.monotonic()
        host.interrupt()
        worker.interrupt()
        self.assertEqual([host.wait().status, worker.wait().status], [130, 130], host.err + worker.err)
        self.assertLess(time.monotonic() - begun, 40, "less than cluster.join_timeout_s")

    def test_a_server_that_begins_elsewhere_than_the_others_is_refused(self):
        job_file = self.write_job(parallel__mode="server", servers__count=2, train__steps=10)
        self.train(job_file, workers=(ONE,)).done()
        host = self.serve(job_file, "--set", "train.steps=15", "--resume", self.checkpoints)
        server = self.join(host, "--server", workers=()).done(harness.INVALID_ARGUMENT)
        self.assertIn("server 0 begins at step 10, server 1 at step 0", server.err)
        self.assertIn("--resume", host.wait().err)
        host = self.serve(job_file, "--set", "train.steps=15", "--resume", self.checkpoints)
        server = self.join(host, "--server", "--resume", self.checkpoints, workers=())
        self.assertEqual([host.wait().status, server.wait().status], [0, 0], host.err + server.err)
        self.assertEqual(self.saved_steps()[-1], 15)

    def test_a_server_that_never_comes_is_named(self):
        job = self.serve(self.server_job(), "--join-timeout", 3).done(4)
        self.assertIn("parameter server 1 was not there", job.err)

    def test_what_makes_no_sense_is_refused(self):
        host = self.serve(self.server_job(train__steps=100000, train__epochs=100000))
        server = self.join(host, "--server", workers=())
        server.wait_for_output("as parameter server 1")
        second = self.join(host, "--server", workers=()).wait()
        self.assertNotEqual(second.status, 0)
        self.assertIn("all of its 2 parameter servers", second.err)
        host.interrupt()
        host.wait()
        server.wait()
        for arguments, words in (
                (("--worker", "none"), "--listen"),
                (("--servers-here", 1), "--listen"),
                (("--listen", "127.0.0.1:0", "--servers-here", 3), "the job has 2"),
                (("--listen", "127.0.0.1:0", "--servers-here", 1, "--set", "parallel.mode=all_reduce"), "parallel.mode")):
            job = self.start("train", self.server_job(), *arguments).wait()
            self.assertIn(job.status, (2, 3), job.err)
            self.assertIn(words, job.err)


if __name__ == "__main__":
    harness.main()
