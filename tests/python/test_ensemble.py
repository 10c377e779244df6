"""`bimetal ensemble`: members trained in parallel, and what they predict together, computed again here."""

import json

import torch
from safetensors.torch import load_file

from bimetal.ensemble.__main__ import main
from searches import TWO_WORKERS, SearchTest, harness, mlp


class Ensembles(SearchTest):
    def test_the_mean_of_what_the_members_say(self):
        place = self.folder / "three"
        _, report = self.report_of("ensemble", self.job, "--members", "3", "--dir", place, *TWO_WORKERS, "--set",
                                   "train.learning_rate=0.002", "--predictions", "p.safetensors")
        self.assertEqual([member["seed"] for member in report["trained"]], [1, 2, 3])
        images, labels = self.held_out()
        said = []
        for member, figures in zip(report["trained"], report["members"]):
            model = load_file(next((place / member["name"]).rglob("model.safetensors")))
            said.append(torch.softmax(mlp(model, images), 1))
            self.assertAlmostEqual(figures["test_accuracy"], accuracy(said[-1], labels), delta=1e-12)
            self.assertEqual(figures["test_accuracy"], member["figures"]["test_accuracy"])
        mean = torch.stack(said).mean(0)
        self.assertAlmostEqual(report["ensemble"]["test_accuracy"], accuracy(mean, labels), delta=1e-12)
        loss = -mean[torch.arange(len(labels)), labels].log().mean().item()
        self.assertAlmostEqual(report["ensemble"]["test_loss"], loss, delta=1e-9)
        self.assertGreater((said[0] - said[1]).abs().max().item(), 1e-3, "the members are the same")

        predictions = load_file(self.folder / "p.safetensors")
        self.assertTrue(predictions["labels"].equal(labels))
        self.assertLess((predictions["probabilities"].double() - mean).abs().max().item(), 1e-6)

        again, second = self.report_of("ensemble", "--predict", place, "--worker", "cpu:threads=1")
        self.assertEqual(second["ensemble"], report["ensemble"])
        self.assertIn("ensemble of 3", again.out)
        as_json = self.run_to_end("ensemble", "--predict", place, "--worker", "cpu:threads=1", "--json")
        self.assertEqual(json.loads(as_json.out), second)
        self.assertIn("ensemble of 3", as_json.err)
        self.assertIn("--predict", self.refused_by(main, self.job, "--members", "2", "--dir", place))

    def test_bagged_members_see_other_samples(self):
        _, report = self.report_of("ensemble", self.job, "--members", "2", "--bagging", "--dir", "bagged", *TWO_WORKERS,
                                   "--set", "train.evaluate=false")
        bagged = report["trained"][0]
        straight, _ = self.trained("train.seed=1")
        self.assertNotAlmostEqual(bagged["figures"]["train_loss"], straight["train_loss"], delta=1e-6)
        same, _ = self.trained("train.seed=1", "data.bootstrap_seed=2")
        self.assertAlmostEqual(bagged["figures"]["train_loss"], same["train_loss"], delta=1e-12)

    def test_what_is_wrong_is_said(self):
        for arguments, said in (([], "say what to train"), ([self.job], "say what to train"),
                                ([self.job, "--members", "0"], "say what to train"),
                                (["--predict", self.folder / "data"], "there is no ensemble in"),
                                (["--predict", "x", "--members", "2"], "--predict goes with"),
                                ([self.job, "--members", "2", "--set", "train.epoch=1"], "did you mean 'epochs'?")):
            self.assertIn(said, self.refused_by(main, *arguments))
        damaged = self.folder / "damaged"
        damaged.mkdir()
        (damaged / "ensemble.json").write_text('{"job": "../job.toml", "settings": [], "members": ["a"]}')
        self.assertIn("is damaged", self.refused_by(main, "--predict", damaged, status=10))

    def held_out(self):
        """Images as the program normalises them, float64 [N, 784], and labels."""
        def read(name, header):
            return torch.frombuffer(bytearray((self.folder / "data" / name).read_bytes()[header:]), dtype=torch.uint8)

        train = read("train-images-idx3-ubyte", 16).double() / 255
        images = read("t10k-images-idx3-ubyte", 16).double().view(-1, 784) / 255
        return (images - train.mean()) / train.std(unbiased=False), read("t10k-labels-idx1-ubyte", 8).long()


def accuracy(probabilities, labels):
    return (probabilities.argmax(1) == labels).double().mean().item()


if __name__ == "__main__":
    harness.main()
