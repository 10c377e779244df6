"""Jobs that have learnt the same: of checkpoints, whole ones or slices, every number."""

from exact_job import tensors_of
from harness import FaultTest


class SameEnds(FaultTest):
    def assert_same_end(self, name, step, alone="alone", dtype="float64", close=1e-12):
        """What folder `name` holds is what folder `alone` does, to rounding."""
        whole = self.folder / f"whole-{name}-{step}"
        done = self.start("checkpoint", "consolidate", self.folder / name / f"step-{step:08}", "--out", whole).wait()
        self.assertEqual(done.status, 0, done.err)
        for file in ("model.safetensors", "optimizer.safetensors"):
            ours, expected = (tensors_of(path / file, dtype) for path in (whole, self.folder / alone / f"step-{step:08}"))
            self.assertEqual(ours.keys(), expected.keys())
            self.assertGreater(len(expected), 0)
            for key, values in expected.items():
                self.assertLess(max(abs(a - b) for a, b in zip(ours[key], values, strict=True)), close, f"{file}: {key}")
