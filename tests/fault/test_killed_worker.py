"""A worker that is killed: the job ends at once, names it and its place, and others go on from the checkpoint."""

import json

import harness
from text_job import TextJob

ONE = "cpu:threads=1"
# By name: the job's settings, its workers, the rank that is killed and its place; the settings and workers of those who go on.
JOBS = {
    "rank_1": ({}, (ONE, ONE + ",speed=0.5"), 1, "", {}, (ONE,) * 2),
    "rank_0": ({}, (ONE, ONE + ",speed=0.5"), 0, "", {}, (ONE,) * 2),
    "shards": ({"zero__level": 3, "zero__shards": [1, 2]}, (ONE,) * 2, 1, "", {"zero__level": 3, "zero__shards": "equal"}, (ONE,)),
    "a_stage": ({"mesh__stages": 3}, (ONE,) * 3, 1, "stage 1 of 3, ", {"mesh__stages": 2}, (ONE,) * 2),
    "a_replica_of_an_uneven_stage": ({"mesh__stages": 2, "mesh__replicas": [1, 2]}, (ONE,) * 3, 2, "stage 1 of 2, replica 1, ",
                                     {"mesh__stages": 2}, (ONE,) * 2),
    "a_part": ({"mesh__tensor": 2}, (ONE,) * 2, 1, "part 1 of 2, ", {}, (ONE,)),
    "a_part_of_a_stage": ({"mesh__stages": 2, "mesh__tensor": 2}, (ONE,) * 4, 1, "stage 0 of 2, part 1 of 2, ",
                          {"mesh__stages": 2}, (ONE,) * 2),
}


class KilledWorker(TextJob):
    def lose(self, settings, workers, rank, place, then, others):
        write = self.write_text_job if "mesh__tensor" in settings else self.write_job  # which only language models can be in
        job = self.train(write("job.toml", **settings, checkpoint__dir=str(self.checkpoints)), workers=workers)
        self.wait_for_a_told_checkpoint(job)
        pid = self.kill(job, rank)
        self.assert_one_message(job, harness.PEER_LOST, f"rank {rank} ({place}{workers[rank]}, pid {pid}) was killed by signal 9 (Killed)",
                                "the other ranks were stopped", "Last checkpoint:", "--resume")
        self.assert_nothing_left()
        self.assert_can_resume(write("then.toml", **then, checkpoint__dir=str(self.checkpoints)), workers=others)
        self.assert_nothing_left()

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


for _name, _job in JOBS.items():
    setattr(KilledWorker, f"test_{_name}", lambda self, job=_job: self.lose(*job))


if __name__ == "__main__":
    harness.main()
