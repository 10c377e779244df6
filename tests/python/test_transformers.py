"""Hugging Face's causal models and its Trainer: recipes of docs/python.md, and the warning."""

import pathlib
import sys
import unittest
import warnings

import models
import ranks
import torch
import torch.distributed as dist
from sequences import BATCH, SAMPLES, gpt, train
from torch.nn.parallel import DistributedDataParallel

import bimetal

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "python"


def warnings_of(hook):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = DistributedDataParallel(gpt("transformers"))
        sampler = bimetal.BalancedBatchSampler(SAMPLES, BATCH)
        model.register_comm_hook(sampler, getattr(bimetal, hook))
        train(model, sampler)
    return [str(warning.message) for warning in caught if "token" in str(warning.message)]


def trainer_weights(recipe, workers):
    """After a run of the example's Trainer, with its hook or with counts that Trainer gathers."""
    sys.path.insert(0, str(EXAMPLES))
    import trainer_balanced as example

    class Gathering(example.BalancedTrainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = example.Trainer.training_step(self, model, inputs, num_items_in_batch)
            self.sampler.finish_step()
            return loss

    options = example.Options(samples=40, global_batch=16, epochs=2, lr=1e-2, cpu=True, balance="fixed",
                              weights=[3, 1][:dist.get_world_size()], workers=workers)
    trainer = example.make_trainer(options, Gathering if recipe == "gathered" else example.BalancedTrainer)
    trainer.args.average_tokens_across_devices = recipe == "gathered"
    trainer.model.double()
    trainer.train()
    return [p.tolist() for p in trainer.model.parameters()]


@ranks.needs("transformers", "accelerate")
class HuggingFace(unittest.TestCase):
    def test_a_causal_model_with_the_hook_for_samples_is_told(self):
        (first, right), (second, right_too) = ranks.several(2, [(warnings_of, "sample_exact_hook"), (warnings_of, "token_exact_hook")])
        self.assertEqual(len(first), 1, first)
        self.assertIn("GPT2LMHeadModel averages its loss over tokens", first[0])
        self.assertIn("bimetal.token_exact_hook", first[0])
        self.assertEqual([second, right, right_too], [[], [], []])

    def test_trainer(self):
        """Its causal loss is computed in float32, whatever the model's type."""
        reference = [torch.tensor(p, dtype=torch.float64) for p in ranks.on_ranks(1, trainer_weights, "hook", 0)[0]]
        ways = [("hook", 0), ("hook", 1), ("gathered", 0)]
        for of_rank in ranks.several(2, [(trainer_weights, *way) for way in ways]):
            for way, parameters in zip(ways, of_rank, strict=True):
                self.assertLess(models.difference(parameters, reference), 1e-6, way)


if __name__ == "__main__":
    ranks.main(globals())
