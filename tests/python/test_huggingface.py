"""Hugging Face folders: the same logits as transformers' own classes, read and written; what does not fit is named.

Exits with 77, which CTest counts as skipped, where transformers is not installed (make setup-tests).
"""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import ranks

ranks.skip_all_without("transformers", "safetensors", how="make setup-tests installs them")

import torch
import transformers
from safetensors.torch import load_file, save_file

PROGRAM = os.environ["BIMETAL_HUGGINGFACE_LOGITS"]
VOCABULARY = 61
TOLERANCE = 1e-5
transformers.utils.logging.disable_progress_bar()


def gpt2(**keys):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=3, n_embd=48, n_head=4, n_positions=32, vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **keys))


def llama(**keys):
    keys = {"num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
            "intermediate_size": 80, "max_position_embeddings": 32, "vocab_size": VOCABULARY, **keys}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**keys))


MODELS = {
    "GPT-2": gpt2,
    "GPT-2 with an MLP of its own": lambda: gpt2(n_inner=100, layer_norm_epsilon=1e-3),
    "Llama": llama,
    "Llama without groups, tied": lambda: llama(num_key_value_heads=4, tie_word_embeddings=True, rms_norm_eps=1e-3),
    "Llama with other wavelengths": lambda: llama(num_key_value_heads=1, rope_parameters={
        "rope_type": "default", "rope_theta": 500.0}),
}


class Folders(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)
        self.folder, self.written = self.scratch / "theirs", self.scratch / "ours"
        self.tokens = torch.randint(VOCABULARY, (2, 32))
        save_file({"tokens": self.tokens}, self.scratch / "tokens.safetensors")

    def saved(self, model, **options):
        """A random model whose every tensor matters, in the folder."""
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        model.eval().save_pretrained(self.folder, **options)
        return model

    def run_ours(self):
        return subprocess.run([PROGRAM, self.folder, self.scratch / "tokens.safetensors",
                               self.scratch / "logits.safetensors", self.written], capture_output=True, text=True)

    def our_logits(self):
        done = self.run_ours()
        self.assertEqual(done.returncode, 0, done.stderr)
        return load_file(self.scratch / "logits.safetensors")["logits"]

    def refused(self):
        done = self.run_ours()
        self.assertEqual(done.returncode, 1, "nothing was refused")
        self.assertFalse(self.written.exists())
        return done.stderr

    def assert_equal(self, ours, theirs):
        self.assertEqual(ours.shape, theirs.shape)
        self.assertGreater(theirs.std(), 0.1, "logits that say nothing")
        self.assertLess((ours - theirs).abs().max(), TOLERANCE * max(1, theirs.abs().max()))

    def their_logits(self, model):
        with torch.no_grad():
            return model(self.tokens).logits

    def change_config(self, **keys):
        file = self.folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | keys))

    def change_weights(self, change):
        file = self.folder / "model.safetensors"
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file, metadata={"format": "pt"})

    def test_logits_are_those_of_transformers_both_ways(self):
        for name, make in MODELS.items():
            with self.subTest(name):
                self.setUp()
                theirs = self.their_logits(self.saved(make()))
                self.assert_equal(self.our_logits(), theirs)
                again, report = transformers.AutoModelForCausalLM.from_pretrained(
                    self.written, output_loading_info=True, dtype=torch.float32)
                self.assertFalse(any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report)
                self.assert_equal(self.their_logits(again.eval()), theirs)

    def test_shards_are_read_with_their_index(self):
        theirs = self.their_logits(self.saved(llama(), max_shard_size="40KB"))
        self.assertGreater(len(list(self.folder.glob("model-*.safetensors"))), 2)
        self.assert_equal(self.our_logits(), theirs)

    def test_low_precision_is_read_as_float32(self):
        for dtype in (torch.float16, torch.bfloat16):
            with self.subTest(dtype):
                self.setUp()
                model = self.saved(gpt2().to(dtype))
                self.assert_equal(self.our_logits(), self.their_logits(model.float()))

    def test_names_without_the_prefix_and_old_constants(self):
        for make, prefix in ((gpt2, "transformer."), (lambda: llama(tie_word_embeddings=True), "model.")):
            with self.subTest(prefix):
                self.setUp()
                theirs = self.their_logits(self.saved(make()))

                def strip(tensors):
                    for name in list(tensors):
                        tensors[name.removeprefix(prefix)] = tensors.pop(name)
                    tensors["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)
                    tensors["h.0.attn.masked_bias"] = torch.tensor(-1e4)

                self.change_weights(strip)
                self.assert_equal(self.our_logits(), theirs)

    def test_all_that_does_not_fit_is_named(self):
        self.saved(gpt2())

        def spoil(tensors):
            tensors.pop("transformer.h.0.ln_1.weight")
            tensors.pop("transformer.h.2.mlp.c_fc.bias")
            tensors["transformer.h.3.ln_1.weight"] = torch.ones(48)
            tensors["transformer.wpe.weight"] = torch.ones(31, 48)
            tensors["transformer.ln_f.bias"] = torch.ones(48, dtype=torch.int64)

        self.change_weights(spoil)
        said = self.refused()
        for words in ("missing: transformer.h.0.ln_1.weight, transformer.h.2.mlp.c_fc.bias",
                      "not of this model: transformer.h.3.ln_1.weight",
                      "transformer.wpe.weight is [31, 48] and should be [32, 48]",
                      "transformer.ln_f.bias is of type Long"):
            self.assertIn(words, said)

    def test_what_our_models_do_not_compute_is_refused(self):
        self.saved(llama())
        config = (self.folder / "config.json").read_text()
        for keys, words in (({"model_type": "mamba"}, "'mamba' is unknown here; known are gpt2 and llama"),
                            ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "rope_parameters"),
                            ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling"),
                            ({"attention_bias": True}, "attention_bias is true"),
                            ({"hidden_act": "gelu"}, "hidden_act"),
                            ({"head_dim": 16}, "head_dim is 16"),
                            ({"num_hidden_layers": "3"}, "num_hidden_layers is \"3\", not a whole number")):
            with self.subTest(words):
                (self.folder / "config.json").write_text(config)
                self.change_config(**keys)
                self.assertIn(words, self.refused())

    def test_folders_that_are_none(self):
        self.assertIn("has no config.json", self.refused())
        self.saved(gpt2())
        (self.folder / "model.safetensors").rename(self.folder / "elsewhere.safetensors")
        self.assertIn("has neither model.safetensors nor", self.refused())
        index = self.folder / "model.safetensors.index.json"
        for text, words in (('{"weight_map": {"a": "../secret"}}', "'a' cannot lie in '../secret'"),
                            ('{"weight_map": {"a": "b"}}', "lists 'b', which is not there"),
                            ("{", "has no weight_map")):
            index.write_text(text)
            self.assertIn(words, self.refused())

    def test_a_folder_with_something_in_it_is_not_overwritten(self):
        self.saved(gpt2())
        self.written.mkdir()
        (self.written / "mine").touch()
        self.assertIn("name a new or empty folder", self.run_ours().stderr)
        (self.written / "mine").unlink()
        self.our_logits()
        self.assertEqual({file.name for file in self.written.iterdir()}, {"config.json", "model.safetensors"})


if __name__ == "__main__":
    unittest.main()
