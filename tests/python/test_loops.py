"""Loops of many kinds under every way to train in Python, on two unlike ranks: the parameters are those of one process in float64,
or it is an error that says what to do. The table REFUSED has the expected outcomes; there is no third one."""

import dataclasses
import os
import tempfile
import unittest
import warnings
from collections.abc import Callable

import models
import ranks
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import bimetal

SAMPLES, BATCH, EPOCHS, SEED, SAVED_AT = 20, 8, 2, 5, 4  # three steps an epoch, the last one of 4 samples
UNEQUAL = {"balance": "fixed", "weights": [3, 1], "seed": SEED}
X = torch.randn(SAMPLES, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 4, (SAMPLES,), generator=torch.Generator().manual_seed(2))
DATA = TensorDataset(X, Y)


class Out:
    """An object whose tensors nobody finds."""

    def __init__(self, logits):
        self.logits = logits


class Net(nn.Module):
    def __init__(self, seed, hides):
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.PReLU(), nn.Linear(8, 4)).double()
        self.hides, self.may_freeze = hides, [self.net[0].bias, *self.net[1].parameters()]

    def encode(self, x):
        return self.net(x)

    def forward(self, x):
        return Out(self.net(x)) if self.hides else self.net(x)


# ---- loops: the loss of modules, which may stand in wrappers, and what else a loop does ---------------------------------


def one(x, y, a):
    return cross_entropy(a(x), y)


def two(x, y, a, b):
    return cross_entropy(b(a(x)), y)


def other_method(x, y, a):
    return cross_entropy(getattr(a, "module", a).encode(x), y)


def of_object(x, y, a):
    return cross_entropy(a(x).logits, y)


def with_penalty(x, y, a):
    return cross_entropy(a(x), y) + 0.1 * sum(p.square().sum() for p in a.parameters())


def of_input_gradients(x, y, a):
    x = x.clone().requires_grad_()
    logits = a(x)
    (found,) = torch.autograd.grad(logits.sum(), x, create_graph=True)
    return cross_entropy(logits, y) + found.square().sum(1).mean()


@dataclasses.dataclass(frozen=True)
class Loop:
    """frozen_in: the epoch in which some parameters are; resumes: after SAVED_AT steps new objects go on from a checkpoint."""

    loss: Callable = one
    frozen_in: int | None = None
    clips: bool = False
    resumes: bool = False

    def nets(self):
        made = [Net(seed, self.loss is of_object) for seed in range(2 if self.loss is two else 1)]
        self.freeze(made[0], 0)
        return made

    def freeze(self, net, epoch):
        if self.frozen_in is not None:
            for parameter in net.may_freeze:
                parameter.requires_grad_(epoch != self.frozen_in)

    def clip(self, module):
        if self.clips:
            nn.utils.clip_grad_norm_(module.parameters(), 0.05)


LOOPS = {"one": Loop(), "two": Loop(two), "method": Loop(other_method), "object": Loop(of_object), "penalty": Loop(with_penalty),
         "grad": Loop(of_input_gradients), "unfrozen": Loop(frozen_in=0), "frozen": Loop(frozen_in=1), "clip": Loop(clips=True),
         "resume": Loop(resumes=True)}


# ---- strategies ----------------------------------------------------------------------------------------------------------


class Alone:
    """One process, or several that get the same batches."""

    def __init__(self, loop, again=False):
        """`again`: of what goes on from a checkpoint, which is in other shards, parts and stages."""
        self.loop, self.again, self.nets = loop, again, loop.nets()
        self.optimizers = [torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.5) for net in self.nets]
        self.modules, self.step, self.epoch = self.nets, 0, 0
        self.wrap()

    def wrap(self):
        pass

    def batches(self):
        return [(X[batch], Y[batch]) for batch in ORDER[self.epoch][self.step % len(ORDER[0]):]]

    def train(self, stop=None):
        for self.epoch in range(self.epoch, EPOCHS):
            self.loop.freeze(self.nets[0], self.epoch)
            for x, y in self.batches():
                self.compute(x, y)
                self.update()
                self.step += 1
                if self.step == stop:
                    return

    def compute(self, x, y):
        self.backward(self.loop.loss(x, y, *self.modules))
        self.loop.clip(self.modules[0])

    def backward(self, loss):
        loss.backward()

    def update(self):
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def states(self):
        return [net.state_dict() for net in self.nets]

    def save(self):
        self.saved = [self.states(), [optimizer.state_dict() for optimizer in self.optimizers]]

    def load(self, before):
        for net, state in zip(self.nets, before.saved[0], strict=True):
            net.load_state_dict(state)
        for optimizer, state in zip(self.optimizers, before.saved[1], strict=True):
            optimizer.load_state_dict(state)


class Ddp(Alone):
    def wrap(self):
        self.sampler = bimetal.BalancedBatchSampler(SAMPLES, BATCH, **UNEQUAL)
        self.loader = DataLoader(DATA, batch_sampler=self.sampler)
        self.modules = [DistributedDataParallel(net) for net in self.nets]
        for module in self.modules:
            module.register_comm_hook(self.sampler, bimetal.sample_exact_hook)

    def batches(self):
        self.sampler.set_epoch(self.epoch)
        return self.loader

    def save(self):
        super().save()
        self.saved.append(self.sampler.state_dict())

    def load(self, before):
        super().load(before)
        self.sampler.load_state_dict(before.saved[2])


class Zero(Ddp):
    level = 1

    def wrap(self):
        self.sampler = bimetal.BalancedBatchSampler(SAMPLES, BATCH, **UNEQUAL)
        self.loader = DataLoader(DATA, batch_sampler=self.sampler)
        self.shards = [bimetal.zero.shard(net, optimizer, self.level, shards=[2, 1] if self.again else [1, 2], sampler=self.sampler)
                       for net, optimizer in zip(self.nets, self.optimizers, strict=True)]

    def states(self):
        return [sharded.state_dict(None) for sharded in self.shards]

    def save(self):
        if self.level == 2:
            self.saved = [self.states(), self.shards[0].optimizer_state_dict(None), self.sampler.state_dict()]
        else:
            self.shards[0].save_checkpoint(self.folder, self.sampler.state_dict())

    def load(self, before):
        if self.level == 2:
            self.shards[0].load_state_dict(before.saved[0][0])
            self.shards[0].load_optimizer_state_dict(before.saved[1])
        self.sampler.load_state_dict(before.saved[2] if self.level == 2 else self.shards[0].load_checkpoint(self.folder))


class Tensor(Alone):
    def wrap(self):
        plan = {"net.0": "columns", "net.2": "rows", "net.1": "inside"}
        self.cut = [bimetal.tensor.parts(net, optimizer, plan=plan, weights=[1, 3] if self.again else [3, 1])
                    for net, optimizer in zip(self.nets, self.optimizers, strict=True)]

    def states(self):
        return [cut.state_dict(None) for cut in self.cut]

    def save(self):
        self.saved = [self.states(), self.cut[0].optimizer_state_dict(None)]

    def load(self, before):
        self.cut[0].load_state_dict(before.saved[0][0])
        self.cut[0].load_optimizer_state_dict(before.saved[1])


class Pipeline(Tensor):
    def wrap(self):
        def loss_sum(outputs, targets):
            logits = outputs.logits if self.loop.loss is of_object else outputs
            penalty = sum(p.square().sum() for p in self.nets[0].parameters()) if self.loop.loss is with_penalty else 0.0
            return cross_entropy(logits, targets, reduction="sum") + 0.1 * len(targets) * penalty

        self.cut = [bimetal.pipeline.stages(self.nets[0], self.optimizers[0], cuts=[2 if self.again else 1], loss_sum=loss_sum)]

    def compute(self, x, y):
        if self.loop.loss is other_method:
            self.nets[0].encode(x)
        self.cut[0].forward_backward(x, targets=y)
        self.loop.clip(self.nets[0])


class DeepSpeed(Ddp):
    stage = 0

    def wrap(self):
        from bimetal import deepspeed

        config = {"train_batch_size": BATCH, "gradient_accumulation_steps": 1, "zero_optimization": {"stage": self.stage}}
        made = [deepspeed.initialize(model=net, optimizer=optimizer, config=config, training_data=None if number else DATA, **UNEQUAL)
                for number, (net, optimizer) in enumerate(zip(self.nets, self.optimizers, strict=True))]
        self.modules = [engine for engine, *_ in made]
        self.loader, self.sampler = made[0][2], made[0][2].batch_sampler

    def backward(self, loss):
        self.modules[-1].backward(loss)

    def update(self):
        for engine in self.modules:
            engine.step()

    def states(self):
        return [engine.module.state_dict() if self.stage == 0 else engine.shards.sharded.state_dict(None) for engine in self.modules]

    def save(self):
        self.modules[0].save_checkpoint(self.folder)

    def load(self, before):
        self.modules[0].load_checkpoint(self.folder)


class Accelerate(Ddp):
    def wrap(self):
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, GradientState

        from bimetal.hf import balanced

        AcceleratorState._reset_state(reset_partial_state=True)  # of the loop before
        GradientState._reset_state()
        self.accelerator = balanced(Accelerator)(cpu=True)
        self.accelerator.sampler_options = UNEQUAL
        count = len(self.nets)
        *prepared, self.loader = self.accelerator.prepare(
            *self.nets, *self.optimizers, DataLoader(DATA, batch_size=BATCH // 2, shuffle=True))
        self.modules, self.optimizers, self.sampler = prepared[:count], prepared[count:], self.accelerator.sampler

    def backward(self, loss):
        self.accelerator.backward(loss)

    def save(self):
        self.accelerator.save_state(self.folder)

    def load(self, before):
        self.accelerator.load_state(self.folder)


class Lightning(Alone):
    def train(self, stop=None):
        import lightning

        from bimetal.lightning import BalancedStrategy

        way, loop = self, self.loop

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.nets = nn.ModuleList(way.nets)

            def training_step(self, batch, _):
                return loop.loss(*batch, *self.nets)

            def on_train_epoch_start(self):
                loop.freeze(self.nets[0], self.current_epoch)

            def on_before_optimizer_step(self, _):
                loop.clip(self.nets[0])

            def on_train_batch_end(self, *_):
                if self.trainer.global_step == SAVED_AT:
                    self.trainer.save_checkpoint(way.checkpoint)

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.5)

        lightning.Trainer(accelerator="cpu", devices=2, strategy=BalancedStrategy(UNEQUAL), max_epochs=EPOCHS, max_steps=stop or -1,
                          precision="64-true", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                          enable_model_summary=False).fit(
            Module(), DataLoader(DATA, batch_size=BATCH // 2, shuffle=True), ckpt_path=self.checkpoint if self.loaded else None)

    loaded = False

    @property
    def checkpoint(self):
        return os.path.join(self.folder, "4.ckpt")

    def save(self):
        pass

    def load(self, before):
        self.loaded = True


class HuggingFace(Lightning):
    def train(self, stop=None):
        from transformers import Trainer, TrainerCallback, TrainingArguments

        from bimetal.hf import balanced

        loop, nets = self.loop, nn.ModuleList(self.nets)

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.nets = nets

            def forward(self, x, labels):
                return {"loss": loop.loss(x, labels, *nets)}

        class Own(Trainer):
            def compute_loss(self, model, inputs, *arguments, **options):
                if loop.loss is other_method:  # beside the model's forward
                    return loop.loss(inputs["x"], inputs["labels"], *nets)
                return super().compute_loss(model, inputs, *arguments, **options)

        class Hooks(TrainerCallback):
            def on_epoch_begin(self, _, state, *__, **___):
                loop.freeze(nets[0], round(state.epoch))

            def on_pre_optimizer_step(self, *_, **__):
                loop.clip(nets[0])

        args = TrainingArguments(self.folder, per_device_train_batch_size=BATCH // 2, max_grad_norm=0, report_to=[], disable_tqdm=True,
                                 save_strategy="steps" if loop.resumes else "no", save_steps=SAVED_AT, data_seed=SEED, use_cpu=True,
                                 max_steps=stop or EPOCHS * len(ORDER[0]), remove_unused_columns=False)
        optimizer = torch.optim.SGD(nets.parameters(), lr=0.3, momentum=0.5)
        trainer = balanced(Own)(model=Model(), args=args, train_dataset=[{"x": x, "labels": y} for x, y in DATA], callbacks=[Hooks()],
                                optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)))
        trainer.sampler_options.update({name: UNEQUAL[name] for name in ("balance", "weights")})
        trainer.train(resume_from_checkpoint=os.path.join(self.folder, f"checkpoint-{SAVED_AT}") if self.loaded else None)


def at(kind, **number):
    return type(kind.__name__, (kind,), number)


STRATEGIES = {"ddp": Ddp, **{f"zero{level}": at(Zero, level=level) for level in (1, 2, 3)}, "tensor": Tensor, "pipeline": Pipeline,
              **{f"deepspeed{stage}": at(DeepSpeed, stage=stage) for stage in range(4)}, "accelerate": Accelerate,
              "lightning": Lightning, "hf": HuggingFace}
NEEDS = {"accelerate": "accelerate", "lightning": "lightning", "hf": "transformers"}

# A part of the error's text. All else is equal to one process.
_CLIP, _FROZEN = "clip_grad_norm_(", "requires a gradient, but it was frozen"
_BESIDE, _FROZEN_SINCE = "did not come from a call of the model that DDP wraps", " were frozen since DistributedDataParallel was made"
_TWO, _NOT_THERE = "two models that DistributedDataParallel wraps", "is used while its values are not there"
_OF_DDP = {"two": _TWO, "method": _BESIDE, "unfrozen": _FROZEN, "frozen": f"net.0.bias, net.1.weight{_FROZEN_SINCE}"}
_AT_LEVEL_3 = {"method": "net.0 is called by itself", "penalty": f"of unit net.0 {_NOT_THERE}", "grad": _NOT_THERE}
_OF_ENGINES = {"two": "by a backward that is not its own", "unfrozen": _FROZEN}
_CLIPPED = {"clip": "gradient_clipping"}
REFUSED = {
    "ddp": _OF_DDP, "accelerate": _OF_DDP, "tensor": {"clip": _CLIP},
    **{f"zero{level}": {"unfrozen": _FROZEN, "clip": _CLIP} | (_AT_LEVEL_3 if level == 3 else {}) for level in (1, 2, 3)},
    "pipeline": {"method": "on another stage", "penalty": "loss_sum uses parameters beside", "unfrozen": _FROZEN, "clip": _CLIP},
    "deepspeed0": {**_OF_ENGINES, "method": "call the engine itself", "frozen": "frozen since initialize()"},
    "deepspeed1": {**_OF_ENGINES, **_CLIPPED}, "deepspeed2": {**_OF_ENGINES, **_CLIPPED},
    "deepspeed3": {**_OF_ENGINES, **_CLIPPED, **_AT_LEVEL_3},
    "lightning": {"unfrozen": _FROZEN, "frozen": _FROZEN_SINCE},
    "hf": {"method": "compute_loss is to call the model", "unfrozen": _FROZEN},
}
# forward_backward() returns a loss without a graph: a second module is a stage of the same, and inputs have no gradients.
WITHOUT_MEANING = {("pipeline", "two"), ("pipeline", "grad")}
A_ROW_OF_EACH = {"ddp": "unfrozen", "zero1": "resume", "zero2": "penalty", "zero3": "two", "tensor": "grad", "pipeline": "penalty",
                 "deepspeed0": "unfrozen", "deepspeed1": "method", "deepspeed2": "object", "deepspeed3": "clip", "accelerate": "two",
                 "lightning": "grad", "hf": "grad"}


def order_of_one_process():
    sampler = bimetal.BalancedBatchSampler(SAMPLES, BATCH, seed=SEED)
    return [[(batch, sampler.finish_step())[0] for batch in sampler] for _ in range(EPOCHS)]


ORDER = order_of_one_process()  # before there is a group


def trained(kind, loop, folder):
    way = kind(loop)
    way.folder = folder
    way.train(SAVED_AT if loop.resumes else None)
    if loop.resumes:
        way.save()
        before, way = way, kind(loop, again=True)
        way.folder = folder
        way.load(before)
        way.step, way.epoch = SAVED_AT, SAVED_AT // len(ORDER[0])
        way.train()
    return [value.tolist() for state in way.states() for value in state.values()]


def outcomes(rows, folder):
    """For each strategy and loop the parameters, or the error's text."""
    warnings.simplefilter("ignore")
    found = []
    for strategy, name in rows:
        try:
            found.append(trained(STRATEGIES[strategy], LOOPS[name], os.path.join(folder, strategy)))
        except (RuntimeError, ValueError) as error:
            found.append(str(error))
    return found


def can_be_tried(strategy):
    return strategy not in NEEDS or ranks.installed(NEEDS[strategy])


class Loops(unittest.TestCase):
    def check(self, rows):
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory(prefix="bimetal-test-") as folder:
            results = ranks.on_ranks(2, outcomes, rows, folder)
        for (strategy, name), of_ranks in zip(rows, zip(*results, strict=True), strict=True):
            with self.subTest(f"{strategy}, {name}"):
                phrase = REFUSED.get(strategy, {}).get(name)
                if phrase is not None:
                    self.assertTrue(all(isinstance(found, str) for found in of_ranks), "it is to be refused")
                    self.assertTrue(any(phrase in found for found in of_ranks), of_ranks)
                    continue
                unbroken = dataclasses.replace(LOOPS[name], resumes=False)
                expected = [torch.tensor(values, dtype=torch.float64) for values in trained(Alone, unbroken, "")]
                for found in of_ranks:
                    self.assertIsInstance(found, list, found)
                    self.assertLess(models.difference(found, expected), 1e-10)

    def test_a_row_of_each(self):
        self.check([(strategy, name) for strategy, name in A_ROW_OF_EACH.items() if can_be_tried(strategy)])


def test_of(strategy):
    @unittest.skipUnless(can_be_tried(strategy), f"{NEEDS.get(strategy)} is not installed")
    def test(self):
        self.check([(strategy, name) for name in LOOPS if (strategy, name) not in WITHOUT_MEANING])

    return test


for _name in STRATEGIES:
    setattr(Loops, f"test_{_name}", test_of(_name))


if __name__ == "__main__":
    ranks.main(globals())
