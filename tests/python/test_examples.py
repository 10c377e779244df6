"""The examples run, and the balanced one differs from the plain one by the lines that docs/python.md shows."""

import difflib
import pathlib
import re
import sys
import tempfile
import unittest

import ranks
from programs import EXAMPLES, ROOT, outputs, run

sys.path.append(str(ROOT / "tests" / "install"))
import readme  # noqa: E402


class Examples(unittest.TestCase):
    def test_plain_and_balanced_ddp(self):
        for script in ("ddp_plain.py", "ddp_balanced.py", "ddp_elastic.py"):
            with self.subTest(script):
                self.assertIn("epoch 1: loss", run(f"python/{script}", "--samples", 2000, "--epochs", 2))

    def test_the_readme_shows_a_loop_that_runs(self):
        for program in readme.programs():
            with tempfile.TemporaryDirectory() as folder:
                script = pathlib.Path(folder, "shown.py")
                script.write_text(program)
                self.assertIn(readme.BATCHES, run(script))

    @ranks.needs("accelerate")
    def test_accelerate(self):
        self.assertRegex(run("python/accelerate_balanced.py", "--samples", 2000, "--epochs", 2, "--cpu"),
                         r"epoch 1: loss [0-9.]+, shares \[\d+, \d+\]")

    @ranks.needs("transformers", "accelerate")
    def test_trainer_of_hugging_face(self):
        self.assertRegex(run("python/trainer_balanced.py", "--samples", 200, "--epochs", 1, "--cpu"),
                         r"loss [0-9.]+, tokens of each rank in a batch \[\d+, \d+\]")

    @ranks.needs("transformers", "peft")
    def test_lora(self):
        with tempfile.TemporaryDirectory() as folder:
            said = [re.search(r"rank (\d): loss on what was held out ([0-9.]+), tokens of each rank in a batch \[\d+, \d+\]", text)
                    for text in outputs("python/lora.py", "--cpu", "--epochs", 2, "--out", folder)]
            self.assertEqual([match[1] for match in said], ["0", "1"])
            self.assertEqual(said[0][2], said[1][2])
            self.assertLess(float(said[0][2]), 5.5)  # untrained, of 258 tokens: 5.55
            self.assertTrue(pathlib.Path(folder, "adapter_model.safetensors").exists())

    @ranks.needs("transformers")
    def test_stages(self):
        printed = outputs("python/pipeline_gpt2.py", "--epochs", 2)
        stages = [re.search(r"stage (\d) of 2: units \d", text)[1] for text in printed]
        self.assertEqual(stages, ["0", "1"])
        losses = [re.findall(r"epoch \d, loss ([0-9.]+)", text) for text in printed]
        self.assertEqual(losses[0], losses[1])
        self.assertLess(float(losses[0][1]), float(losses[0][0]))

    @ranks.needs("transformers")
    def test_tensors_in_parts(self):
        printed = outputs("python/tensor_parts.py", "--epochs", 2, "--weights", 3, 1)
        here = [int(re.search(r"part \d of 2: (\d+) of \d+ parameters", text)[1]) for text in printed]
        self.assertGreater(here[0], here[1])
        losses = [re.findall(r"epoch \d, loss ([0-9.]+)", text) for text in printed]
        self.assertEqual(losses[0], losses[1])
        self.assertLess(float(losses[0][1]), float(losses[0][0]))

    @ranks.needs("lightning")
    def test_lightning(self):
        # It starts the second rank itself.
        output = run("python/lightning_balanced.py", "--samples", 2000, "--epochs", 2, "--devices", 2, count=1,
                     without=["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])
        self.assertRegex(output, r"epoch 1: loss [0-9.]+, shares \[\d+, \d+\]")

    def test_the_diff_is_the_documented_one(self):
        plain, balanced = ((EXAMPLES / "python" / name).read_text().splitlines() for name in ("ddp_plain.py", "ddp_balanced.py"))
        changed = [line for line in difflib.unified_diff(plain, balanced, lineterm="", n=0)
                   if line[0] in "+-" and line[:3] not in ("+++", "---")]
        self.assertEqual(len([line for line in changed if line[0] == "+"]), 5)
        documented = (ROOT / "docs" / "python.md").read_text()
        for line in changed:
            self.assertIn(line, documented)


if __name__ == "__main__":
    ranks.main(globals())
