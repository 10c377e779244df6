"""The programs of examples/textbook run with their one changed line, and what their page says of them is so."""

import pathlib
import re
import tempfile
import unittest

import programs
import ranks
from textbook_page import PAGE, TEXTBOOK, for_unequal_machines, original

TINY = ("--samples", 256, "--batch-size", 32, "--width", 4)


def numbers(pattern, output):
    return [float(found) for found in re.findall(pattern, output)]


class Textbook(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="bimetal-test-")))

    def test_process_group(self):
        """One process, which starts the ranks itself."""
        output = programs.run("textbook/process_group.py", "--ranks", 3, count=1, without=ranks.VARIABLES)
        for rank in range(3):
            self.assertIn(f"rank {rank}: sum 6, news [0.0, 1.0, 2.0], everyone [0, 1, 2], part {10 * rank}", output)
        self.assertIn("gathered [1, 11, 21], the token has been at 3 ranks", output)

    def resnet(self, script):
        """Losses of the epochs, and the accuracy."""
        output = programs.run(script, *TINY, "--epochs", 3, "--checkpoint", self.folder / "resnet18.pt")
        losses = numbers(r"epoch \d: loss ([0-9.]+)", output)
        accuracy, = numbers(r"accuracy ([0-9.]+)", output)
        self.assertEqual(len(losses), 3)
        self.assertLess(losses[-1], losses[0])
        self.assertIn("next rate 0.0000", output)
        return losses, accuracy

    def test_resnet_ddp(self):
        losses, accuracy = self.resnet("textbook/resnet_ddp.py")
        before = self.folder / "before.py"
        before.write_text(original((TEXTBOOK / "resnet_ddp.py").read_text()))
        on_gloo, its_accuracy = self.resnet(before)
        for ours, theirs in zip(losses, on_gloo, strict=True):
            self.assertAlmostEqual(ours, theirs, delta=2e-3)
        self.assertAlmostEqual(accuracy, its_accuracy, delta=0.02)

    def test_resnet_on_unequal_machines(self):
        changed = self.folder / "balanced.py"
        changed.write_text(for_unequal_machines((TEXTBOOK / "resnet_ddp.py").read_text()))
        self.resnet(changed)

    def test_resnet_checkpointed(self):
        """Computed again, blocks give the same and keep less."""
        found = []
        for more in ((), ("--plain",)):
            output = programs.run("textbook/resnet_checkpointed.py", *TINY, *more)
            found += [float(part) for part in re.search(r"loss ([0-9.]+), kept for backward ([0-9.]+)", output).groups()]
        loss, kept, plain_loss, plain_kept = found
        self.assertAlmostEqual(loss, plain_loss, delta=1e-4)
        self.assertLess(kept, plain_kept / 2)

    def test_accumulation_with_a_remainder(self):
        """Two ranks and one process that has as many samples in a batch: the same steps."""
        pattern = r"loss ([0-9.]+) in 3 steps of 10 batches"
        together = programs.run("textbook/accumulation.py", "--samples", 300, "--epochs", 2, "--batch-size", 16)
        alone = programs.run("textbook/accumulation.py", "--samples", 300, "--epochs", 2, "--batch-size", 32, count=1,
                             without=ranks.VARIABLES)
        losses = numbers(pattern, together)
        self.assertEqual(len(losses), 2, together)
        self.assertLess(losses[1], losses[0])
        for ours, theirs in zip(losses, numbers(pattern, alone), strict=True):
            self.assertAlmostEqual(ours, theirs, delta=2e-5)

    def test_amp(self):
        """A scale that is too large at first: all ranks skip the same steps, and learn from the others."""
        pattern = r"epoch \d: loss ([0-9.]+), (\d+) steps, (\d+) skipped, scale (\d+)"
        found = [re.findall(pattern, output) for output in programs.outputs(
            "textbook/amp.py", "--samples", 2000, "--epochs", 2, "--init-scale", 2**26)]
        self.assertEqual([epoch[1:] for epoch in found[0]], [epoch[1:] for epoch in found[1]])
        self.assertGreater(int(found[0][0][2]), 0)
        self.assertEqual(int(found[0][1][1]) + int(found[0][1][2]), 16)
        self.assertLess(float(found[0][1][0]), 1.5)

    def test_profiler(self):
        output = programs.run("textbook/profiler.py", "--batch-size", 8, "--width", 4, "--rows", 60)
        for row in ("forward", "backward", "optimizer", "aten::convolution", "all_reduce"):
            self.assertRegex(output, rf"\n\s*\S*{row}\S*  ", row)

    def test_horovod_for_torch(self):
        output = programs.run("textbook/horovod_torch.py", "--samples", 4000, "--epochs", 2, "--fp16-allreduce")
        first, last = numbers(r"loss ([0-9.]+) over 2 ranks", output)
        self.assertLess(last, first)
        self.assertGreater(numbers(r"accuracy ([0-9.]+)", output)[-1], 0.5)

    @ranks.needs("tensorflow")
    def test_horovod_for_tensorflow(self):
        output = programs.run("textbook/horovod_tensorflow.py", "--samples", 4000, "--steps", 62, "--lr", 0.002,
                              "--checkpoints", self.folder)
        losses = numbers(r"step \d+: loss ([0-9.]+)", output)
        self.assertEqual(len(losses), 4)
        self.assertLess(losses[-1], losses[0])
        one, other = re.search(r"on each rank: \[(.*), (.*)\]", output).groups()
        self.assertEqual(one, other)
        self.assertTrue((self.folder / "checkpoint-1.index").exists())


class Page(unittest.TestCase):
    def test_one_line_is_changed_in_each(self):
        for path in sorted(TEXTBOOK.glob("*.py")):
            if path.name in ("images.py", "resnet.py"):
                continue
            text = path.read_text()
            self.assertEqual(len(re.findall(r"  # was: ", text)), 1, path)
            self.assertIn(f"]({path.name})", PAGE)
            self.assertNotIn("bimetal", original(text).split('"""', 2)[2], path)


if __name__ == "__main__":
    ranks.main(globals())
