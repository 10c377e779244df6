"""From text to a model that writes: `bimetal data tokenize`, train, generate, export, and back from a Hugging Face folder.

Exits with 77, which CTest counts as skipped, where transformers is not installed (make setup-tests).
"""

import json
import os
import re
import shutil
import sys
import unittest

import ranks
from searches import harness

ranks.skip_all_without("transformers", "safetensors", "tokenizers", how="make setup-tests installs them")

TEXT = "the cat sat on the mat, and the dog sat on the cat.\n" * 40
WORKERS = ["--worker", "cpu:threads=1", "--worker", "cpu:threads=1"]


class FromTextToText(harness.FaultTest):
    def setUp(self):
        super().setUp()
        self.environment.update(BIMETAL_PYTHON=sys.executable, PYTHONPATH=os.environ["PYTHONPATH"])
        (self.folder / "text").write_text(TEXT)
        self.tokens = self.folder / "tokens"
        self.done("data", "tokenize", "text", "--tokenizer", "bytes", "--out", "tokens", "--test-fraction", "0.1")
        self.job = self.write_job(
            model__name="gpt2", model__layers=2, model__width=32, model__heads=2, model__context=32,
            data__name="tokens", data__path=str(self.tokens), train__steps=60, train__epochs=99,
            train__global_batch=8, train__optimizer="adam", train__learning_rate=0.01, train__evaluate=True,
            checkpoint__every_steps=0)

    def done(self, *arguments, status=0):
        return self.start(*arguments).done(status)

    def generated(self, run, *options):
        return self.done("generate", run, "--prompt", "the cat", "--worker", "cpu:threads=1", *options).out

    def test_a_model_learns_to_write_what_it_has_read(self):
        self.done("train", self.job, *WORKERS, "--report", "report.json")
        report = json.loads((self.folder / "report.json").read_text())
        self.assertLess(report["test_perplexity"], 8, "a byte drawn blindly has 256")
        likely = self.generated(self.checkpoints, "--tokens", "40", "--temperature", "0")
        self.assertTrue(likely.startswith("the cat"))
        self.assertEqual(len(likely), len("the cat") + 40 + len("\n"))
        drawn = [self.generated(self.checkpoints, "--tokens", "30", "--temperature", "2", "--seed", seed)
                 for seed in ("1", "1", "2")]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0], drawn[2])

        self.served_texts_are_those_of_the_checkpoint(likely, drawn[2])
        self.export_is_what_was_trained()
        self.folder_for_transformers_writes_the_same(likely)
        self.training_goes_on_from_the_folder()

    def served_texts_are_those_of_the_checkpoint(self, likely, drawn):
        server = self.start("serve", self.checkpoints, "--worker", "cpu:threads=1")
        server.wait_for_output("serving")
        address = re.search(r" at (\S+);", server.out)[1]
        asked = ["generate", address, "--prompt", "the cat", "--tokens"]
        texts = [self.start(*asked, *more) for more in
                 (["40", "--temperature", "0"], ["30", "--temperature", "2", "--seed", "2"])]
        self.assertEqual([text.wait().out for text in texts], [likely, drawn])
        server.end()
        self.assertIn("answered 2 requests of 70 tokens", server.out)

    def export_is_what_was_trained(self):
        from safetensors.torch import load_file

        self.done("export", self.checkpoints, "--out", "weights")
        ours = load_file(self.folder / "weights" / "model.safetensors")
        checkpoint = max(self.checkpoints.glob("step-*/model.safetensors"))
        saved = load_file(checkpoint)
        self.assertEqual(ours.keys(), saved.keys())
        self.assertTrue(all(ours[name].equal(saved[name]) for name in saved))

    def folder_for_transformers_writes_the_same(self, likely):
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        self.done("export", self.checkpoints, "--out", "theirs", "--format", "huggingface")
        model = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "theirs").eval()
        tokens = list(b"the cat")
        for _ in range(40):
            with torch.no_grad():
                tokens.append(int(model(torch.tensor([tokens[-32:]])).logits[0, -1].argmax()))
        self.assertEqual(bytes(tokens).decode(errors="replace") + "\n", likely)
        self.assertEqual(self.generated(self.folder / "theirs", "--tokens", "40", "--temperature", "0"), likely)
        again = self.done("export", self.checkpoints, "--out", "theirs", "--format", "huggingface",
                          status=harness.INVALID_ARGUMENT)
        self.assertIn("name a new or empty folder", again.error())

    def training_goes_on_from_the_folder(self):
        """The first loss is that of what was learnt, not of drawn parameters."""
        shutil.rmtree(self.checkpoints)
        sizes = [word for key in ("layers", "width", "heads", "context") for word in ("--set", f"model.{key}=0")]
        begin = ["train", self.job, *WORKERS, "--set", f"model.weights={self.folder / 'theirs'}"]
        self.done(*begin, *sizes, "--set", "train.steps=1", "--report", "again.json")
        self.assertLess(json.loads((self.folder / "again.json").read_text())["train_loss"], 2.5)
        refused = self.done(*begin, "--set", "train.steps=1", status=harness.INVALID_ARGUMENT)
        self.assertIn("has sizes of its own", refused.error())

    def test_a_tokenizer_of_the_library_is_asked(self):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        library = Tokenizer(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoders.ByteLevel()
        library.train_from_iterator([TEXT], trainers.BpeTrainer(
            vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
        library.save(str(self.folder / "library.json"))
        self.done("data", "tokenize", "text", "--tokenizer", "library.json", "--out", "words")
        self.done("train", self.job, *WORKERS[:2], "--set", "data.path=words", "--set", "train.steps=1")
        unknown = self.start("generate", self.checkpoints, "--prompt", "the").wait()
        self.assertIn("no tokenizer.json lies there", unknown.error())
        said = self.generated(self.checkpoints, "--tokens", "9", "--tokenizer", "words")
        self.assertTrue(said.startswith("the cat"), said)
        self.assertGreater(len(said), len("the cat\n"))

        self.done("export", self.checkpoints, "--out", "theirs", "--format", "huggingface", "--tokenizer", "words")
        self.assertEqual(self.generated("theirs", "--tokens", "9"), said, "the tokenizer lies beside the weights")
        import transformers

        theirs = transformers.AutoTokenizer.from_pretrained(self.folder / "theirs")
        self.assertEqual(theirs.encode("the cat sat"), library.encode("the cat sat").ids)
        larger = self.done("generate", self.checkpoints, "--prompt", "the", "--tokenizer", self.larger(library),
                           status=harness.INVALID_ARGUMENT)
        self.assertIn("and the model knows", larger.error())

    def larger(self, library):
        library.add_tokens(["zebra"])
        library.save(str(self.folder / "larger.json"))
        return self.folder / "larger.json"

    def test_what_cannot_generate_says_why(self):
        nothing = self.start("generate", self.checkpoints, "--prompt", "the").done(harness.INVALID_ARGUMENT)
        self.assertIn("there is no checkpoint", nothing.error())
        self.done("train", self.write_job(train__steps=1), *WORKERS[:2])
        images = self.done("generate", self.checkpoints, "--prompt", "the", status=harness.INVALID_ARGUMENT)
        self.assertIn("holds the model 'mlp', which is no language model", images.error())
        form = self.done("export", self.checkpoints, "--out", "mlp", "--format", "huggingface",
                         status=harness.INVALID_ARGUMENT)
        self.assertIn("take --format safetensors", form.error())
        self.done("export", self.checkpoints, "--out", "mlp")
        self.assertTrue((self.folder / "mlp" / "model.safetensors").is_file())


if __name__ == "__main__":
    unittest.main()
