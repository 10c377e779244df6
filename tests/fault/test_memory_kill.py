"""A container's memory runs out: the kernel kills a rank, which nobody can catch. Everybody says so and ends."""

import pathlib
import sys

import harness
from harness import TwoMachines

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

from memory_limit import MemoryLimit  # noqa: E402


class MemoryKill(TwoMachines):
    def test_the_rank_is_named_on_both_machines(self):
        # 6,400 hidden units: 5 M parameters in each of several copies, where torch alone fits.
        job_file = self.write_job(model__hidden=6400, train__check_memory="off", train__optimizer="adam",
                                  checkpoint__dir="")
        with MemoryLimit(LIMIT) as limit:
            host = self.host(job_file, "--no-elastic")
            joined = self.join(host, preexec_fn=limit.enter).wait()
            host.done(harness.PEER_LOST)
            self.assertRegex(joined.error(), r"rank 1 \(.*\) was killed by signal 9")
            self.assertIn("memory", joined.error())
            self.assert_one_message(host, harness.PEER_LOST, "rank 1")
            self.assert_nothing_left()


LIMIT = 130 << 20

if __name__ == "__main__":
    try:
        with MemoryLimit(1 << 30):
            pass
    except OSError as error:
        print(f"skipped: {error}")
        sys.exit(77)
    harness.main()
