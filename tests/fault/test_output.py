"""Output that nobody reads: the job goes on."""

import os
import subprocess

import harness
from harness import BIMETAL, FaultTest


class Output(FaultTest):
    def test_a_closed_pipe_does_not_end_the_job(self):
        job_file = self.write_job(train__steps=60)
        read_end, write_end = os.pipe()
        os.close(read_end)
        process = subprocess.Popen(
            [BIMETAL, "train", str(job_file), "--worker", "cpu:threads=1", "--worker",
             "cpu:threads=1"], stdout=write_end, stderr=write_end, env=self.environment)
        os.close(write_end)
        self.assertEqual(process.wait(harness.PATIENCE_S), 0)
        self.assertEqual(self.saved_steps()[-1], 60)
        self.assert_nothing_left()


if __name__ == "__main__":
    harness.main()
