"""Jobs in float64 whose every step is the same on any number of workers, and what they have learnt: whole checkpoints or slices,
every number."""

import array
import json
import struct

from harness import FaultTest

TYPES = {"float64": ("F64", "d"), "float32": ("F32", "f")}  # safetensors' name, and array's


def tensors_of(path, dtype="float64"):
    """The tensors of this type in a safetensors file."""
    name_of_type, code = TYPES[dtype]
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: array.array(code, data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]])
            for name, entry in header.items() if entry["dtype"] == name_of_type}


class SameEnds(FaultTest):
    def whole(self, name, step):
        whole = self.folder / f"whole-{name}-{step}"
        self.start("checkpoint", "consolidate", self.folder / name / f"step-{step:08}", "--out", whole).done()
        return whole

    def assert_same_end(self, name, step, alone="alone", dtype="float64", close=1e-12, scaled=False):
        """Folder `name` has the same contents as folder `alone`, to rounding; `scaled`: by the largest number of each
        tensor."""
        whole = self.whole(name, step)
        for file in ("model.safetensors", "optimizer.safetensors"):
            ours, expected = (tensors_of(path / file, dtype) for path in (whole, self.folder / alone / f"step-{step:08}"))
            self.assertEqual(ours.keys(), expected.keys())
            self.assertGreater(len(expected), 0)
            for key, values in expected.items():
                bound = close * max(1, *map(abs, values)) if scaled else close
                self.assertLess(max(abs(a - b) for a, b in zip(ours[key], values, strict=True)), bound, f"{file}: {key}")


class ExactJob(SameEnds):
    def write_exact_job(self, name, **settings):
        """Adam on a CNN with a clipped gradient, whose every step is the same on any number of workers."""
        return self.write_job(f"{name}.toml", **{
            "model__name": "cnn", "train__dtype": "float64", "train__optimizer": "adamw", "train__clip_norm": 0.5,
            "train__weight_decay": 0.1, "train__decay_on": "matrices", "train__steps": 30, "train__micro_batch": 20,
            "checkpoint__every_steps": 10, "checkpoint__dir": str(self.folder / name), "train__evaluate": True,
            **settings})

    def run_to(self, job_file, step, *arguments, ranks, **options):
        workers = ("cpu:threads=1", "cpu:threads=1,speed=0.5", "cpu:threads=1,speed=0.3")[:ranks]
        return self.train(job_file, "--set", f"train.steps={step}", *arguments, workers=workers, **options).done()
