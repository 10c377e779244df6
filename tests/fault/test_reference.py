"""Completion for shells and manual pages: made of the options that --help has."""

import json
import os
import re
import shutil
import subprocess
import time

import harness
from harness import FaultTest


class Reference(FaultTest):
    def said(self, *arguments):
        return self.start(*arguments).done().out

    def options_of(self, command):
        lines = re.findall(r"(?m)^  (-\S+(?:,? +-\S+)*)", self.said(command, "--help"))
        return {name for line in lines for name in re.findall(r"--[\w-]+", line)}

    def test_bash(self):
        script = self.folder / "completion"
        script.write_text(self.said("completion", "bash"))

        def completed(*words):
            asked = (f'. {script}; COMP_WORDS=({" ".join(words)} "") COMP_CWORD={len(words)}; '
                     '[ "$1" ] && COMP_WORDS[COMP_CWORD]=$1; _bimetal; printf "%s\\n" "${COMPREPLY[@]}"')
            return lambda beginning: set(subprocess.run(["bash", "-c", asked, "bash", beginning], capture_output=True, text=True,
                                                        check=True).stdout.split())

        self.assertLessEqual({"train", "join", "launch", "top", "ray"}, completed("bimetal")(""))
        self.assertNotIn("rank", completed("bimetal")(""))
        for command in ("train", "launch", "top", "doctor", "tune"):  # the last two are Python's
            self.assertEqual(completed("bimetal", command)("--"), self.options_of(command))
        self.assertEqual(completed("bimetal", "checkpoint")("ins"), {"inspect"})
        self.assertEqual(completed("bimetal", "data")("tok"), {"tokenize"})

    def test_zsh_and_fish(self):
        for shell in ("zsh", "fish"):
            text = self.said("completion", shell)
            for option in self.options_of("train"):
                self.assertIn(option if shell == "zsh" else f"-l {option[2:]}", text)
            if shutil.which(shell):
                subprocess.run([shell, "-n"], input=text, text=True, check=True)

    def test_manual_pages(self):
        pages = self.folder / "man1"
        self.assertRegex(self.said("man", pages), rf"^\d+ manual pages in {pages}")
        for command in ("train", "launch", "plan", "doctor", "ensemble"):
            page = (pages / f"bimetal-{command}.1").read_text().replace("\\-", "-")
            for option in self.options_of(command):
                self.assertIn(option, page)
        for page in pages.iterdir():
            text = page.read_text()
            self.assertTrue(text.startswith(".TH "))
            self.assertIn(".SH NAME", text)
            if shutil.which("groff"):
                made = subprocess.run(["groff", "-k", "-man", "-Tutf8", "-ww", page], capture_output=True, check=True)
                self.assertNotIn(b"warning", made.stderr, page.name)

    def test_the_summary_names_the_report(self):
        report = self.folder / "run.json"
        job = self.train(self.write_job(train__epochs=1), "--report", report, workers=("cpu:threads=1",)).done()
        self.assertIn(f"report {report}\n", job.out)

    def test_runs_are_listed(self):
        parent = self.folder / "runs"
        self.train(self.write_job(train__steps=1), workers=("cpu:threads=1",)).done()
        record = json.loads((self.checkpoints / "training.json").read_text()) | {
            "state": "running", "host": "pc", "address": "127.0.0.1:9100", "step": 3, "steps": 10, "loss": 0.25}
        for name, age, changes in (("now", 0, {}), ("silent", 100, {"address": ""}), ("early", 200, {"state": "done", "loss": None})):
            (parent / name).mkdir(parents=True)
            file = parent / name / "training.json"
            file.write_text(json.dumps(record | changes))
            os.utime(file, (time.time() - age,) * 2)
        (parent / "bare" / "step-00000012").mkdir(parents=True)
        os.utime(parent / "bare", (time.time() - 300,) * 2)
        (parent / "empty").mkdir()
        rows = [line.split() for line in self.said("runs", parent).splitlines()]
        self.assertEqual(rows, [["run", "state", "where", "step", "loss"],
                                ["now", "running", "pc,", "page", "at", "127.0.0.1:9100", "3/10", "0.2500"],
                                ["silent", "lost", "pc", "3/10", "0.2500"], ["early", "done", "pc,", "page", "at", "127.0.0.1:9100", "3/10", "–"],
                                ["bare", "unknown", "–", "12", "–"]])
        listed = json.loads(self.said("runs", parent, "--json"))
        self.assertEqual([(run["state"], run["step"], run["loss"]) for run in listed],
                         [("running", 3, 0.25), ("lost", 3, 0.25), ("done", 3, None), ("unknown", 12, None)])
        self.assert_one_message(self.start("runs", self.folder / "nowhere"), harness.INVALID_ARGUMENT, "nowhere")

    def json_of(self, *arguments):
        """Standard output has nothing else."""
        return json.loads(self.said(*arguments, "--json"))

    def test_what_prints_a_result_prints_it_as_json(self):
        self.environment["TORCHINDUCTOR_CACHE_DIR"] = str(self.folder / "torch")  # which it makes where Python writes folders of DCP
        report = self.folder / "run.json"
        for workers in (("cpu:threads=1",), ("cpu:threads=1", "cpu:threads=1")):
            words = [word for worker in workers for word in ("--worker", worker)]
            job_file = self.write_job(train__epochs=1, train__evaluate=True)
            job = self.start("train", job_file, *words, "--report", report, "--json").done()
            trained = json.loads(job.out)
            self.assertEqual(trained, json.loads(report.read_text()))
            self.assertEqual((trained["steps"], trained["world_size"]), (16, len(workers)))
            self.assertIn("trained 16 steps", job.err)
            evaluated = self.json_of("evaluate", job_file, "--checkpoint", self.checkpoints, *words)
            self.assertEqual(evaluated["ensemble"]["test_accuracy"], trained["test_accuracy"])
        servers = self.start("train", self.write_job(train__steps=4, parallel__mode="server", checkpoint__dir=""), *words, "--json").done()
        self.assertEqual(json.loads(servers.out)["steps"], 4)
        kept = str(self.checkpoints / "step-00000016")
        found = self.json_of("checkpoint", "inspect", self.checkpoints)
        self.assertEqual((found[0]["step"], found[0]["flaw"]), (16, ""))
        self.assertIn("model.safetensors", [file["name"] for file in found[0]["files"]])
        self.assertEqual(self.json_of("checkpoint", "consolidate", kept, "--out", self.folder / "whole"),
                         {"path": str(self.folder / "whole"), "checkpoint": kept})
        exported = self.json_of("export", self.checkpoints, "--out", self.folder / "weights")
        self.assertEqual(exported, {"path": str(self.folder / "weights" / "model.safetensors"), "checkpoint": kept, "tensors": found[0]["tensors"]})
        in_python = self.json_of("export", self.checkpoints, "--out", self.folder / "dcp", "--format", "dcp")
        self.assertEqual(in_python, {"path": str(self.folder / "dcp"), "tensors": found[0]["tensors"], "step": 16})
        back = self.json_of("checkpoint", "import", self.folder / "dcp", "--out", self.folder / "back")
        self.assertEqual((back["step"], back["optimizer"]), (16, found[0]["optimizer"]))


if __name__ == "__main__":
    harness.main()
