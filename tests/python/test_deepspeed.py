"""bimetal.deepspeed: scripts for DeepSpeed on unequal ranks, compared with a plain loop of one process."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import warnings

import models
import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

import bimetal
from bimetal import deepspeed

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "textbook"
sys.path.insert(0, str(EXAMPLES))

SAMPLES, BATCH, RATE = 72, 16, 3e-3  # 9 micro-batches an epoch: steps of two reach over its end
CONFIG = {
    "train_batch_size": BATCH, "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": RATE, "betas": [0.9, 0.95], "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": RATE, "warmup_num_steps": 3,
                                                      "warmup_type": "linear", "total_num_steps": 12}},
    "gradient_clipping": 0.5,
}


def parameters_of(model):
    return [parameter.tolist() for parameter in model.parameters()]


def start_engine(model, data, changes=None, weights=(3, 1), **options):
    shared = dist.is_initialized() and dist.get_world_size() > 1
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), training_data=data,
                                config={**CONFIG, **(changes or {})}, **options,
                                **({"balance": "fixed", "weights": weights} if shared else {}))


def run_epochs(engine, loader, loss_of, epochs):
    for _ in range(epochs):
        for batch in loader:
            engine.backward(loss_of(engine, batch))
            engine.step()


def logits_loss(model, ids):
    import deepspeed_gpt2 as example
    return example.loss_of(model(ids).logits, ids)


def plain(epochs):
    """The same training without an engine: torch's AdamW, clipping and the schedule's formula."""
    import deepspeed_gpt2 as example
    model = example.make_model().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    sampler = bimetal.BalancedBatchSampler(SAMPLES, BATCH // 2)
    loader = DataLoader(example.make_data(SAMPLES), batch_sampler=sampler)
    batches, steps = 0, 0
    for _ in range(epochs):
        for ids in loader:
            (logits_loss(model, ids) / 2).backward()
            sampler.finish_step()
            batches += 1
            if batches % 2 != 0:
                continue
            done = steps - 1  # DeepSpeed's schedulers lag
            rate = 0 if done < 0 else RATE * done / 3 if done < 3 else RATE * (12 - done) / 9
            optimizer.param_groups[0]["lr"] = rate
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    return list(model.parameters())


def own_loss(equal, adapted=""):
    """GPT-2's own loss over sequences whose labels are unequal, of the model or of PEFT's adapter in it."""
    import deepspeed_gpt2 as example
    data = example.make_data(SAMPLES)
    if adapted == "prompt":  # leaves room for its tokens
        data = [ids[:-3] for ids in data]
    labels = [ids.clone() for ids in data]
    for number, row in enumerate(labels):
        row[:0 if equal else number % 15] = -100

    def loss_of(engine, batch):
        ids, wanted = batch
        return engine(input_ids=ids, labels=wanted).loss

    model = example.make_model()
    if adapted:
        from peft import LoraConfig, PromptTuningConfig, get_peft_model
        torch.manual_seed(0)
        prompt = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
        lora = LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM", init_lora_weights=False)
        model = get_peft_model(model, prompt if adapted == "prompt" else lora)
    engine, _, loader, _ = start_engine(model.double(), list(zip(data, labels, strict=True)))
    run_epochs(engine, loader, loss_of, 1)
    return parameters_of(engine.module)


def whole_parameters(engine):
    if engine.shards is None:
        return parameters_of(engine.module)
    state = engine.shards.sharded.state_dict(None)
    return [state[name].tolist() for name, _ in engine.module.named_parameters()]


def by_stage(stage, weights, shards, offload):
    """Two epochs at a stage of ZeRO; the states, and at stage 3 the parameters, of these ranks in a folder or not."""
    import deepspeed_gpt2 as example
    zero = {"stage": stage}
    if offload:
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": offload}
        if stage == 3:
            zero["offload_param"] = {"device": "nvme", "nvme_path": offload}
    engine, _, loader, _ = start_engine(example.make_model().double(), example.make_data(SAMPLES),
                                        {"zero_optimization": zero}, weights, shards=shards)
    run_epochs(engine, loader, logits_loss, 2)
    return whole_parameters(engine)


def gathered():
    """DeepSpeed's ways to look at parameters and to change them, at stage 3."""
    import deepspeed_gpt2 as example
    with deepspeed.zero.Init(config_dict_or_path=CONFIG):
        model = example.make_model()
    ranks.raises(RuntimeError, lambda: model.transformer.ln_f.weight.sum().item(), "its values are not there")
    engine, *_ = start_engine(model, example.make_data(SAMPLES), {"zero_optimization": {"stage": 3}})
    bias, norm = model.transformer.h[0].mlp.c_fc.bias, model.transformer.ln_f.weight
    with deepspeed.zero.GatheredParameters([bias, norm], modifier_rank=1):
        with torch.no_grad():
            bias.fill_(dist.get_rank() + 2)
    with deepspeed.zero.GatheredParameters(bias):
        found = bias.tolist()
    ranks.raises(RuntimeError, lambda: bias.sum().item(), "its values are not there")
    ranks.raises(bimetal.Error, engine.module.state_dict, "at stage 3", "deepspeed.zero.GatheredParameters")
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        assert engine.module.state_dict()["transformer.h.0.mlp.c_fc.bias"].tolist() == [3] * len(found)
    with torch.no_grad():
        assert engine(torch.zeros(1, 4, dtype=torch.int64)).logits.isfinite().all()
    return sorted(set(found))


def by_lamb():
    model = Line().double()
    engine, _, loader, _ = start_engine(model, torch.arange(64.0).view(-1, 1).expand(-1, 4).double() / 64, {
        "optimizer": {"type": "Lamb", "params": {"lr": 0.01}}, "gradient_clipping": 0,
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 2, "total_num_steps": "auto"}}},
        total_steps=4)
    run_epochs(engine, loader, lambda engine, x: engine(x).square().sum(1).mean(), 1)
    state = engine.optimizer.state_dict()["state"][0]
    return [model.factor.tolist(), float(state["step"]), engine.get_lr()]


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.factor * x


def overflows(stage):
    """Of 8 micro-batches one's loss is infinite, on rank 1 alone."""
    model = Line()
    engine, _, loader, _ = start_engine(
        model, torch.ones(64, 4), {"zero_optimization": {"stage": stage}, "gradient_accumulation_steps": 1,
                                   "train_batch_size": 8, "scheduler": None, "gradient_clipping": 0,
                                   "fp16": {"enabled": True, "hysteresis": 1, "initial_scale_power": 8}})
    for number, x in enumerate(loader):
        loss = engine(x).mean()
        if number == 3 and dist.get_rank() == 1:
            loss = loss * float("inf")
        before = model.factor.detach().clone()
        engine.backward(loss)
        engine.step()
        assert torch.equal(before, model.factor) == (number == 3), number
    return [engine.skipped_steps, engine.global_steps, engine.loss_scale, parameters_of(model)]


def mean_over_ranks():
    """A script's own loader: each rank has as many samples, and counts alike."""
    model = Line().double()
    engine, optimizer, loader, scheduler = deepspeed.initialize(
        model=model, config={"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": False}},
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    assert loader is None and scheduler is None and optimizer is engine.optimizer
    assert engine.train_batch_size() == 2 * dist.get_world_size()
    engine.backward((engine(torch.ones(2, 4, dtype=torch.float64)) * (1 + dist.get_rank())).sum(1).mean())
    engine.step()
    return model.factor.tolist()


needs_transformers = ranks.needs("transformers", "safetensors")


@needs_transformers
class Gpt2(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.reference = [parameter.detach() for parameter in plain(2)]

    def test_stages_of_zero_train_the_same(self):
        with tempfile.TemporaryDirectory() as folder:
            cases = [(0, [3, 1], "equal", ""), (1, [3, 1], [1, 2], ""), (2, [1, 0], [1, 0], ""), (3, [3, 1], [1, 3], ""),
                     (1, [1, 1], "memory", folder), (3, [2, 1], [0, 1], folder)]
            results = ranks.several(2, [(by_stage, *case) for case in cases] + [(gathered,)], timeout=300)
            self.assertEqual(os.listdir(folder), [])
        for of_rank in results:
            for case, parameters in zip(cases, of_rank[:-1], strict=True):
                self.assertLess(models.difference(parameters, self.reference), 1e-12, case)
            self.assertEqual(of_rank[-1], [3])

    def test_its_own_loss_counts_tokens(self):
        """Transformers computes it in float32, whatever the model's type."""
        cases = [(own_loss, True), (own_loss, False)]
        cases += [(own_loss, False, "lora"), (own_loss, False, "prompt")] if ranks.installed("peft") else []
        (expected,), results = (ranks.several(size, cases) for size in (1, 2))
        for of_rank in results:
            for case, parameters, one in zip(cases, of_rank, expected, strict=True):
                self.assertLess(models.difference(parameters, [torch.tensor(p, dtype=torch.float64) for p in one]), 1e-6, case)

    @unittest.skipUnless("BIMETAL" in os.environ, "BIMETAL is not the program")
    def test_the_example_runs_under_the_launcher(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([os.environ["BIMETAL"], "launch", "--num_gpus", "2", "--", sys.executable,
                                   str(EXAMPLES / "deepspeed_gpt2.py"), "--deepspeed", "--samples", "64", "--save", folder],
                                  capture_output=True, text=True, timeout=200)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.count("epoch 1: loss"), 1, done.stdout)
            self.assertEqual(pathlib.Path(folder, "latest").read_text(), "global_step4")


class Engine(unittest.TestCase):
    def test_all_ranks_skip_a_step_that_overflows_on_one(self):
        results = ranks.several(2, [(overflows, 0), (overflows, 2)])
        for plainly, in_shards in results:
            self.assertEqual(plainly[:3], [1, 8, 128.0])
            self.assertEqual(plainly, in_shards)
        self.assertEqual(results[0], results[1])

    def test_lamb_and_a_schedule_of_known_length(self):
        """On one device: 4 steps of 2 micro-batches."""
        results = ranks.on_ranks(2, by_lamb)
        self.assertEqual(results[0], results[1])
        factor, steps, rates = results[0]
        self.assertEqual(steps, 4)
        self.assertEqual(rates, [0.001 * (4 - 3) / (4 - 2)])
        self.assertEqual(ranks.on_ranks(1, by_lamb)[0][1:], [steps, rates])
        self.assertTrue(all(0.99 < part < 1 for part in factor), factor)

    def test_bfloat16_is_computed_in(self):
        torch.manual_seed(0)  # from some starts 4 steps are less than bfloat16 tells apart
        model = nn.Linear(4, 1)
        engine, _, loader, _ = start_engine(model, torch.ones(64, 4), {"bf16": {"enabled": True}})
        losses = []
        for x in loader:
            predicted = engine(x)
            self.assertEqual(predicted.dtype, torch.bfloat16)
            losses.append((predicted.float() - 3).square().mean())
            engine.backward(losses[-1])
            engine.step()
        self.assertEqual(model.weight.dtype, torch.float32)
        self.assertLess(losses[-1], losses[0])
        self.assertGreater(engine.get_global_grad_norm(), 0)
        engine.eval()
        self.assertEqual(engine(torch.ones(1, 4)).shape, (1, 1))

    def test_a_scripts_own_loader(self):
        for factor in ranks.on_ranks(2, mean_over_ranks):
            self.assertEqual(factor, [-0.5] * 4)

    def refused(self, changes, **options):
        model = Line()
        options = {"model_parameters": model.parameters(), **options}
        with self.assertRaises(bimetal.Error) as raised:
            deepspeed.initialize(model=model, config={**CONFIG, **changes}, **options)
        return raised.exception.code, str(raised.exception)

    def test_what_cannot_be_done_is_refused(self):
        code, text = self.refused({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})
        self.assertEqual(code, "unsupported")
        self.assertIn("take stage 1, 2 or 3", text)
        self.assertIn("needs stage 3", self.refused({"zero_optimization": {
            "stage": 2, "offload_param": {"device": "cpu"}}})[1])
        self.assertIn("did you mean 'optimizer'", self.refused({"optimiser": {}})[1])
        self.assertIn("do not agree", self.refused({"train_micro_batch_size_per_gpu": 5})[1])
        self.assertIn("whole tensors", self.refused({"optimizer": {"type": "Lamb"},
                                                     "zero_optimization": {"stage": 1}})[1])
        self.assertIn("leave one of them out",
                      self.refused({}, optimizer=torch.optim.SGD(Line().parameters(), lr=1.0))[1])
        self.assertIn("give the number", self.refused({"scheduler": {"type": "WarmupDecayLR", "params": {
            "total_num_steps": "auto"}}})[1])
        self.assertIn("no optimizer", self.refused({"optimizer": None, "scheduler": None})[1])
        with self.assertRaisesRegex(bimetal.Error, "no configuration"):
            deepspeed.initialize(model=Line())
        with self.assertRaisesRegex(bimetal.Error, "cannot read DeepSpeed's configuration /no/such"):
            deepspeed.initialize(model=Line(), config="/no/such")

    def test_keys_without_effect_are_warned_of(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = Line()
            deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                 config={**CONFIG, "steps_per_print": 5, "wall_clock_breakdown": True,
                                         "zero_optimization": {"stage": 0, "overlap_comm": True}})
        self.assertEqual([all(key in str(warning.message) for key in ("zero_optimization.overlap_comm", "wall_clock_breakdown"))
                          for warning in caught], [True])

    def test_a_micro_batch_is_a_maximum(self):
        model = Line()
        options = {"model": model, "model_parameters": model.parameters(), "training_data": torch.ones(64, 4)}
        sizes = {"train_batch_size": 24, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": None}
        engine, *_ = deepspeed.initialize(config={**CONFIG, **sizes}, **options)
        self.assertEqual((engine.train_batch_size(), engine.train_micro_batch_size_per_gpu(),
                          engine.gradient_accumulation_steps()), (24, 4, 6))


if __name__ == "__main__":
    ranks.main(globals())
