"""Jobs under a real Slurm of two nodes: srun, sbatch, scancel."""

import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import unittest

import slurm_cluster
from launches import BIMETAL, SHOW, LaunchTest, harness, wait_until

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "tests" / "python"))

import programs  # noqa: E402


class Slurm(LaunchTest):
    @classmethod
    def setUpClass(cls):
        cls.place = pathlib.Path(tempfile.mkdtemp(prefix="bimetal-slurm-"))
        cls.addClassCleanup(shutil.rmtree, cls.place, ignore_errors=True)
        cls.cluster = slurm_cluster.SlurmCluster(cls.place / "cluster")
        cls.addClassCleanup(cls.cluster.stop)

    def setUp(self):
        super().setUp()
        self.environment.update(self.cluster.variables)
        self.token = self.folder / "token"
        self.start("token", self.token).done()

    def srun(self, *words, **options):
        return self.start(program=self.cluster.command("srun", *words), *(), **options)

    def train(self, job_file, *arguments):
        return [BIMETAL, "train", job_file, "--worker", "cpu:threads=1", "--worker", "cpu:threads=1", *arguments]

    def assert_trained(self, report, world_size, steps):
        figures = json.loads(report.read_text())
        self.assertEqual(figures["world_size"], world_size)
        self.assertEqual(sum(worker["samples"] for worker in figures["workers"]), steps * 64)

    def test_train_on_one_node_needs_no_token(self):
        report = self.folder / "report.json"
        self.srun("-N1", "-n2", *self.train(self.write_job(train__steps=30), "--report", report)).done()
        self.assert_trained(report, 2, 30)

    def test_train_on_two_nodes_with_a_token_file(self):
        report = self.folder / "report.json"
        self.srun("-N2", "-n3", *self.train(self.write_job(train__steps=30), "--report", report),
                  environment={"BIMETAL_TOKEN_FILE": str(self.token)}).done()
        self.assert_trained(report, 3, 30)

    def test_two_nodes_without_a_token_are_told_so(self):
        job = self.srun("-N2", "-n2", *self.train(self.write_job(train__steps=30))).wait()
        self.assertNotEqual(job.status, 0)
        self.assertIn("BIMETAL_TOKEN_FILE", job.err)
        self.assertIn("bm1", job.err)

    def test_one_task_is_no_rank(self):
        """It starts workers of its own, as outside Slurm."""
        self.srun("-n1", *self.train(self.write_job(train__steps=20))).done()

    def test_any_command_by_launch_slurm(self):
        job = self.srun("-N2", "-n3", BIMETAL, "launch", "--slurm", "--", "sh", "-c", SHOW).done()
        port = job.out.strip().rsplit(":", 1)[1]
        self.assertEqual(sorted(job.out.split("\n"))[1:], [
            f"rank 0/3 local 0/2 node 0 at bm1:{port}", f"rank 1/3 local 1/2 node 0 at bm1:{port}",
            f"rank 2/3 local 0/1 node 1 at bm1:{port}"])

    def test_a_failing_rank_ends_the_step(self):
        job = self.srun("-N2", "-n3", "--kill-on-bad-exit=1", BIMETAL, "launch", "--slurm", "--", "sh", "-c",
                        "[ $RANK = 2 ] && { sleep 2; exit 9; }; sleep 600").wait()  # once the others run, too
        self.assertNotEqual(job.status, 0)
        self.assertIn("task 2: Exited with exit code 9", job.err)

    def test_a_killed_rank_is_named_by_the_other(self):
        job = self.srun("-N2", "-n2", "--kill-on-bad-exit=0", *self.train(self.write_job()),
                        environment={"BIMETAL_TOKEN_FILE": str(self.token)})
        self.wait_for_checkpoint(job)
        os.kill(next(p for p in self.processes() if harness.variable_of(p, "SLURM_PROCID") == "1"), signal.SIGKILL)
        job.wait()
        self.assertNotEqual(job.status, 0)
        self.assertRegex(job.err, r"bimetal: error: .*rank 1")

    def test_an_elastic_job_goes_on_without_lost_tasks(self):
        """One is killed, the first; one is told to leave; one is left."""
        report = self.folder / "report.json"
        steps = {"train__steps": 1000, "train__global_batch": 16, "elastic__min_workers": 1}
        job = self.srun("-N2", "-n3", "--no-kill", "--kill-on-bad-exit=0",
                        *self.train(self.write_job(**steps), "--report", report, "--worker", "cpu:threads=1"),
                        environment={"BIMETAL_TOKEN_FILE": str(self.token)})
        self.wait_for_checkpoint(job)
        tasks = {harness.variable_of(pid, "SLURM_PROCID"): pid for pid in self.processes()}
        os.kill(tasks["0"], signal.SIGKILL)
        job.wait_for_output("2 workers go on")
        os.kill(tasks["2"], signal.SIGTERM)
        job.wait_for_output("1 worker goes on")
        self.assertNotEqual(job.wait().status, 0)  # srun's is the highest of its tasks
        figures = json.loads(report.read_text())
        self.assertEqual(sum(worker["samples"] for worker in figures["workers"]), 1000 * 16)

    def test_the_sbatch_file_of_the_examples(self):
        """Trains, and goes on from the checkpoint when it is submitted again."""
        job_file = self.write_job(train__steps=20)
        first = self.sbatch(job_file)
        self.assertIn("step", first)
        self.assertEqual(self.saved_steps()[-1], 20)
        job_file = self.write_job(train__steps=40)
        self.sbatch(job_file)
        self.assertEqual(self.saved_steps()[-1], 40)
        self.assertEqual(list(self.folder.glob(".bimetal-*")), [], "tokens are left")

    def sbatch(self, job_file):
        script = REPOSITORY / "examples" / "slurm" / "bimetal.sbatch"
        output = self.folder / "slurm.out"
        output.unlink(missing_ok=True)
        job = self.submit("--wait", "-N2", "--ntasks-per-node=1", "-o", output, script, job_file, "--worker",
                          "cpu:threads=1").wait()
        self.assertEqual(job.status, 0, output.read_text() if output.exists() else job.err)
        return output.read_text()

    def submit(self, *words, environment=None, folder=None):
        return self.start(program=self.cluster.command("sbatch", *words), folder=folder, environment={
            "PATH": f"{pathlib.Path(BIMETAL).parent}:{os.environ['PATH']}", "HOME": str(self.folder),
            "CHECKPOINTS": str(self.checkpoints), **(environment or {})})

    @unittest.skipUnless("TEXTBOOK_PYTHON" in os.environ, "TEXTBOOK_PYTHON is no Python that has the package")
    def test_the_textbooks_resnet(self):
        output = self.folder / "slurm.out"
        packages = self.folder / "packages"
        packages.mkdir()
        path = [pathlib.Path(BIMETAL).parent, pathlib.Path(os.environ["TEXTBOOK_PYTHON"]).parent, os.environ["PATH"]]
        job = self.submit(
            "--wait", "-o", output, "examples/textbook/resnet.sbatch", "--samples", 256, "--batch-size", 32, "--width", 4,
            "--epochs", 1, "--checkpoint", self.folder / "resnet18.pt", folder=REPOSITORY, environment={
                "BIMETAL_TOKEN_FILE": str(self.token), "PATH": os.pathsep.join(map(str, path)),
                "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),
                "PYTHONPATH": os.pathsep.join([programs.install_entry_point(packages), os.environ["PYTHONPATH"]])}).wait()
        self.assertEqual(job.status, 0, output.read_text() if output.exists() else job.err)
        self.assertRegex(output.read_text(), r"epoch 0: loss [0-9.]+, next rate 0\.0000\n(?s:.*)accuracy [0-9.]+")
        self.assertTrue((self.folder / "resnet18.pt").exists())

    def test_scancel_saves_a_checkpoint(self):
        job_file = self.write_job(checkpoint__every_steps=0)
        output = self.folder / "slurm.out"
        script = REPOSITORY / "examples" / "slurm" / "bimetal.sbatch"
        job = self.submit("--parsable", "-N1", "--ntasks-per-node=2", "-o", output, script, job_file, "--worker",
                          "cpu:threads=1", "--worker", "cpu:threads=1").done()
        wait_until(lambda: output.exists() and "step " in output.read_text(), "progress", job)
        self.cluster.ask("scancel", "--signal=TERM", job.out.strip())
        wait_until(lambda: not self.processes(), "the end of the job", job)
        self.assertTrue(self.saved_steps(), output.read_text())


if __name__ == "__main__":
    if reason := slurm_cluster.why_not():
        print(f"skipped: {reason}")
        sys.exit(77)
    harness.main()
