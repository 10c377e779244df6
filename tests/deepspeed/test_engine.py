"""DeepSpeed's own engine, ZeRO-2 and ZeRO-3, on process groups of the backend, compared with one process."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

os.environ.setdefault("DS_ACCELERATOR", "cpu")
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python"))

import models  # noqa: E402
import ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

STEPS, BATCH, ACCUMULATED = 4, 4, 2


def make_model():
    torch.manual_seed(5)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3)), nn.Linear(16, 3))


def batch_of(number, rank):
    generator = torch.Generator().manual_seed(100 * number + rank)
    return torch.randn(BATCH, 16, generator=generator), torch.randint(0, 3, (BATCH,), generator=generator)


def by_deepspeed(stages):
    import deepspeed

    import bimetal
    # An all-reduce in shared memory of DeepSpeed's own, which it would compile first and use in the backend's place.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    found = []
    for stage in stages:
        model = make_model()
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01), config={
                "train_batch_size": BATCH * ACCUMULATED * dist.get_world_size(),
                "gradient_accumulation_steps": ACCUMULATED, "train_micro_batch_size_per_gpu": BATCH,
                "gradient_clipping": 0.5,
                "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
                "zero_force_ds_cpu_optimizer": False})
        for number in range(STEPS * ACCUMULATED):
            inputs, targets = batch_of(number, dist.get_rank())
            engine.backward(nn.functional.cross_entropy(engine(inputs), targets))
            engine.step()
        with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
            found.append([parameter.detach().float().tolist() for parameter in model.parameters()])
    calls = str(bimetal.flight_recorder())
    assert "reduce" in calls and "gather" in calls, calls  # it has gone by the backend
    return found


def plainly(ranks_in_all):
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        for part in range(ACCUMULATED):
            for rank in range(ranks_in_all):
                inputs, targets = batch_of(step * ACCUMULATED + part, rank)
                (nn.functional.cross_entropy(model(inputs), targets) / (ACCUMULATED * ranks_in_all)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().double() for parameter in model.parameters()]


def engine_of(stage, **config):
    import deepspeed
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    model = make_model()
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01), config={
            "train_batch_size": BATCH * dist.get_world_size(), "train_micro_batch_size_per_gpu": BATCH,
            "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 3, "warmup_type": "linear"}},
            "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
            **config})
    return engine, model


def state_of(engine, model):
    """Whole tensors, by parameter: its value, and what the optimizer has learnt."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    return {name: {"param": safe_get_full_fp32_param(parameter).tolist(),
                   **{field: safe_get_full_optimizer_state(parameter, field).tolist() for field in ("exp_avg", "exp_avg_sq")}}
            for name, parameter in model.named_parameters()}


def steps_of(engine, numbers):
    for number in numbers:
        inputs, targets = batch_of(number, dist.get_rank())
        engine.backward(nn.functional.cross_entropy(engine(inputs), targets))
        engine.step()


def saved_by_engine(folder, stage):
    """The engine's state after some steps, and after as many again."""
    engine, model = engine_of(stage)
    steps_of(engine, range(STEPS))
    engine.save_checkpoint(folder)
    middle = state_of(engine, model)
    steps_of(engine, range(STEPS, 2 * STEPS))
    return [middle, state_of(engine, model)]


def continued_by_engine(folder, stage):
    engine, model = engine_of(stage, checkpoint={"load_universal": True})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data.zero_()
    engine.load_checkpoint(folder)
    begun = [engine.global_steps, engine.get_lr()]
    steps_of(engine, range(STEPS, 2 * STEPS))
    return [begun, state_of(engine, model)]


class Engine(unittest.TestCase):
    def test_zero_2_and_3_train_what_one_process_does(self):
        reference = plainly(2)
        for of_rank in ranks.on_ranks(2, by_deepspeed, [2, 3], timeout=300):
            for stage, parameters in zip((2, 3), of_rank, strict=True):
                self.assertLess(models.difference(parameters, reference), 1e-4, stage)

    def test_universal_checkpoints_come_in_and_go_out(self):
        """DeepSpeed saves at one stage, and its own tool makes that universal; Bimetal takes it, and has what the engine had;
        Bimetal writes it, and engines at every stage go on with it as the one that never stopped."""
        from bimetal.checkpoints import universal, whole
        for stage in (2, 3):
            with self.subTest(stage=stage), tempfile.TemporaryDirectory() as scratch:
                folder = pathlib.Path(scratch)
                middle, end = ranks.on_ranks(2, saved_by_engine, str(folder), stage, timeout=300)[0]
                tag = (folder / "latest").read_text()
                words = ["--inject_missing_state"] if stage < 3 else []
                subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", folder / tag,
                                "--output_folder", folder / f"{tag}_universal", *words], check=True, capture_output=True)
                self.command("import", folder, "--out", folder / "ours")
                ours = whole.read(folder / "ours")
                self.assertEqual((ours.kind, ours.step), ("adamw", STEPS))
                for name, fields in middle.items():
                    for field, value in fields.items():
                        found = ours.model[name] if field == "param" else ours.optimizer[name][field]
                        self.assertTrue(torch.equal(found, torch.tensor(value)), (name, field))
                self.command("export", folder / "ours", "--out", folder / "theirs", "--format", "universal")
                for again in (1, 2, 3):
                    begun, found = ranks.on_ranks(2, continued_by_engine, str(folder / "theirs"), again, timeout=300)[0]
                    self.assertEqual(begun[0], STEPS)
                    self.assertAlmostEqual(begun[1][0], 0.01)  # the schedule has come to its end, too
                    for name, fields in end.items():
                        for field, value in fields.items():
                            difference = (torch.tensor(found[name][field]) - torch.tensor(value)).abs().max()
                            self.assertLess(difference, 1e-5, (again, name, field))
                self.assertEqual(universal.read(folder / "theirs", 1).step, STEPS)

    def command(self, *words):
        subprocess.run([sys.executable, "-m", "bimetal.checkpoints", *map(str, words)], check=True)


if __name__ == "__main__":
    ranks.main(globals())
