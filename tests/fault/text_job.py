"""Small jobs of language models in float64, whose every step is the same however they are cut."""

import json

from exact_job import SameEnds

TEXT = "the cat sat on the mat, and the dog sat on the cat.\n" * 40


class TextJob(SameEnds):
    def write_text_job(self, name, **settings):
        """AdamW on a small GPT-2 with dropout and a clipped gradient, the same on any number of workers."""
        if not (self.folder / "text").exists():
            (self.folder / "text").write_text(TEXT)
            self.start("data", "tokenize", "text", "--tokenizer", "bytes", "--out", "tokens", "--test-fraction", "0.2").done()
        return self.write_job(f"{name}.toml", **{
            "model__name": "gpt2", "model__layers": 1, "model__width": 24, "model__heads": 3, "model__context": 16,
            "model__dropout": 0.1, "data__name": "tokens", "data__path": str(self.folder / "tokens"), "train__dtype": "float64",
            "train__optimizer": "adamw", "train__epsilon": 1e-3, "train__clip_norm": 0.5, "train__weight_decay": 0.1,
            "train__global_batch": 12, "train__micro_batch": 6, "train__learning_rate": 0.01, "train__evaluate": True,
            "checkpoint__dir": str(self.folder / name), **settings})

    def run_to(self, job_file, step, *arguments, ranks):
        workers = ("cpu:threads=1",) * ranks
        report = self.folder / "report.json"
        job = self.train(job_file, "--set", f"train.steps={step}", "--report", report, *arguments, workers=workers).done()
        return job, json.loads(report.read_text())
