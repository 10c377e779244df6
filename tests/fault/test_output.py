"""Output that nobody reads: the job goes on. Output that nobody looks at: it is plain. Output that nobody likes to
read: it is printed all the same."""

import json
import os
import pty
import re
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

    def test_a_full_device_is_an_error_once_the_job_is_done(self):
        for words, steps in ((("train", str(self.write_job(train__steps=3)), "--worker", "cpu:threads=1"), [3]), (("devices",), [3])):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([BIMETAL, *words], stdout=full, stderr=subprocess.PIPE, text=True, cwd=self.folder,
                                      env=self.environment, timeout=harness.PATIENCE_S, check=False)
            self.assertEqual(done.returncode, harness.SYSTEM, done.stderr)
            self.assertIn("cannot write all of standard output: No space left on device", done.stderr)
            self.assertEqual(done.stderr.count("error:"), 1, done.stderr)
            self.assertEqual(self.saved_steps(), steps)

    def test_the_demo_prints_one_object_alone_where_asked_for_json(self):
        (self.folder / "usual").mkdir()
        (self.folder / "usual" / "fashion-mnist").symlink_to(self.folder / "data")
        job = self.start("demo", "--quick", "--json", environment={"BIMETAL_DATA": str(self.folder / "usual")}).done()
        shown = json.loads(job.out)
        self.assertEqual(list(shown), ["alone", "equal", "balanced"])
        self.assertEqual(len(shown["alone"]), 2)
        for run in (*shown["alone"], shown["equal"], shown["balanced"]):
            self.assertGreater(run["samples_per_s"], 0)
        self.assertEqual(len({run["worker"] for run in shown["alone"]}), 2)
        self.assertTrue(0 <= shown["balanced"]["test_accuracy"] <= 1)
        self.assertIn("All of them, balanced", job.err)  # what it does meanwhile

    def test_lines_are_rewritten_where_somebody_looks_and_nowhere_else(self):
        job_file = self.write_job(train__epochs=1, train__steps=1000, train__evaluate=True)
        live = self.on_a_terminal(job_file, TERM="xterm", NO_COLOR="")
        self.assertIn("\x1b[K", live)
        for plain in ({"NO_COLOR": "1", "TERM": "xterm"}, {"NO_COLOR": "", "TERM": "dumb"}):
            text = self.on_a_terminal(job_file, **plain)
            self.assertNotIn("\x1b", text)
            self.assertNotIn("\r", text.replace("\r\n", "\n"))  # that is the terminal's own
            self.assertIn("train.steps = 1000, but 1 epoch (train.epochs) is over after 16 steps", text)
            self.assertEqual(text.count(str(self.checkpoints)), 1, text)

    def test_a_wrong_command_line_is_one_message_that_says_what_to_do(self):
        for words, meant in ((("trian",), "no command is called 'trian': did you mean `bimetal train`?"),
                             (("nonsense",), "no command is called 'nonsense': `bimetal --help` lists them"),
                             (("train", "job.toml", "--workers", "cpu"), "`bimetal train` has no option --workers: did you mean --worker?"),
                             (("devices", "--colour"), "`bimetal devices` has no option --colour: `bimetal devices --help` lists them"),
                             (("train",), "`bimetal train`: job is required (`bimetal train --help` says more)"),
                             (("top",), "`bimetal top`: address is required (`bimetal top --help` says more)"),
                             (("checkpoint",), "`bimetal checkpoint`: A subcommand is required (`bimetal checkpoint --help` says more)")):
            with self.subTest(words):
                job = self.start(*words).done(harness.INVALID_ARGUMENT)
                self.assertEqual(job.err, f"bimetal: error: {meant}\n")

    def test_workers_are_told_apart_by_their_specs(self):
        job = self.train(self.write_job(train__steps=2), workers=("cpu:threads=1", "cpu:threads=1,speed=0.5")).done()
        self.assertRegex(job.out, r"(?m)^ +0  cpu:threads=1 on \S+ .*\n +1  cpu:threads=1,speed=0\.5 on \S+ ")

    def test_a_job_that_keeps_nothing_says_so_before_and_after(self):
        job = self.train(self.write_job(train__steps=2, checkpoint__dir="")).done()
        self.assertIn("nothing of this training will be kept", job.out)
        self.assertTrue(job.out.rstrip().endswith("nothing was saved: the job has no checkpoint.dir"), job.out)

    def test_a_job_that_is_slower_than_its_fastest_worker_alone_says_so(self):
        """The faster one waits for the half of the samples that takes the other four times as long."""
        job_file = self.write_job(train__steps=80, train__global_batch=256, parallel__balance="equal")
        job = self.train(job_file, workers=("cpu:threads=1", "cpu:threads=1,speed=0.25")).done()
        note = re.search(r"^note: slower than rank 0 alone: (\d\.\d+) × the \d+ \w+/s at which it computed.*$",
                         job.out, re.MULTILINE)
        self.assertTrue(note, job.out)
        self.assertLess(float(note[1]), 1)
        self.assertIn("waited for", note[0])
        self.assertIn("shares were equal by the job's parallel.balance", note[0])

    def on_a_terminal(self, job_file, **environment):
        """All that a short job writes there."""
        controller, terminal = pty.openpty()
        process = subprocess.Popen([BIMETAL, "train", str(job_file), "--worker", "cpu:threads=1"], stdin=terminal,
                                   stdout=terminal, stderr=terminal, env={**self.environment, **environment})
        os.close(terminal)
        text = b""
        while True:
            try:
                piece = os.read(controller, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            text += piece
        os.close(controller)
        self.assertEqual(process.wait(harness.PATIENCE_S), 0, text)
        return text.decode()


if __name__ == "__main__":
    harness.main()
