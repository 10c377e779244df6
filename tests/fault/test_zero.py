"""Jobs whose parameters, gradients and optimizer states are in shards: what one worker would have learnt,
also where they go on at another level on other ranks, and after a worker is killed."""

import json
import os
import pathlib
import resource

import harness
from harness import limited
from exact_job import ExactJob, tensors_of


class Zero(ExactJob):
    def test_any_level_goes_on_from_any_other(self):
        self.run_to(self.write_exact_job("alone"), 30, ranks=1)
        folder = ("--resume", self.folder / "shards")
        self.run_to(self.write_exact_job("shards", zero__level=3, zero__shards=[5, 2, 0]), 10, ranks=3)
        self.run_to(self.write_exact_job("shards", zero__level=1, zero__shards="memory"), 15, *folder, ranks=2)
        self.run_to(self.write_exact_job("shards", zero__level=2, zero__shards="speed"), 20, *folder, ranks=2)
        self.run_to(self.write_exact_job("shards", zero__level=3, zero__shards="equal"), 30, *folder, ranks=2)
        self.assert_same_end("shards", 30)

    def offloaded(self, place):
        """Settings of a job whose optimizer's state is there."""
        folder = self.folder / "offload"
        folder.mkdir(exist_ok=True)
        return {"zero__offload_optimizer": place, "zero__offload_path": str(folder)}

    def assert_nothing_offloaded_left(self):
        self.assertEqual(list((self.folder / "offload").iterdir()), [])
        self.assert_nothing_left()

    def test_offloaded_states_go_on_elsewhere_and_back(self):
        self.run_to(self.write_exact_job("alone"), 30, ranks=1)
        folder, disk = ("--resume", self.folder / "shards"), self.offloaded("disk")
        first = self.run_to(self.write_exact_job("shards", zero__level=3, zero__shards=[2, 1],
                                                 zero__offload_parameters="disk", **disk), 5, ranks=2)
        self.assertNotIn("in any case", first.out)
        host = self.write_exact_job("shards", zero__level=2, zero__shards="equal", **self.offloaded("host"))
        self.assertIn("host's memory in any case", self.run_to(host, 20, *folder, ranks=2).out)
        self.run_to(self.write_exact_job("shards"), 30, *folder, ranks=1)
        self.assert_same_end("shards", 30)
        self.assert_nothing_offloaded_left()

    def test_the_report_sets_a_disk_beside_a_plain_copy(self):
        for update in ("step", "backward"):
            with self.subTest(update):
                self.assert_reports_a_disk(f"disk-{update}", zero__update=update)

    def assert_reports_a_disk(self, name, **settings):
        report, steps = self.folder / "run.json", 4
        job_file = self.write_exact_job(name, zero__level=3, zero__shards=[2, 1], zero__offload_parameters="disk",
                                        train__steps=steps, train__evaluate=False, train__clip_norm=0,
                                        **self.offloaded("disk"), **settings)
        job = self.train(job_file, "--report", report, workers=(
            "cpu:threads=1", "cpu:threads=1,offload_optimizer=none,offload_parameters=none")).done()
        self.assertIn("a plain copy there: read at ", job.out)
        first, second = json.loads(report.read_text())["workers"]
        self.assertNotIn("offload", second)
        offload = first["offload"]
        states, parameters, copy = offload["states"], offload["parameters"], offload["copy"]
        own = sum(map(len, tensors_of(self.whole(name, steps) / "model.safetensors").values())) * 2 / 3
        self.assertAlmostEqual(parameters["written_bytes"] / (steps * 8 * own), 1, delta=0.01)
        self.assertGreaterEqual(parameters["read_bytes"], parameters["written_bytes"])  # a gather a step, or more
        for moved in ("read_bytes", "written_bytes"):
            self.assertEqual(states[moved], 2 * parameters["written_bytes"])  # two moments
        for figure in (states["read_bytes_per_s"], states["written_bytes_per_s"], states["wait_s"],
                       parameters["read_bytes_per_s"], parameters["wait_s"],
                       copy["bytes"], copy["read_bytes_per_s"], copy["written_bytes_per_s"]):
            self.assertGreater(figure, 0)
        self.assertIsNone(parameters["write_s"])
        self.assertLessEqual(copy["bytes"], states["kept_bytes"] + parameters["kept_bytes"])
        self.assert_nothing_offloaded_left()

    def test_a_killed_worker_leaves_no_offloaded_state(self):
        job = self.train(self.write_job(zero__level=2, train__optimizer="adamw", **self.offloaded("disk")))
        self.wait_for_a_told_checkpoint(job)
        for pid in self.ranks_of(job):
            # Open without a name: on the disk, and gone with the process.
            names = [os.readlink(link) for link in pathlib.Path(f"/proc/{pid}/fd").iterdir()]
            self.assertTrue(any(name.startswith(str(self.folder / "offload")) for name in names), names)
        self.kill(job, 1)
        self.assert_one_message(job, harness.PEER_LOST, "rank 1", "signal 9", "--resume")
        self.assert_nothing_offloaded_left()

    def test_a_disk_without_room_for_the_state(self):
        settings = {"zero__level": 1, "train__optimizer": "adam", "zero__shards": [1, 1], **self.offloaded("disk")}
        few = self.train(self.write_job(**settings), **limited(resource.RLIMIT_FSIZE, 1 << 19)).wait()
        self.assert_one_message(few, harness.SYSTEM, "no room for", "ulimit -f", "zero.shards")
        folder = self.folder / "offload"
        self.small_disk(folder, 1 << 19)
        full = self.train(self.write_job(**settings)).wait()
        self.assert_one_message(full, harness.SYSTEM, "no room for", str(folder), "No space left")
        self.assert_nothing_offloaded_left()

    def update_in_backward(self, name, **settings):
        return self.write_exact_job(name, **{"zero__level": 3, "zero__shards": [2, 1], "zero__update": "backward",
                                             "train__clip_norm": 0, **settings})

    def test_of_a_step_that_backward_has_begun_to_apply_nothing_is_saved(self):
        # The others may be in any part of a step when it is killed.
        job = self.train(self.update_in_backward("checkpoints", checkpoint__every_steps=1, checkpoint__keep=2),
                         "--set", "train.steps=5000")
        self.wait_for_a_told_checkpoint(job)
        self.kill(job, 0)
        self.assert_one_message(job, harness.PEER_LOST, "rank 0", "signal 9", "--resume")
        saved = self.saved_steps()[-1]
        self.run_to(self.write_exact_job("alone", train__clip_norm=0), saved, ranks=1)
        self.assert_same_end("checkpoints", saved)

    def test_a_loss_that_is_no_number_saves_nothing_of_what_backward_has_updated(self):
        good = self.write_job(zero__level=3, zero__update="backward", train__steps=20)
        self.train(good).done()
        step = self.saved_steps()[-1]
        diverging = self.write_job("diverging.toml", zero__level=3, zero__update="backward", train__learning_rate=1e30)
        job = self.train(diverging, "--resume", self.checkpoints).wait()
        self.assert_one_message(job, harness.NOT_FINITE, "step", "rank", "checkpoint", "dropped (zero.update)")
        self.assertEqual(self.saved_steps()[-1], step)
        self.assert_can_resume(good)

    def test_a_worker_without_memory_takes_smaller_pieces_unless_backward_updates(self):
        job_file = self.write_job(model__name="cnn", train__steps=4, train__global_batch=4096, train__micro_batch=4096, zero__level=3,
                                  zero__shards="equal", train__check_memory="warn")
        workers = ("cpu:threads=1,memory=170MB", "cpu:threads=1")
        job = self.train(job_file, "--set", "zero.update=backward", workers=workers).wait()
        self.assert_one_message(job, harness.OUT_OF_MEMORY, "rank 0", "ran out of memory")
        self.assertEqual(self.saved_steps(), [])
        job = self.train(job_file, workers=workers).done()
        self.assertIn("rank 0 ran out of memory", job.out)

    def test_what_cannot_be(self):
        disk = {"train__optimizer": "adam", "zero__offload_optimizer": "disk"}
        for settings, part in (({"zero__shards": [1, 2, 3]}, "zero.shards has 3 weights for 2 ranks"),
                               ({**disk, "zero__offload_path": str(self.folder / "job.toml")}, "is no folder"),
                               ({**disk, "zero__offload_path": "/nowhere"}, "is no folder"),
                               ({"parallel__mode": "server"}, "does not go with parallel.mode")):
            with self.subTest(part):
                job = self.train(self.write_job(zero__level=2, **settings)).wait()
                self.assertNotEqual(job.status, 0)
                self.assertIn(part, job.err)


if __name__ == "__main__":
    harness.main()
