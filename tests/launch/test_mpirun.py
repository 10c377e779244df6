"""`bimetal launch --mpi` under the mpirun of one family.

Usage: test_mpirun.py open_mpi|mpich. Skipped (77) where the family is not installed.
"""

import os
import pathlib
import re
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "mpi"))

import launchers  # noqa: E402
from launches import BIMETAL, SHOW, LaunchTest, harness  # noqa: E402

FAMILY = sys.argv.pop(1)
RECOVERY = ["--enable-recovery"] if FAMILY == "open_mpi" else []


class Mpirun(LaunchTest):
    def setUp(self):
        super().setUp()
        self.environment = launchers.environment(**self.environment)

    def mpirun(self, ranks, *command, options=()):
        return self.start(program=launchers.command(FAMILY, ranks, [*options, *map(str, command)]))

    def test_any_command_becomes_a_rank(self):
        job = self.mpirun(3, BIMETAL, "launch", "--mpi", "--", "sh", "-c", SHOW).done()
        ports = set(re.findall(r" at 127\.0\.0\.1:(\d+)", job.out))
        self.assertEqual(len(ports), 1, job.out)
        for rank in range(3):
            self.assertIn(f"rank {rank}/3 local {rank}/3 node 0 at ", job.out)

    def test_all_ranks_get_one_token(self):
        job = self.mpirun(2, BIMETAL, "launch", "--mpi", "--", "sh", "-c",
                          "echo ${#BIMETAL_TOKEN} $(echo $BIMETAL_TOKEN | cksum)").done()
        lines = job.out.split("\n")
        self.assertEqual(lines[0], lines[1])
        self.assertTrue(lines[0].startswith("64 "), job.out)

    def test_train_over_tcp(self):
        report = self.folder / "report.json"
        self.mpirun(2, BIMETAL, "launch", "--mpi", "--", BIMETAL, "train", self.write_job(train__steps=20),
                    "--worker", "cpu:threads=1", "--worker", "cpu:threads=1", "--report", report).done()
        self.assertIn('"world_size": 2', report.read_text())

    def test_a_lost_rank_ends_all(self):
        job = self.mpirun(2, BIMETAL, "launch", "--mpi", "--", BIMETAL, "train", self.write_job(), "--worker",
                          "cpu:threads=1", "--worker", "cpu:threads=1")
        self.wait_for_checkpoint(job)
        os.kill(self.ranks()[1], signal.SIGKILL)
        self.assertNotEqual(job.wait().status, 0)

    def test_an_elastic_job_goes_on(self):
        job_file = self.write_job(train__steps=1000, train__global_batch=16)
        train = (BIMETAL, "train", job_file, *(["--worker", "cpu:threads=1"] * 3))
        job = self.mpirun(3, BIMETAL, "launch", "--mpi", "--elastic", "--", *train, options=RECOVERY)
        self.wait_for_checkpoint(job)
        os.kill(self.ranks()[0], signal.SIGKILL)
        job.wait_for_output("2 workers go on")
        job.wait()
        self.assertEqual(self.saved_steps()[-1], 1000, f"{job.out}\n{job.err}")

    def test_mpi_itself_is_not_elastic(self):
        job = self.mpirun(2, BIMETAL, "train", self.write_job(elastic__min_workers=1), *(["--worker", "cpu:threads=1"] * 2)).wait()
        self.assertNotEqual(job.status, 0)
        self.assertIn("bimetal launch --mpi --elastic -- bimetal train", job.err)

    if FAMILY == "open_mpi":  # MPICH lets programs that do not use MPI go on when one of them fails
        def test_a_failing_rank_ends_all(self):
            job = self.mpirun(2, BIMETAL, "launch", "--mpi", "--", "sh", "-c", "[ $RANK = 1 ] && exit 9; sleep 600")
            self.assertNotEqual(job.wait().status, 0)
            self.wait_until_nothing_is_left()

    def test_the_launcher_itself_under_mpirun_starts_ranks_of_its_own(self):
        job = self.mpirun(1, BIMETAL, "launch", "-n", "2", "--", "sh", "-c", SHOW).done()
        self.assertIn("[1] rank 1/2", job.out)


if __name__ == "__main__":
    launchers.find(FAMILY)
    harness.main()
