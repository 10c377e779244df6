"""Two versions of Bimetal in one job, and ranks that are missing or there twice."""

import re

from launches import BIMETAL, OTHER_VERSION, LaunchTest, free_port, harness


class Versions(LaunchTest):
    def rank(self, number, port, *arguments, program=None, world_size=2, job_file=None):
        environment = {"RANK": str(number), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(number),
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return self.start("train", job_file or self.job_file, *["--worker", "cpu:threads=1"] * 3,
                          "--join-timeout", 60, *arguments, program=[program] if program else None,
                          environment=environment)

    def setUp(self):
        super().setUp()
        self.job_file = self.write_job(train__steps=10)

    def test_the_other_program_says_so(self):
        self.assertNotEqual(self.version_of(BIMETAL), self.version_of(OTHER_VERSION))

    def version_of(self, program):
        return self.start("--version", program=[program]).wait().out

    def test_joining_a_job_of_another_version(self):
        host = self.train(self.job_file, "--listen", "127.0.0.1:0", "--world-size", 2, "--join-timeout", 10,
                          workers=("cpu:threads=1",))
        host.wait_for_output("bimetal join")
        address = re.search(r"bimetal join (\S+)", host.out)[1]
        guest = self.start("join", address, "--worker", "cpu:threads=1", program=[OTHER_VERSION]).wait()
        self.assert_one_message(guest, harness.PROTOCOL_MISMATCH, "0.0.9", address, "install the same version")
        host.interrupt()
        host.wait()

    def test_ranks_of_two_versions(self):
        port = free_port()
        ranks = [self.rank(0, port), self.rank(1, port, program=OTHER_VERSION)]
        for rank in ranks:
            self.assert_one_message(rank, harness.PROTOCOL_MISMATCH, "rank 0", "rank 1", "0.0.9",
                                    "install the same version")

    def test_two_processes_that_are_the_same_rank(self):
        port = free_port()
        ranks = [self.rank(number, port, world_size=3) for number in (0, 1, 1)]
        for rank in ranks:
            self.assert_one_message(rank, harness.INVALID_ARGUMENT, "two processes claim rank 1",
                                    f"process {ranks[1].pid}", f"process {ranks[2].pid}")


if __name__ == "__main__":
    harness.main()
