"""Jobs whose workers are lost, leave, come, and come back: those who are there go on, each sample is used once, and the end is
that of one worker whom nothing disturbs."""

import json
import os
import re
import shutil
import signal

import harness
from exact_job import ExactJob
from harness import TwoMachines
from text_job import TextJob

STEPS = 40
SLOW = "cpu:threads=1,speed=0.3"  # so that a job does not end before it is disturbed, however busy the machine is


class ElasticJob(ExactJob):
    def setUp(self):
        super().setUp()
        self.checkpoints = self.folder / "elastic"
        self.report = self.folder / "report.json"

    def write_elastic_job(self, name="elastic", **settings):
        return self.write_exact_job(name, **{"train__steps": STEPS, "train__evaluate": False, "elastic__patience_s": 20, **settings})

    def start_job(self, ranks, workers=None, **settings):
        job = self.train(self.write_elastic_job(**{"elastic__min_workers": 1, **settings}), "--report", self.report,
                         workers=workers or (SLOW,) * ranks)
        self.wait_for_checkpoint(job)
        return job

    def assert_undisturbed_end(self, *jobs, repeated=0, **settings):
        """All of `jobs` end well, at what one worker learns of each sample once."""
        for job in jobs:
            job.done()
        self.run_to(self.write_elastic_job("alone", **settings), STEPS, ranks=1)
        self.assert_same_end("elastic", STEPS)
        if self.report.exists():
            samples = sum(worker["samples"] for worker in json.loads(self.report.read_text())["workers"])
            self.assertEqual(samples, (STEPS + repeated) * 64)
        self.assert_no_half_checkpoint()
        self.assert_nothing_left()


class Elastic(ElasticJob):
    def lose(self, *ranks):
        job = self.start_job(3)
        pids = self.ranks_of(job)
        for rank in ranks:
            os.kill(pids[rank], signal.SIGKILL)
        self.assert_undisturbed_end(job)
        self.assertEqual(job.out.count("lost:"), 1, job.out)
        self.assertIn(f"{3 - len(ranks)} worker", job.out)
        change, = json.loads(self.report.read_text())["changes"]
        self.assertEqual((len(change["lost"]), change["left"], change["joined"], change["workers"]), (len(ranks), [], [], 3 - len(ranks)))
        self.assertIn("is gone", change["cause"])
        self.assertGreater(change["seconds"], 0)

    def test_the_first_rank_is_lost(self):
        self.lose(0)

    def test_the_last_rank_is_lost(self):
        self.lose(2)

    def test_two_are_lost_at_once(self):
        self.lose(0, 1)

    def test_one_after_the_other(self):
        job = self.start_job(3)
        pids = self.ranks_of(job)
        os.kill(pids[1], signal.SIGKILL)
        job.wait_for_output("2 workers go on")
        os.kill(pids[0], signal.SIGKILL)
        job.wait_for_output("1 worker goes on")
        self.assert_undisturbed_end(job)
        records = sorted(path.name for path in self.folder.glob("report_flight*"))
        self.assertEqual(records, ["report_flight_epoch_1_rank_1.json", "report_flight_rank_0.json", "report_flight_rank_2.json"])

    def test_a_rank_is_stopped_before_the_first_step(self):
        job = self.train(self.write_elastic_job(elastic__min_workers=1, parallel__timeout_s=3), workers=("cpu:threads=1",) * 3)
        job.wait_for_output("measuring devices")
        pid = self.ranks_of(job)[1]
        os.kill(pid, signal.SIGSTOP)
        job.wait_for_output("2 workers go on")
        os.kill(pid, signal.SIGKILL)
        self.assert_undisturbed_end(job)

    def test_a_stopped_rank_comes_back(self):
        for rank in (0, 1):
            with self.subTest(rank):
                shutil.rmtree(self.checkpoints, ignore_errors=True)
                workers = [SLOW] * 3
                workers[rank] = "cpu:threads=1"  # or it would sleep once more, as slower ones do, for all of the time of its stop
                job = self.start_job(3, workers, parallel__timeout_s=3)
                pid = self.ranks_of(job)[rank]
                os.kill(pid, signal.SIGSTOP)
                job.wait_for_output("2 workers go on")
                os.kill(pid, signal.SIGCONT)
                job.wait_for_output("joined:")
                job.wait_for_output("3 workers go on")
                self.assert_undisturbed_end(job)
                shutil.rmtree(self.folder / "alone")
                shutil.rmtree(self.folder / f"whole-elastic-{STEPS}")

    def test_one_leaves_when_it_is_asked_to(self):
        job = self.start_job(3)
        os.kill(self.ranks_of(job)[0], signal.SIGTERM)
        job.wait_for_output("left:")
        self.assert_undisturbed_end(job)
        self.assertNotIn("lost:", job.out)

    def test_all_end_where_all_are_asked_to(self):
        job = self.start_job(2)
        job.interrupt()
        job.done(harness.INTERRUPTED)
        self.assert_saved_where_it_stopped(job)

    def test_fewer_than_the_least(self):
        job = self.start_job(2, elastic__min_workers=2, elastic__patience_s=1, parallel__timeout_s=2)
        self.kill(job, 1)
        self.assert_one_message(job.wait(), harness.PEER_LOST, "signal 9")
        self.assert_nothing_left()

    def test_running_statistics(self):
        few = {"model__name": "resnet18", "train__global_batch": 8, "train__micro_batch": 4, "train__steps": 6}
        job = self.start_job(3, checkpoint__every_steps=2, **few)
        self.kill(job, 1)
        job.done()
        self.run_to(self.write_elastic_job("alone", **few), 6, ranks=1)
        self.assert_same_end("elastic", 6)

    def test_shards_go_on_from_their_copies(self):
        job = self.start_job(3, zero__level=2, zero__copies=2)
        self.kill(job, 1)
        self.assert_undisturbed_end(job)
        self.assertNotIn("to make again", job.out)

    def test_shards_without_copies_go_back_to_the_last_checkpoint(self):
        job = self.start_job(3, zero__level=3)
        self.kill(job, 0)
        job.done()
        self.assertIn("to make again", job.out)
        self.report.unlink()
        self.assert_undisturbed_end(job)

    def test_shards_that_nobody_has_saved_end_the_job(self):
        job = self.train(self.write_elastic_job(elastic__min_workers=1, zero__level=1, checkpoint__every_steps=STEPS), workers=(SLOW,) * 3)
        job.wait_for_output(" loss ")
        self.kill(job, 1)
        self.assert_one_message(job, harness.PEER_LOST, "signal 9")
        self.assertRegex(job.out, "note: .*has been saved nowhere.*checkpoint.every_steps")
        self.assert_nothing_left()

    def test_an_error_of_one_ends_the_job(self):
        job = self.train(self.write_elastic_job(elastic__min_workers=1, train__learning_rate=1e300, train__clip_norm=0.0,
                                                train__optimizer="sgd"), workers=(SLOW,) * 2)
        self.assert_one_message(job.wait(), harness.NOT_FINITE, "not finite")
        self.assert_nothing_left()


class ElasticMeshes(ElasticJob):
    """Cut models go on from the last checkpoint, cut for the workers that are there."""

    def assert_goes_on(self, job, workers):
        job.done()
        self.assertIn("to make again", job.out)
        self.assertIn(f"{workers} worker", job.out)
        self.report.unlink()
        self.assert_undisturbed_end(job)

    def test_a_stage_is_lost(self):
        job = self.start_job(3, mesh__stages=3)
        self.kill(job, 0)
        self.assert_goes_on(job, 2)
        self.assertIn("[mesh] is not for 2 workers: it is planned again", job.out)

    def test_a_stage_of_one_of_two_replicas_is_lost(self):
        """The first stage of the other replica has no group with it."""
        job = self.start_job(4, mesh__stages=2)
        self.kill(job, 2)
        job.wait_for_output("go on from step")
        self.assertIn("3 workers go on", job.out)
        self.assert_goes_on(job, 3)

    def test_one_is_told_to_leave_while_the_mesh_is_planned_again(self):
        """It leaves after a step. Planning that ended for its sake began anew for ever."""
        job = self.start_job(4, mesh__stages=2)
        ranks = self.ranks_of(job)
        os.kill(ranks[3], signal.SIGKILL)
        os.kill(ranks[1], signal.SIGTERM)
        job.wait_for_output("left:")
        self.assert_goes_on(job, 2)

    def test_the_only_other_stage_is_lost(self):
        job = self.start_job(2, mesh__stages="auto", mesh__replicas=1)
        self.kill(job, 1)
        self.assert_goes_on(job, 1)

    def test_stages_that_leave_some_are_kept(self):
        job = self.start_job(4, mesh__stages=2, zero__level=1)
        ranks = self.ranks_of(job)
        for rank in (1, 2):
            os.kill(ranks[rank], signal.SIGTERM)
        job.wait_for_output("2 workers go on")
        self.assert_undisturbed_end(job)
        self.assertNotIn("to make again", job.out)
        self.assertNotIn("planned again", job.out)


class ElasticParts(ElasticJob, TextJob):
    """Ranks with parts of one replica's tensors speak as one: it must still be known which of them leaves."""

    def write_exact_job(self, name, **settings):
        return self.write_text_job(name, **{"train__global_batch": 64, "train__micro_batch": 16, "checkpoint__every_steps": 10, **settings})

    def leave(self, ranks, asked):
        job = self.start_job(ranks, workers=(SLOW,) * ranks, mesh__tensor=2)
        pid = self.ranks_of(job)[asked]
        os.kill(pid, signal.SIGTERM)
        job.wait_for_output("left:")
        self.assertRegex(job.out, rf"left: .*\(process {pid}\)\n")
        job.done()
        self.report.unlink()
        self.assert_undisturbed_end(job)

    def test_one_of_the_only_replica_leaves(self):
        self.leave(2, 1)

    def test_one_of_the_second_replica_leaves(self):
        self.leave(4, 3)


class ElasticRoom(TextJob):
    """A model of 410 MB with its optimizer, on workers that have room for three quarters of it."""

    def test_a_model_that_no_longer_fits_waits_and_ends(self):
        self.checkpoints = self.folder / "room"
        job = self.train(self.write_text_job(
            "room", model__layers=4, model__width=512, model__heads=8, train__steps=100, train__evaluate=False, mesh__stages=2,
            elastic__min_workers=1, elastic__patience_s=2, checkpoint__every_steps=1), workers=("cpu:threads=1,memory=300MB",) * 2)
        self.wait_for_checkpoint(job)
        self.kill(job, 1)
        self.assert_one_message(job.wait(), harness.PEER_LOST, "signal 9")
        self.assertRegex(job.out, "waiting 2 s for another worker: .*this does not fit: rank 0 .* lacks")
        self.assertTrue(self.saved_steps())
        self.assert_nothing_left()


class ElasticOnSeveralMachines(ElasticJob, TwoMachines):
    """A job on several machines is elastic unless it says otherwise."""

    def begin(self, guests=2, *arguments, **settings):
        host = self.host(self.write_elastic_job(**settings), *arguments, world_size=1 + guests, workers=(SLOW,))
        jobs = [host, *(self.join(host, workers=(SLOW,)) for _ in range(guests))]
        self.wait_for_checkpoint(host)
        return jobs

    def test_the_first_machine_dies(self):
        host, *guests = self.begin()
        for pid in (host.pid, *self.ranks_of(host)):
            os.kill(pid, signal.SIGKILL)
        host.wait()
        self.assert_undisturbed_end(*guests)
        self.assertIn("lost:", guests[0].out)
        self.assertIn("trained", guests[0].out + guests[1].out)

    def test_another_joins_later_and_leaves_by_ctrl_c(self):
        host, guest = self.begin(1)
        newcomer = self.join(host, workers=(SLOW,))
        host.wait_for_output("3 workers go on")
        newcomer.wait_for_output("step ")
        newcomer.interrupt()
        newcomer.done(harness.INTERRUPTED)
        host.wait_for_output("left:")
        self.assert_undisturbed_end(host, guest)

    def test_who_still_waits_hears_that_the_job_is_done(self):
        host, guest = self.begin(1, elastic__max_workers=2)
        newcomer = self.join(host, workers=(SLOW,))
        newcomer.wait_for_output("waiting to be let in")
        self.assert_undisturbed_end(host, guest, elastic__max_workers=2)
        self.assert_one_message(newcomer.wait(), harness.PEER_LOST, "the job is done")

    def test_ctrl_c_ends_the_wait_for_others(self):
        host, guest = self.begin(1, elastic__min_workers=2, elastic__patience_s=300)
        self.kill(guest, 0)
        host.wait_for_output("waiting for the other workers, 300 s at most")
        host.interrupt()
        host.done(harness.INTERRUPTED)
        guest.wait()
        self.assert_nothing_left()

    def test_who_comes_later_gets_a_stage(self):
        host = self.host(self.write_elastic_job(mesh__stages=2), world_size=2, workers=(SLOW,))
        guest = self.join(host, workers=(SLOW,))
        self.wait_for_checkpoint(host)
        newcomer = self.join(host, workers=(SLOW,))
        host.wait_for_output("3 workers go on")
        self.assert_undisturbed_end(host, guest, newcomer)
        self.assertIn("[mesh] is not for 3 workers: it is planned again", host.out)

    def test_a_model_in_stages_is_whole_again_each_time(self):
        host = self.host(self.write_elastic_job(mesh__stages=2), world_size=2, workers=(SLOW,))
        guest = self.join(host, workers=(SLOW,))
        self.wait_for_checkpoint(host)
        for times in (1, 2):
            guest.interrupt()
            guest.done(harness.INTERRUPTED)
            harness.wait_until(lambda: host.out.count("1 worker goes on") == times, "a worker alone", host)
            if times == 1:
                guest = self.join(host, workers=(SLOW,))
                host.wait_for_output("2 workers go on")
        self.assert_undisturbed_end(host)

    def test_a_newcomer_with_other_data_is_refused(self):
        host, guest = self.begin(1)
        harness.write_dataset(self.folder / "other", train=512)
        newcomer = self.join(host, "--data-path", self.folder / "other").wait()
        self.assert_one_message(newcomer, harness.INVALID_ARGUMENT, "other data")
        self.assert_undisturbed_end(host, guest)

    def test_without_it_a_lost_worker_ends_the_job(self):
        host, guest = self.begin(1, "--no-elastic")
        self.kill(guest, 0)
        for job in (host, guest):
            self.assert_one_message(job.wait(), harness.PEER_LOST, "signal 9")
        self.assert_nothing_left()


if __name__ == "__main__":
    harness.main()
