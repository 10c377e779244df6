"""A container's /dev/shm of 64 MB, and a rank that gets no shared memory at all: jobs go on."""

import os
import resource
import subprocess
import sys

import harness
from harness import FaultTest

HERE = "BIMETAL_TEST_IN_CONTAINER"


class SmallSharedMemory(FaultTest):
    def test_a_container_of_64_mb(self):
        """As Docker gives it, and full: this test once more, where the folder is such a one."""
        if os.environ.get(HERE):
            with open("/dev/shm/full", "wb") as file, self.assertRaises(OSError):
                while True:
                    file.write(bytes(1 << 20))
                    file.flush()
            bench = self.start("bench", "allreduce", "--ranks", 2, "--min", "128mb", "--max", "128mb",
                               environment={"BIMETAL_TRANSPORT": "shm"}).done()
            self.assertIn("128 MiB", bench.out)
            job = self.train(self.write_job(train__epochs=2, fabric__transport="shm")).done()
            self.assertEqual(job.err, "")
            return
        command = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm || exit 77; exec "$@"', "sh"]
        again = subprocess.run([*command, sys.executable, __file__, self.id().removeprefix("__main__.")], env=os.environ | {HERE: "1"},
                               capture_output=True, text=True, check=False)
        if again.returncode == 77 or "unshare failed" in again.stderr:
            self.skipTest("mounting is not allowed here")
        self.assertEqual(again.returncode, 0, again.stderr)

    def test_no_shared_memory_at_all(self):
        """By the limit of a file's size, which such memory has, too."""
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        job = self.train(self.write_job(train__epochs=2, checkpoint__dir=""), preexec_fn=limit).done()
        self.assertIn("no shared memory on this rank, which exchanges by TCP then: ", job.err)
        self.assertIn("trained 32 steps", job.out)


if __name__ == "__main__":
    harness.main()
