"""The examples run, and the balanced one differs from the plain one by the lines that docs/python.md shows."""

import difflib
import importlib.util
import pathlib
import re
import signal
import sys
import unittest

import ranks

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "python"


# Threads of torch's own Gloo backend sometimes outlive it when the process group is destroyed.
GLOO_AT_ITS_END = "terminate called without an active exception"


def run(script, *arguments, count=2, timeout=240, without=()):
    command = [sys.executable, str(EXAMPLES / script), *map(str, arguments)]
    if without:
        command = ["env", *(f"--unset={name}" for name in without), *command]
    with ranks.Job(count, [command] * count) as job:
        statuses = job.wait(timeout)
        on_gloo = '"gloo"' in (EXAMPLES / script).read_text() and GLOO_AT_ITS_END in job.text()
        if any(statuses) and not (on_gloo and set(statuses) <= {0, -signal.SIGABRT}):
            raise AssertionError(f"exit statuses {statuses}\n{job.text()}")
        return job.output(0)


def installed(package):
    return importlib.util.find_spec(package) is not None


class Examples(unittest.TestCase):
    def test_plain_and_balanced_ddp(self):
        for script in ("ddp_plain.py", "ddp_balanced.py"):
            with self.subTest(script):
                self.assertIn("epoch 1: loss", run(script, "--samples", 2000, "--epochs", 2))

    def test_horovod_for_torch(self):
        for more in ((), ("--fp16-allreduce",)):
            with self.subTest(more):
                output = run("horovod_torch.py", "--samples", 4000, "--epochs", 2, *more)
                first, last = (float(loss) for loss in re.findall(r"loss ([0-9.]+) over 2 ranks", output))
                self.assertLess(last, first)

    @unittest.skipUnless(installed("accelerate"), "accelerate is not installed")
    def test_accelerate(self):
        self.assertRegex(run("accelerate_balanced.py", "--samples", 2000, "--epochs", 2, "--cpu"),
                         r"epoch 1: loss [0-9.]+, shares \[\d+, \d+\]")

    @unittest.skipUnless(installed("transformers") and installed("accelerate"),
                         "transformers or accelerate is not installed")
    def test_trainer_of_hugging_face(self):
        self.assertRegex(run("trainer_balanced.py", "--samples", 200, "--epochs", 1, "--cpu"),
                         r"loss [0-9.]+, tokens of each rank in a batch \[\d+, \d+\]")

    @unittest.skipUnless(installed("lightning"), "lightning is not installed")
    def test_lightning(self):
        # It starts the second rank itself.
        output = run("lightning_balanced.py", "--samples", 2000, "--epochs", 2, "--devices", 2, count=1,
                     without=["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])
        self.assertRegex(output, r"epoch 1: loss [0-9.]+, shares \[\d+, \d+\]")

    def test_the_diff_is_the_documented_one(self):
        plain, balanced = ((EXAMPLES / name).read_text().splitlines() for name in ("ddp_plain.py", "ddp_balanced.py"))
        changed = [line for line in difflib.unified_diff(plain, balanced, lineterm="", n=0)
                   if line[0] in "+-" and line[:3] not in ("+++", "---")]
        self.assertEqual(len([line for line in changed if line[0] == "+"]), 5)
        documented = (ROOT / "docs" / "python.md").read_text()
        for line in changed:
            self.assertIn(line, documented)


if __name__ == "__main__":
    ranks.main(globals())
