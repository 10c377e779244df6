"""`bimetal devices` and `bimetal plan`: what they print, and how they end when something is wrong."""

import json
import pathlib
import re
import xml.etree.ElementTree

import harness
from harness import FaultTest, TwoMachines
from text_job import TextJob

CLUSTERS = pathlib.Path(__file__).parents[2] / "examples" / "clusters"
FAST_AND_SLOW = ["--worker", "cpu:threads=1", "--worker", "cpu:threads=1,speed=0.1"]


class Devices(FaultTest):
    def test_json_has_sane_figures(self):
        job = self.start("devices", "--json").done()
        self.assertEqual(job.err, "", "progress is for terminals")
        cpu = json.loads(job.out)["devices"][0]
        self.assertEqual(cpu["device"], "cpu")
        self.assertGreaterEqual(cpu["cores"], 1)
        self.assertGreater(cpu["memory_bytes"], cpu["memory_free_bytes"])
        for figure in ("matmul_float32_gflops", "convolution_float32_gflops", "memory_bytes_per_s"):
            self.assertGreater(cpu[figure], 0, figure)
        self.assertIsNone(cpu["to_device_bytes_per_s"])


class Plan(FaultTest):
    def plan(self, *arguments, **settings):
        return self.start("plan", self.write_job(**settings), *arguments).wait()

    def test_two_workers(self):
        job = self.plan(*FAST_AND_SLOW, "--json")
        self.assertEqual(job.status, 0, job.err)
        plan = json.loads(job.out)
        self.assertEqual([w["worker"] for w in plan["workers"]], FAST_AND_SLOW[1::2])
        self.assertEqual([p["way"] for p in plan["predictions"]],
                         ["alone", "alone", "equal", "balanced", "servers"])
        for prediction in plan["predictions"]:
            self.assertEqual(sum(prediction["shares"]), 64)
            self.assertGreater(prediction["samples_per_s"], 0)
        self.assertGreater(plan["link"]["bytes_per_s"], 0)
        sent = {p["way"]: p["sent_bytes"] for p in plan["predictions"]}
        # Two workers: a ring sends each gradient once from each of them, servers likewise.
        self.assertEqual(sent, {"alone": 0, "equal": plan["gradient_bytes"], "balanced": plan["gradient_bytes"],
                                "servers": plan["gradient_bytes"]})
        self.assertEqual(plan["predictions"][4]["server_bytes"], 2 * plan["gradient_bytes"])
        fast, slow = plan["predictions"][:2]
        self.assertGreater(fast["samples_per_s"], slow["samples_per_s"])
        self.assertTrue(plan["advice"])
        self.assertFalse(self.checkpoints.exists(), "a plan trains nothing")

    def test_one_worker_has_nothing_to_share(self):
        job = self.plan("--worker", "cpu:threads=1")
        self.assertEqual(job.status, 0, job.err)
        self.assertIn("there is nothing to share", job.out.splitlines()[0], "the verdict comes first")
        self.assertIn("images/s", job.out)
        self.assertNotIn("GFLOP/s", job.out)
        self.assertIn("GFLOP/s", self.plan("--worker", "cpu:threads=1", "--details").out)

    def test_a_missing_device_is_named_with_those_there_are(self):
        job = self.plan("--worker", "cpu:threads=1", "--worker", "xpu:99")
        unsupported = 3
        self.assert_one_message(job, unsupported, 'worker "xpu:99"', "there is: cpu")

    def test_ctrl_c_leaves_nothing(self):
        job = self.start("plan", self.write_job(), *FAST_AND_SLOW)
        harness.wait_until(lambda: len(self.processes()) >= 3, "the ranks", job)
        job.end()
        self.assertNotIn("checkpoint", job.err)


class SeveralMachines(TwoMachines):
    def plan(self, *arguments):
        host = self.start("plan", self.write_job(), "--listen", "127.0.0.1:0", "--world-size", 2, "--token-file", self.token,
                          *FAST_AND_SLOW[:2], *arguments)
        host.wait_for_output("bimetal join")
        host.address = re.search(r"bimetal join (\S+)", host.err)[1]
        return host, self.join(host, workers=FAST_AND_SLOW[3:])

    def test_two_machines_plan_together(self):
        host, guest = self.plan("--json")
        for job in (host, guest):
            self.assertEqual(job.wait().status, 0, f"{job.out}\n{job.err}")
        plan = json.loads(host.out)
        self.assertEqual([w["worker"] for w in plan["workers"]], FAST_AND_SLOW[1::2])
        self.assertGreater(plan["link"]["bytes_per_s"], 0)
        self.assertIn("as rank 1 of 2; the plan is shown there", guest.out)
        self.assertFalse(self.checkpoints.exists(), "a plan trains nothing")
        self.assert_nothing_left()

    def test_ctrl_c_on_one_ends_both(self):
        host, guest = self.plan()
        guest.wait_for_output("as rank 1 of 2")
        harness.wait_until(lambda: self.ranks_of(host) and self.ranks_of(guest), "the ranks", host)
        guest.interrupt()
        self.assertEqual(guest.wait().status, harness.INTERRUPTED, guest.err)
        aborted = 6
        self.assert_one_message(host, aborted, "stopped by Ctrl-C there")
        self.assert_nothing_left()

    def test_options_of_the_host_go_together(self):
        for arguments, part in ((("--listen", "127.0.0.1:0"), "--listen needs --world-size"),
                                (("--token-file", self.token), "goes with --listen")):
            self.assert_one_message(self.start("plan", self.write_job(), *arguments), harness.INVALID_ARGUMENT, part)


class Memory(FaultTest):
    LARGE = {"model__name": "mlp", "model__hidden": 4000, "train__optimizer": "adam", "train__evaluate": False}

    def test_what_cannot_fit_is_refused_before_training(self):
        job = self.train(self.write_job(**self.LARGE), workers=("cpu:threads=1,memory=260MB", "cpu:threads=1")).wait()
        self.assertNotEqual(job.status, 0)
        for part in ("this does not fit: rank 0 (cpu:threads=1,memory=260MB) lacks", "The cheapest that fits: zero.level=",
                     "train.check_memory"):
            self.assertIn(part, job.err)
        self.assertNotIn("step 1", job.out)

    def test_the_plan_says_what_fits_and_the_report_what_it_was(self):
        job = self.write_job(**self.LARGE, train__steps=3, zero__level=2, zero__shards=[2, 1])
        plan = json.loads(self.start("plan", job, "--worker", "cpu:threads=1", "--worker", "cpu:threads=1,memory=2GB",
                                     "--json").wait().out)
        ways = plan["memory"]["ways"]
        self.assertTrue(ways[0]["asked"] and ways[0]["fits"])
        self.assertEqual({way["level"] for way in ways}, {0, 1, 2, 3})
        self.assertTrue(plan["mesh"]["best"])
        # At level 0 `bimetal train` sees no need for a plan of so small a model; what its ranks map of each other's
        # buckets is not theirs.
        of_level_0 = next(way for way in ways if way["level"] == 0 and way["recomputed_at_once"] == 0)
        for level in range(4):
            for worker in self.reported(job, "--set", f"zero.level={level}", workers=("cpu:threads=1",) * 2)["workers"]:
                memory = worker["memory"]
                planned = memory["planned_bytes"] or of_level_0["uses"][worker["rank"]]["peak"]
                self.assertLess(abs(planned / memory["peak_bytes"] - 1), 0.2, f"level {level}: {planned}, {memory}")


class Simulated(FaultTest):
    def test_clusters_that_are_not_there(self):
        for cluster in sorted(CLUSTERS.glob("*.toml")):
            with self.subTest(cluster.name):
                picture = self.folder / "step.svg"
                job = self.start("plan", "--simulate", cluster, "--json", "--timeline", picture).done()
                best = json.loads(job.out)["mesh"]["best"][0]
                self.assertEqual(best["scheme"], "pipeline")
                self.assertEqual(best["missing_bytes"], 0)
                xml.etree.ElementTree.parse(picture)


class JobsOfOtherDevices(TextJob):
    def test_a_mesh_of_others_is_no_matter(self):
        """One worker measures for devices that are not there; what goes with the job's mesh alone is no mistake either."""
        described = self.folder / "cluster.toml"
        described.write_text('[[host]]\ncount = 2\n[[host.device]]\ncount = 2\nteraflops = 1\nmemory = "2GiB"\n')
        stages = {"mesh__stages": 2}
        for settings in ({**stages, "mesh__tensor": 2, "mesh__sequence_parallel": True},
                         {**stages, "compression__activations": "int8"},
                         {**stages, "mesh__replicas": 2, "zero__level": 1, "zero__shards": [2, 1]},
                         {"zero__level": 1, "zero__shards": [2, 1]}):
            with self.subTest(**settings):
                job = self.start("plan", self.write_text_job("plan", **settings), "--worker", "cpu:threads=1", "--simulate", described,
                                 "--json").done()
                meshes = json.loads(job.out)["mesh"]
                self.assertTrue(meshes["best"])
                self.assertIsNone(meshes["asked"])


if __name__ == "__main__":
    harness.main()
