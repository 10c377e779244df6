"""Accelerate and Lightning by one line on unequal ranks: accumulation whose last step of an epoch has fewer batches, token
means and mixed precision, compared with a plain loop of one process."""

import unittest

import models
import ranks
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bimetal

# Batches of 16, 16 and 12 of two ranks; with two of them in a step, one of 32 and one of 12.
SAMPLES, EACH, ACCUMULATE, EPOCHS = 44, 8, 2, 2
LENGTH = 5
UNEQUAL = {"balance": "fixed", "weights": [3, 1], "seed": 9}


def make_model(dtype):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


def make_data(dtype, tokens):
    """Rows with one label each, or sequences with a label at some places."""
    generator = torch.Generator().manual_seed(5)
    shape = (SAMPLES, LENGTH) if tokens else (SAMPLES,)
    inputs = torch.randn(*shape, 6, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(0, 3, shape, generator=generator)
    if tokens:
        kept = torch.rand(shape, generator=generator) < torch.rand(SAMPLES, 1, generator=generator)
        kept[:, 0] = True
        labels = labels.masked_fill(~kept, -100)
    return TensorDataset(inputs, labels)


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)


def loss_of(model, inputs, labels):
    return nn.functional.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())


def in_one_process(tokens=False):
    """Steps of joined batches, without any front end."""
    inputs, labels = make_data(torch.float64, tokens).tensors
    model = make_model(torch.float64)
    optimizer = make_optimizer(model)
    sampler = bimetal.BalancedBatchSampler(SAMPLES, 2 * EACH, seed=9)
    for _ in range(EPOCHS):
        step = []
        for number, batch in enumerate(sampler, 1):
            sampler.finish_step()
            step += batch
            if number % ACCUMULATE == 0 or number == len(sampler):
                loss_of(model, inputs[step], labels[step]).backward()
                optimizer.step()
                optimizer.zero_grad()
                step = []
    return [parameter.detach() for parameter in model.parameters()]


def by_accelerate(tokens=False, precision="no"):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    from bimetal.hf import balanced

    AcceleratorState._reset_state(reset_partial_state=True)  # of the call before
    GradientState._reset_state()
    dtype = torch.float64 if precision == "no" else torch.float32
    accelerator = balanced(Accelerator)(cpu=True, gradient_accumulation_steps=ACCUMULATE, mixed_precision=precision)
    accelerator.sampler_options, accelerator.token_means = UNEQUAL, tokens
    model = make_model(dtype)
    training, held_out = (DataLoader(make_data(dtype, tokens), batch_size=EACH, shuffle=shuffle) for shuffle in (True, False))
    model, optimizer, training, held_out = accelerator.prepare(model, make_optimizer(model), training, held_out)
    for _ in range(EPOCHS):
        for inputs, labels in training:
            with accelerator.accumulate(model):
                if tokens:
                    accelerator.sampler.count_tokens(labels, shifted=False)
                accelerator.backward(loss_of(model, inputs, labels))
                optimizer.step()
                optimizer.zero_grad()
    seen = sum(len(labels) for _, labels in held_out)  # Accelerate's own: equal parts
    return [parameter.tolist() for parameter in model.parameters()], accelerator.sampler.shares, seen


def by_lightning(tokens=False, precision="64-true"):
    import lightning

    from bimetal.lightning import BalancedStrategy

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.seen = make_model(dtype), 0

        def training_step(self, batch, _):
            if tokens:
                self.trainer.strategy.sampler.count_tokens(batch[1], shifted=False)
            return loss_of(self.model, *batch)

        def validation_step(self, batch, _):
            self.seen += len(batch[1])

        def configure_optimizers(self):
            return make_optimizer(self.model)

    dtype = torch.float64 if precision == "64-true" else torch.float32
    training, held_out = (DataLoader(make_data(dtype, tokens), batch_size=EACH, shuffle=shuffle) for shuffle in (True, False))
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=BalancedStrategy(UNEQUAL, tokens), max_epochs=EPOCHS, precision=precision,
        accumulate_grad_batches=ACCUMULATE, num_sanity_val_steps=0, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False)
    module = Module()
    trainer.fit(module, training, held_out)
    return [parameter.tolist() for parameter in module.parameters()], trainer.strategy.sampler.shares, module.seen // EPOCHS


def skipping_by_accelerate():
    """The samples of an epoch, of one that goes on after skip_first_batches, and of another seed."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import set_seed

    from bimetal.hf import balanced

    def begun(seed=9):
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        accelerator = balanced(Accelerator)()  # without cpu=True
        accelerator.sampler_options = {"balance": "fixed", "weights": [3, 1]}
        model = make_model(torch.float64)
        set_seed(seed)
        return accelerator, *accelerator.prepare(
            model, make_optimizer(model), DataLoader(make_data(torch.float64, False), batch_size=EACH, shuffle=True))

    def trained(accelerator, model, optimizer, loader, most=3):
        samples = []
        for number, (inputs, labels) in enumerate(loader, 1):
            samples += inputs[:, 0].tolist() if accelerator.sampler.weight > 0 else []
            accelerator.backward(loss_of(model, inputs, labels))
            optimizer.step()
            optimizer.zero_grad()
            if number == most:
                break
        return samples

    whole = begun()
    samples = trained(*whole)
    before = trained(*begun(), most=1)
    later = begun()
    skipped = trained(*later[:3], later[0].skip_first_batches(later[3], 1))
    return [samples, before + skipped, trained(*begun(seed=10)), later[0].num_processes]


class FrontEnds(unittest.TestCase):
    def check(self, body, precision, held_out):
        results = ranks.several(2, [(body, False), (body, True), (body, False, precision)])
        expected = [in_one_process(), in_one_process(tokens=True)]
        for plain, of_tokens, mixed in results:
            for (found, shares, seen), reference in zip((plain, of_tokens), expected, strict=True):
                self.assertLess(models.difference(found, reference), 1e-12)
                self.assertEqual(shares, [12, 4])
                self.assertEqual(seen, held_out)
            self.assertLess(models.difference(mixed[0], expected[0]), 0.05)
            self.assertGreater(models.difference(mixed[0], expected[0]), 1e-6)  # it was computed in another type

    @ranks.needs("accelerate")
    def test_accelerate(self):
        self.check(by_accelerate, "bf16", 3 * EACH)  # it fills up the last batch

    @ranks.needs("lightning")
    def test_lightning(self):
        self.check(by_lightning, "bf16-mixed", SAMPLES // 2)

    @ranks.needs("accelerate")
    def test_accelerate_goes_on_in_an_epoch(self):
        for whole, skipped, other, processes in ranks.on_ranks(2, skipping_by_accelerate):
            self.assertEqual(processes, 2)
            self.assertEqual(skipped, whole)
            self.assertNotEqual(other, whole, "set_seed is to make another order")

    @ranks.needs("accelerate")
    def test_accelerates_own_function_does_not_skip(self):
        from accelerate.data_loader import BatchSamplerShard, SkipBatchSampler, skip_first_batches

        def sampler():
            return bimetal.BalancedBatchSampler(SAMPLES, EACH)

        data = make_data(torch.float64, False)
        for skipping in (skip_first_batches(DataLoader(data, batch_sampler=sampler()), 1),
                         SkipBatchSampler(BatchSamplerShard(sampler()), 1)):
            with self.assertRaisesRegex(RuntimeError, "cannot skip batches of a BalancedBatchSampler"):
                next(iter(skipping))

    @ranks.needs("lightning")
    def test_options_that_are_not_the_users(self):
        from bimetal.lightning import BalancedStrategy
        with self.assertRaisesRegex(ValueError, "BalancedStrategy's sampler_options has prefetch"):
            BalancedStrategy({"prefetch": 4})


if __name__ == "__main__":
    ranks.main(globals())
