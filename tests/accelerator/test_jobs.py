"""Jobs on an accelerator, beside it and a CPU: what one CPU would have learnt, whatever is where; what happens to them there.

    BIMETAL_DEVICE=cuda:0 .venv/bin/python tests/accelerator/test_jobs.py        (or mps, xpu:0; make test-accelerator)

One card is enough: where a job asks for two, two workers share it. Metal, which has no float64, is compared in float32.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "fault"))
import harness  # noqa: E402
from text_job import TextJob  # noqa: E402

DEVICE = os.environ.get("BIMETAL_DEVICE", "")
CPU = "cpu:threads=1"
TYPE = "float32" if DEVICE.startswith("mps") else "float64"
CLOSE = 2e-4 if TYPE == "float32" else 1e-10  # devices round a sum's last digits each in its way

MIXED, REVERSED, TWICE = [DEVICE, CPU], [CPU, DEVICE], [DEVICE, DEVICE]


class OnDevice(TextJob):
    def write_job(self, name="job.toml", **settings):
        return super().write_job(name, **{"train__steps": 4, "checkpoint__every_steps": 2, "train__dtype": TYPE, **settings})

    def write_text_job(self, name, **settings):
        return super().write_text_job(name, **{"train__dtype": TYPE, **settings})

    def write_exact_job(self, name, **settings):
        """AdamW on a CNN, the same on any number of workers."""
        return self.write_job(f"{name}.toml", **{
            "model__name": "cnn", "train__optimizer": "adamw", "train__clip_norm": 0.5, "train__weight_decay": 0.1,
            "train__micro_batch": 20, "train__epsilon": 1e-3, "train__evaluate": True,
            "checkpoint__dir": str(self.folder / name), **settings})

    def run_on(self, job_file, workers, *arguments):
        report = self.folder / "report.json"
        job = self.train(job_file, "--report", report, *arguments, workers=workers).done()
        return job, json.loads(report.read_text())

    def assert_learnt(self, name, step=4, alone="alone"):
        self.assert_same_end(name, step, alone, TYPE, CLOSE)

    def assert_each_learns_the_same(self, write, ways):
        """`ways`: the workers and the settings of each. All are tried, whatever becomes of one."""
        _, alone = self.run_on(write("alone"), [CPU])
        for number, (workers, settings) in enumerate(ways):
            with self.subTest(workers=workers, settings=settings):
                name = f"way{number}"
                _, report = self.run_on(write(name, **settings), workers)
                self.assert_learnt(name)
                for what in ("test_perplexity", "test_accuracy"):
                    if alone.get(what) is not None:
                        self.assertAlmostEqual(report[what], alone[what], 3 if TYPE == "float32" else 8)
        self.assert_nothing_left()


class Replicas(OnDevice):
    def test_data_parallel(self):
        self.assert_each_learns_the_same(self.write_exact_job, [
            ([DEVICE], {}), (MIXED, {}), (REVERSED, {"parallel__balance": "equal"}), (TWICE, {"parallel__bucket_mb": 0.01}),
            (MIXED, {"parallel__balance": [3, 1], "train__recompute": "all"}),
            (MIXED, {"parallel__mode": "server"}),
        ])

    def test_a_language_model(self):
        self.assert_each_learns_the_same(self.write_text_job, [
            ([DEVICE], {}), (MIXED, {}), (TWICE, {"parallel__balance": "equal"}), ([DEVICE], {"train__recompute": "all"})])

    def test_optimizers(self):
        for optimizer in ("sgd", "adam", "lars", "lamb"):
            with self.subTest(optimizer):
                settings = {"train__optimizer": optimizer, "train__learning_rate": 0.01}
                self.run_on(self.write_text_job(f"cpu-{optimizer}", **settings), [CPU])
                self.run_on(self.write_text_job(f"both-{optimizer}", **settings), MIXED)
                self.assert_learnt(f"both-{optimizer}", alone=f"cpu-{optimizer}")


class Shards(OnDevice):
    def test_zero(self):
        self.assert_each_learns_the_same(self.write_exact_job, [
            (MIXED, {"zero__level": 1}), (MIXED, {"zero__level": 2, "zero__shards": [2, 1]}), (MIXED, {"zero__level": 3}),
            (REVERSED, {"zero__level": 3, "zero__shards": [1, 2], "zero__keep_below": 20}), ([DEVICE], {"zero__level": 3}),
            (TWICE, {"zero__level": 2, "zero__copies": 2}),
            (TWICE, {"zero__level": 3, "zero__shards": "equal"}),
        ])

    def test_updates_in_backward(self):
        unclipped = {"train__clip_norm": 0.0}
        self.run_on(self.write_exact_job("alone", **unclipped), [CPU])
        self.run_on(self.write_exact_job("backward", zero__level=3, zero__update="backward", **unclipped), MIXED)
        self.assert_learnt("backward")

    def test_offload(self):
        disk = self.folder / "offload"
        disk.mkdir()
        here = {"zero__offload_path": str(disk)}
        self.assert_each_learns_the_same(self.write_exact_job, [
            (MIXED, {"zero__level": 1, "zero__offload_optimizer": "host"}),
            (MIXED, {"zero__level": 2, "zero__offload_optimizer": "disk", **here}),
            (MIXED, {"zero__level": 3, "zero__offload_parameters": "host"}),
            (TWICE, {"zero__level": 3, "zero__offload_parameters": "disk", "zero__offload_optimizer": "disk", **here}),
        ])


class Meshes(OnDevice):
    def test_stages(self):
        ways = [(workers, {"mesh__stages": 2, "mesh__schedule": schedule, "mesh__micro_batches": 3})
                for schedule in ("gpipe", "1f1b", "zero_bubble") for workers in (MIXED, REVERSED)]
        self.assert_each_learns_the_same(self.write_text_job, [
            *ways, (TWICE, {"mesh__stages": 2, "train__recompute": "all"}), (MIXED + [CPU], {"mesh__stages": 3}),
        ])

    def test_interleaved_stages(self):
        self.run_on(self.write_text_job("alone", model__layers=3), [CPU])
        self.run_on(self.write_text_job("woven", model__layers=3, mesh__stages=2, mesh__schedule="interleaved", mesh__micro_batches=2),
                    MIXED)
        self.assert_learnt("woven")

    def test_parts(self):
        self.assert_each_learns_the_same(self.write_text_job, [
            (MIXED, {"mesh__tensor": 2}), (REVERSED, {"mesh__tensor": 2, "mesh__tensor_weights": [1, 2]}),
            (MIXED, {"mesh__tensor": 2, "mesh__tensor_weights": "speed"}), (TWICE, {"mesh__tensor": 2, "mesh__sequence_parallel": True}),
        ])

    def test_all_at_once(self):
        self.assert_each_learns_the_same(self.write_text_job, [
            (TWICE + [CPU, CPU], {"mesh__stages": 2, "mesh__tensor": 2}), ([CPU] + TWICE, {"mesh__stages": 2, "mesh__tensor": [1, 2]}),
            (MIXED + MIXED, {"mesh__stages": 2, "mesh__replicas": 2, "zero__level": 1}),
            (TWICE + [CPU], {"mesh__stages": 2, "mesh__replicas": [2, 1], "zero__level": 3}),
        ])

    def test_what_is_chosen(self):
        self.run_on(self.write_text_job("alone"), [CPU])
        for number, settings in enumerate(({"mesh__stages": "auto"}, {"mesh__tensor": "auto"})):
            with self.subTest(settings):
                job, _ = self.run_on(self.write_text_job(f"chosen{number}", **settings), MIXED)
                self.assertRegex(job.out, r'"auto": .* a step')
                self.assert_learnt(f"chosen{number}")


class Cards(OnDevice):
    """Two of one host, which NCCL or RCCL joins (docs/islands.md), and a CPU beside them."""

    def setUp(self):
        super().setUp()
        import torch
        kind = DEVICE.partition(":")[0]
        if not torch.accelerator.is_available() or torch.accelerator.device_count() < 2:
            self.skipTest(f"there is one {kind} device, and two are to be joined")
        self.two = [f"{kind}:0", f"{kind}:1"]

    def test_whole_models_and_shards(self):
        self.assert_each_learns_the_same(self.write_exact_job, [
            (workers, settings) for workers in (self.two, self.two + [CPU], [CPU] + self.two) for settings in (
                {}, {"zero__level": 1}, {"zero__level": 2}, {"zero__level": 3, "zero__shards": [2, 1, 1][:len(workers)]})
        ] + [(self.two, {"zero__level": 3, "zero__offload_parameters": "host"})])

    def test_stages_and_parts(self):
        self.assert_each_learns_the_same(self.write_text_job, [
            (self.two, {"mesh__stages": 2}), (self.two, {"mesh__tensor": 2}), (self.two, {"mesh__tensor": 2, "fabric__islands": "off"}),
            (self.two, {"mesh__tensor": 2, "mesh__tensor_weights": [1, 2], "mesh__sequence_parallel": True}),
            (self.two + [CPU, CPU], {"mesh__stages": 2, "mesh__tensor": 2}),
        ])

    def test_a_killed_worker_is_named(self):
        for settings in ({}, {"zero__level": 3}):
            with self.subTest(settings):
                shutil.rmtree(self.checkpoints, ignore_errors=True)
                job = self.train(self.write_job(**{"train__steps": 1_000_000, "checkpoint__every_steps": 20, **settings}), workers=self.two)
                self.wait_for_a_told_checkpoint(job)
                os.kill(self.ranks_of(job)[1], signal.SIGKILL)
                self.assert_one_message(job, harness.PEER_LOST, "rank 1", "signal 9", "--resume")
                self.assert_nothing_left()


class Checkpoints(OnDevice):
    def test_jobs_move_between_devices(self):
        self.run_on(self.write_text_job("alone", train__steps=8), [CPU])
        folder = ("--resume", self.folder / "moved")
        for steps, workers, settings in ((2, [DEVICE], {}), (4, [CPU], {}), (6, MIXED, {"zero__level": 2}),
                                         (8, REVERSED, {"mesh__stages": 2})):
            self.run_on(self.write_text_job("moved", train__steps=steps, **settings), workers, *(folder if steps > 2 else ()))
        self.assert_learnt("moved", 8)

    def test_what_has_learnt_is_used(self):
        self.run_on(self.write_text_job("run"), [CPU])
        said = {}
        for worker in (CPU, DEVICE):
            written = self.start("generate", self.folder / "run", "--prompt", "the cat", "--tokens", 20, "--temperature", 0,
                                 "--worker", worker).wait()
            evaluated = self.start("evaluate", self.folder / "run.toml", "--checkpoint", self.folder / "run", "--worker", worker).wait()
            self.assertEqual((written.status, evaluated.status), (0, 0), f"{written.err}\n{evaluated.err}")
            said[worker] = written.out, re.findall(r"perplexity\D*([\d.]+)", evaluated.out)
        self.assertEqual(said[CPU], said[DEVICE])
        split = self.start("generate", self.folder / "run", "--prompt", "the cat", "--tokens", 20, "--temperature", 0,
                           "--worker", DEVICE, "--worker", CPU).wait()
        self.assertEqual((split.status, split.out), (0, said[CPU][0]), split.err)


class Precision(OnDevice):
    def test_halves_learn_nearly_the_same(self):
        """Losses after 60 steps, beside float32's on the CPU."""
        settings = {"train__dtype": "float32", "train__steps": 60, "model__dropout": 0.0}
        losses = {}
        for name, workers, precision in (("float32", [CPU], "float32"), ("device", [DEVICE], "float32"),
                                         ("bfloat16", [DEVICE], "bfloat16"), ("float16", [DEVICE], "float16"),
                                         ("auto", [DEVICE], "auto"), ("mixed", [DEVICE + ":precision=float16", CPU], "float32")):
            with self.subTest(name):
                _, report = self.run_on(self.write_text_job(name, train__precision=precision, **settings), workers)
                losses[name] = report["test_perplexity"]
                self.assertAlmostEqual(losses[name] / losses["float32"], 1, delta=0.03)

    def test_tf32(self):
        """On devices that have it; elsewhere it is refused."""
        settings = {"train__dtype": "float32", "train__precision": "tf32"}
        if not DEVICE.startswith("cuda"):
            job = self.train(self.write_text_job("refused", **settings), workers=[DEVICE]).done(harness.UNSUPPORTED)
            self.assertIn("Ampere and later", job.err)
            return
        for name, workers, more in (("alone", [DEVICE], {}), ("shards", TWICE, {"zero__level": 3}), ("stages", TWICE, {"mesh__stages": 2})):
            with self.subTest(name):
                _, exact = self.run_on(self.write_text_job(f"exact-{name}", train__dtype="float32"), [CPU])
                _, report = self.run_on(self.write_text_job(name, **settings, **more), workers)
                self.assertEqual({worker["precision"] for worker in report["workers"]}, {"tf32"})
                self.assertAlmostEqual(report["test_perplexity"] / exact["test_perplexity"], 1, delta=0.01)

    def test_channels_last(self):
        self.assert_each_learns_the_same(self.write_exact_job, [
            ([DEVICE], {"train__memory_format": "channels_last"}), (MIXED, {"train__memory_format": "auto"}),
            (TWICE, {"train__memory_format": "channels_last", "zero__level": 3}),
            (TWICE, {"train__memory_format": "channels_last", "mesh__stages": 2})])

    def test_graphs(self):
        """Where the device has them; elsewhere they change nothing."""
        self.assert_each_learns_the_same(self.write_exact_job, [
            (workers, {"train__graphs": True}) for workers in ([DEVICE], MIXED, REVERSED, TWICE)])

    def test_halves_in_stages_and_shards(self):
        for number, settings in enumerate(({"mesh__stages": 2}, {"zero__level": 3}, {"mesh__tensor": 2})):
            for precision in ("bfloat16", "float16"):
                with self.subTest(settings=settings, precision=precision):
                    self.run_on(self.write_text_job(f"{precision}{number}", train__dtype="float32", train__precision=precision,
                                                    train__steps=8, **settings), [DEVICE, DEVICE])


class Faults(OnDevice):
    image_side = 56

    def test_a_lack_of_memory_makes_smaller_pieces(self):
        """Somebody else has all but 3 GiB of the card."""
        if not DEVICE.startswith("cuda"):
            self.skipTest("only CUDA tells how much is free, and refuses what is not")
        import torch
        harness.write_dataset(self.folder / "many", train=20_000, side=self.image_side)
        taken = torch.empty(torch.cuda.mem_get_info(DEVICE)[0] - (3 << 30), dtype=torch.uint8, device=DEVICE)
        job, report = self.run_on(self.write_job(model__name="cnn", train__dtype="float32", train__global_batch=20000, train__steps=2,
                                                 train__micro_batch=10000, parallel__balance=[9, 1], train__check_memory="off",
                                                 train__evaluate=False, checkpoint__dir="", data__path=str(self.folder / "many")), MIXED)
        del taken
        torch.cuda.empty_cache()
        self.assertIn("note: rank 0 ran out of memory on", job.out)
        self.assertEqual(sum(worker["samples"] for worker in report["workers"]), 2 * 20000)

    def test_a_killed_worker_is_named_and_a_cpu_goes_on(self):
        for settings in ({}, {"mesh__stages": 2}, {"zero__level": 3}):
            with self.subTest(settings):
                shutil.rmtree(self.checkpoints, ignore_errors=True)
                job = self.train(self.write_job(**{"train__steps": 1_000_000, "checkpoint__every_steps": 20, **settings}), workers=MIXED)
                self.wait_for_a_told_checkpoint(job)
                os.kill(self.ranks_of(job)[0], signal.SIGKILL)
                self.assert_one_message(job, harness.PEER_LOST, "rank 0", DEVICE.split(":")[0], "signal 9", "--resume")
                self.assert_nothing_left()
                self.assert_can_resume(self.write_job(), workers=(CPU,))


class Devices(OnDevice):
    def test_it_is_found_and_measured(self):
        found = json.loads(self.start("devices", "--json").wait().out)
        print(json.dumps(found))
        self.assertTrue([one for one in found["devices"] if DEVICE.split(":")[0] in one["device"]], found)

    def test_a_plan_counts_with_it(self):
        plan = self.start("plan", "--details", self.write_text_job("plan"), "--worker", DEVICE, "--worker", CPU).done()
        self.assertIn(DEVICE.split(":")[0], plan.out)


if __name__ == "__main__":
    if not DEVICE:
        print("skipped: BIMETAL_DEVICE names no device, as cuda:0")
        sys.exit(77)
    harness.main()
