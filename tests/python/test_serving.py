"""`bimetal.serving`: Python asks `bimetal serve`, and gets what the same weights give in torch."""

import re
import time

import numpy
import torch
from safetensors.torch import load_file

import bimetal
from bimetal.serving import Predictor
from searches import SearchTest, harness, mlp


class Predictors(SearchTest):
    def setUp(self):
        super().setUp()
        place = self.folder / "kept"
        self.run_to_end("train", self.job, "--worker", "cpu:threads=1", "--set", f"checkpoint.dir={place}")
        self.server = self.start("serve", place, "--worker", "cpu:threads=1", "--max-batch", "16",
                                 "--max-delay-ms", "5")
        self.server.wait_for_output("serving")
        self.address = re.search(r" at (\S+);", self.server.out)[1]
        self.tensors = load_file(next(place.rglob("model.safetensors")))
        generator = torch.Generator().manual_seed(1)
        self.pixels = torch.randint(256, (50, 28, 28), dtype=torch.uint8, generator=generator)

    def alone(self, facts, pixels):
        return mlp(self.tensors, self.normalised(facts, pixels).flatten(1))

    def normalised(self, facts, pixels):
        (mean,), (stddev,) = facts["mean"], facts["stddev"]
        return (pixels.double() / 255 - mean) / stddev

    def end(self):
        self.server.interrupt()
        self.assertEqual(self.server.wait().status, harness.INTERRUPTED, self.server.err)
        self.assert_nothing_left()

    def refused(self, code, part, action):
        with self.assertRaises(bimetal.Error) as raised:
            action()
        self.assertEqual(raised.exception.code, code, raised.exception)
        self.assertIn(part, str(raised.exception))

    def test_it_says_what_torch_says(self):
        with Predictor(self.address, timeout=30) as predictor:
            facts = predictor.model()
            self.assertEqual((facts["model"], facts["height"], facts["classes"], facts["dtype"]), ("mlp", 28, 10, "float64"))
            wanted = self.alone(facts, self.pixels)
            normalised = self.normalised(facts, self.pixels)
            for samples in (self.pixels, self.pixels.numpy(), self.pixels[:, None], normalised, normalised.numpy(),
                            normalised.clone().requires_grad_()):
                said = predictor.predict(samples)
                self.assertLess((said.logits - wanted).abs().max().item(), 1e-12)
            self.assertEqual((said.step, said.newest_step), (12, 12))
            self.assertTrue(said.classes.equal(wanted.argmax(1)))
            self.assertLess((said.probabilities - torch.softmax(wanted, 1)).abs().max().item(), 1e-12)
            self.assertLess((predictor.predict(normalised.detach().float()).logits - wanted).abs().max().item(), 1e-4)
            figures = predictor.figures()
            self.assertEqual((figures["requests"], figures["samples"]), (7, 350))
            self.assertEqual(figures["batches"], 7 * 4)  # 50 images in batches of 16
        self.refused("invalid_argument", "closed", predictor.model)
        self.end()

    def test_what_is_refused(self):
        predictor = Predictor(self.address, timeout=10)
        for samples in (self.pixels.int(), ["a"], numpy.zeros((2, 28, 28), numpy.float16)):
            with self.assertRaises((bimetal.Error, TypeError, ValueError)):
                predictor.predict(samples)
        for samples in (self.pixels[:, :14], self.pixels[:0], self.pixels[0], torch.zeros(2, 3, 28, 28)):
            self.refused("invalid_argument", "takes [n, 1, 28, 28]", lambda: predictor.predict(samples))
        self.refused("invalid_argument", "timeout", lambda: Predictor(self.address, timeout=0))
        self.refused("invalid_argument", "nonsense", lambda: Predictor("nonsense"))
        self.assertEqual(predictor.predict(self.pixels).step, 12)
        token = self.folder / "token"
        self.run_to_end("token", token)
        self.refused("unauthorized", "token", Predictor(self.address, token_file=token).model)
        self.server.process.kill()
        self.server.process.wait()
        begin = time.monotonic()
        self.refused("timeout", "could not be reached", Predictor(self.address, timeout=0.5).model)
        self.refused("timeout", "could not be reached", lambda: Predictor(self.address, timeout=0.5).predict(self.pixels))
        self.assertLess(time.monotonic() - begin, harness.PATIENCE_S)


if __name__ == "__main__":
    harness.main()
