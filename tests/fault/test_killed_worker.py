"""A worker that is killed: the job ends at once, names it, and can go on from its checkpoint."""

import json

import harness
from harness import FaultTest


class KilledWorker(FaultTest):
    def kill_rank(self, rank):
        job_file = self.write_job()
        job = self.train(job_file, workers=("cpu:threads=1", "cpu:threads=1,speed=0.5"))
        self.wait_for_a_told_checkpoint(job)
        pid = self.kill(job, rank)
        job.wait()
        spec = ("cpu:threads=1", "cpu:threads=1,speed=0.5")[rank]
        self.assert_one_message(job, harness.PEER_LOST,
                                f"rank {rank} ({spec}, pid {pid}) was killed by signal 9 (Killed)",
                                "the other ranks were stopped", "Last checkpoint:", "--resume")
        self.assert_nothing_left()
        self.assert_can_resume(job_file)
        self.assert_nothing_left()

    def test_rank_1(self):
        self.kill_rank(1)

    def test_rank_0(self):
        self.kill_rank(0)

    def test_the_last_calls_of_those_who_lost_it_are_kept_beside_the_report(self):
        report = self.folder / "run.json"
        job = self.train(self.write_job(), "--report", report)
        self.wait_for_checkpoint(job)
        self.kill(job, 1)
        job.wait()
        self.assertFalse(report.exists())
        dump = json.loads((self.folder / "run_flight_rank_0.json").read_text())
        self.assertEqual((dump["rank"], dump["world_size"]), (0, 2))
        failures = [entry["error"] for entry in dump["entries"] if entry["error"]]
        self.assertEqual({(failure["code"], failure["rank"]) for failure in failures}, {("peer_lost", 1)})
        self.assertFalse((self.folder / "run_flight_rank_1.json").exists())


if __name__ == "__main__":
    harness.main()
