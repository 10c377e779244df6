"""Shared by the tests of `bimetal tune` and `bimetal ensemble`: real commands on a small job, and the files that they
leave."""

import contextlib
import io
import json
import os
import pathlib
import sys
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "fault"))

import harness  # noqa: E402

TWO_WORKERS = ["--worker", "cpu:threads=1", "--worker", "cpu:threads=1"]


class SearchTest(harness.FaultTest):
    """A job of some steps; commands run by this Python, in a folder of their own."""

    def setUp(self):
        super().setUp()
        self.environment.update(BIMETAL_PYTHON=sys.executable, PYTHONPATH=os.environ["PYTHONPATH"])
        self.job = self.write_job(train__steps=12, train__epochs=9, train__global_batch=64, train__learning_rate=0.05,
                                  train__dtype="float64", train__evaluate=True, checkpoint__dir="", data__name="mnist")

    def run_to_end(self, *arguments, status=0, **options):
        return self.start(*arguments, **options).done(status)

    def report_of(self, *arguments, status=0):
        """Runs a command to its end; what it has reported."""
        job = self.run_to_end(*arguments, "--report", "report.json", status=status)
        return job, json.loads((self.folder / "report.json").read_text())

    def refused_by(self, main, *arguments, status=harness.INVALID_ARGUMENT):
        """The message of a command that begins nothing; in this process, since starting Python for each takes
        minutes."""
        out, err = io.StringIO(), io.StringIO()
        with mock.patch.object(sys, "argv", ["bimetal", *map(str, arguments)]), \
                mock.patch.dict(os.environ, BIMETAL_PROGRAM=harness.BIMETAL), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            self.assertEqual(main(), status, err.getvalue())
        self.assertEqual(out.getvalue(), "", "something was begun")
        return err.getvalue()

    def trained(self, *settings):
        """Straight through, by one worker: the report, and the folder of its checkpoints."""
        place = self.folder / "straight"
        words = [word for setting in (f"checkpoint.dir={place}", *settings) for word in ("--set", setting)]
        self.run_to_end("train", self.job, "--worker", "cpu:threads=1", *words, "--report", "straight.json")
        return json.loads((self.folder / "straight.json").read_text()), place

    def children(self, job, word="train"):
        """Ids of a command's processes that run the program's subcommand."""
        def runs(pid):
            try:
                command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                return False
            return len(command) > 1 and command[1] == word.encode()

        return [pid for pid in self.processes() if harness.parent_of(pid) == job.pid and runs(pid)]


def mlp(model, images):
    """The logits of the model `mlp`, from its tensors."""
    layers = sorted({name.rpartition(".")[0] for name in model})
    for layer in layers:
        images = images @ model[f"{layer}.weight"].T + model[f"{layer}.bias"]
        images = images if layer == layers[-1] else images.relu()
    return images
