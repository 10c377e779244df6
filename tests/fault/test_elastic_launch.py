"""Elastic jobs whose ranks another launcher has started: `bimetal launch`, torchrun. Real kills; the end is that of one worker whom
nothing disturbs."""

import os
import pathlib
import signal
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "launch"))

import harness  # noqa: E402
from harness import BIMETAL  # noqa: E402
from launches import LaunchTest  # noqa: E402
from test_elastic import SLOW, ElasticJob  # noqa: E402
from test_torchrun import TORCHRUN  # noqa: E402


class ElasticRanks(ElasticJob, LaunchTest):
    def training(self, ranks, **settings):
        """The command of each rank."""
        job = self.write_elastic_job(**{"elastic__min_workers": 1, **settings})
        return [BIMETAL, "train", job, "--report", self.report, *(["--worker", SLOW] * ranks)]

    def begin(self, *options, ranks=3, **settings):
        job = self.launch(*options, "--", *self.training(ranks, **settings))
        self.wait_for_checkpoint(job)
        return job

    def kill_rank(self, rank):
        pid = self.ranks()[rank]
        os.kill(pid, signal.SIGKILL)
        return pid


class ElasticLaunch(ElasticRanks):
    def test_whoever_is_left_goes_on(self):
        job = self.begin("-n", 3)
        pid = self.kill_rank(0)
        lost = f"bimetal: rank 0 on localhost (pid {pid}) was killed by signal 9 (Killed); 2 ranks go on"
        harness.wait_until(lambda: lost in job.err or job.process.poll() is not None, "the launcher's word", job)
        os.kill(self.ranks()[2], signal.SIGTERM)
        self.assert_undisturbed_end(job)
        self.assertIn(lost, job.err)
        self.assertIn("has left the job; 1 rank goes on", job.err)
        self.assertNotIn("error:", job.err)

    def test_lost_ranks_are_started_again(self):
        """The first among them, and no more than --restart says."""
        job = self.begin("-n", 3, "--elastic=2", "--restart", 2, elastic__min_workers=0)
        for number, rank in enumerate((0, 1), start=1):
            self.kill_rank(rank)
            harness.wait_until(lambda: job.out.count("3 workers go on") == number or job.process.poll() is not None, "a newcomer", job)
        self.kill_rank(2)
        job.wait_for_output("2 workers go on")
        self.assert_undisturbed_end(job, elastic__min_workers=0)
        self.assertEqual(job.err.count("it is started again"), 2, job.err)
        self.assertRegex(job.err.splitlines()[-1], r"^bimetal: 3 ranks ended after \d+:\d\d, 3 lost, 2 started again; report /")
        self.assertEqual(job.out.count("joined:"), 2, job.out)

    def test_the_first_host_is_lost(self):
        job = self.begin("-H", "localhost:1,127.0.0.1:2")
        os.kill(harness.parent_of(self.ranks()[0]), signal.SIGKILL)  # its agent
        self.assert_undisturbed_end(job)
        self.assertIn("the other ranks go on", job.err)

    def test_fewer_than_the_least(self):
        job = self.begin("-n", 2, "--elastic=2", ranks=2, elastic__min_workers=0, elastic__patience_s=1, parallel__timeout_s=2)
        self.kill_rank(1)
        job.done(harness.PEER_LOST)
        self.assertIn("elastic.min_workers asks for 2", job.err)
        self.assertIn("rank 0 on localhost", job.error())
        self.assertNotIn("stopped", job.error())

    def test_what_fails_everywhere_is_no_loss(self):
        job = self.launch("-n", 2, "--restart", 5, "--", *self.training(2, train__learning_rate=1e300, train__optimizer="sgd",
                                                                        train__clip_norm=0.0))
        job.done(harness.NOT_FINITE)
        self.assertNotIn("started again", job.err)

    def test_a_job_that_is_not_elastic_ends(self):
        job = self.begin("-n", 2, "--restart", 5, ranks=2, elastic__min_workers=0)
        self.kill_rank(1)
        job.done(128 + 9)
        self.assertNotIn("started again", job.err)


class Script(LaunchTest):
    """Any command may be elastic: --elastic says that it is."""

    def test_any_command_goes_on(self):
        job = self.launch("-n", 3, "--elastic", script="[ $RANK = 1 ] && exit 7; sleep 3; echo $BIMETAL_ELASTIC ${BIMETAL_DOOR:-none}")
        job.done()
        self.assertEqual(job.out.count("1 none"), 2, job.out)
        self.assertIn("ended with exit status 7; 2 ranks go on", job.err)

    def test_one_that_comes_back_knows_the_door(self):
        script = "[ $RANK = 1 ] && [ -z $BIMETAL_DOOR ] && exit 7; sleep 3; echo rank $RANK at $BIMETAL_DOOR, $BIMETAL_BOARD"
        job = self.launch("-n", 2, "--elastic", "--restart", 1, script=script).done()
        self.assertRegex(job.out, r"rank 1 at (127.0.0.1:\d+), \1")
        self.assertRegex(job.out, r"rank 0 at , 127.0.0.1:\d+")

    def test_all_are_lost(self):
        job = self.launch("-n", 2, "--elastic", script="exit 7")
        self.assert_one_message(job.wait(), 7, "exit status 7")


@unittest.skipUnless(TORCHRUN and os.path.exists(TORCHRUN), "torchrun is not installed")
class ElasticTorchrun(ElasticRanks):
    def test_the_ranks_of_one_node_are_lost(self):
        """Those of the node that has torchrun's store."""
        port = str(harness.free_port())
        nodes = [self.start("--no-python", "--nnodes", 2, "--node-rank", node, "--nproc-per-node", 2, "--master-addr", "127.0.0.1",
                            "--master-port", port, "--log-dir", self.folder / "torchrun", *self.training(2), program=[TORCHRUN],
                            environment={"TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor")})
                 for node in (0, 1)]
        self.wait_for_checkpoint(nodes[0])
        self.kill_rank(0)
        self.assertNotEqual(nodes[0].wait().status, 0)  # its torchrun ends the other one, too
        nodes[1].wait_for_output("2 workers go on")
        self.assert_undisturbed_end(nodes[1])
        self.assertIn("trained", nodes[1].out)


if __name__ == "__main__":
    harness.main()
