"""Our LossScaler decides as torch.amp.GradScaler does, step by step, over 10,000 steps with overflows.

LOSS_SCALER is the program that tells our decisions (tests/unit/precision/loss_scaler_decisions.cpp).
"""

import os
import random
import subprocess
import unittest

import torch

STEPS = 10_000
SETTINGS = {  # initial scale, growth, back-off, interval
    "usual": (65536.0, 2.0, 0.5, 2000),
    "eager": (65536.0, 2.0, 0.5, 20),
    "odd factors": (1000.0, 1.7, 0.3, 7),
}


def limits(interval, seed):
    """For each step the scale above which its gradients overflow: it moves as a training goes on."""
    chance = random.Random(seed)
    steps = []
    while len(steps) < STEPS:
        steps += [2 ** chance.uniform(5, 24)] * chance.randint(1, 4 * interval)
        steps += [16.0] * chance.choice([0, 1, 1, 2])  # a bad batch, whatever the scale
    return steps[:STEPS]


def torchs_decisions(settings, most):
    """Which steps overflow, the scale after each, and which changed the parameter: by torch's scaler."""
    initial, growth, back_off, interval = settings
    scaler = torch.amp.GradScaler("cpu", init_scale=initial, growth_factor=growth, backoff_factor=back_off,
                                  growth_interval=interval)
    parameter = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    overflows, scales, stepped = [], [], []
    for number, limit in enumerate(most):
        overflows.append(scaler.get_scale() > limit)
        optimizer.zero_grad()
        before = parameter.detach().clone()
        scaler.scale(parameter.sum()).backward()
        if overflows[-1]:
            parameter.grad[number % 3] = float("nan") if number % 2 else float("inf")
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        stepped.append(not torch.equal(parameter.detach(), before))
    return overflows, scales, stepped


def our_scales(settings, steps):
    lines = "".join(f"{int(overflow)}\n" for overflow in steps)
    done = subprocess.run([os.environ["LOSS_SCALER"], *map(str, settings)], input=lines, text=True,
                          capture_output=True, check=True, timeout=60)
    return [float(line) for line in done.stdout.split()]


class GradScaler(unittest.TestCase):
    def test_same_decisions(self):
        for seed, (name, settings) in enumerate(SETTINGS.items()):
            with self.subTest(name):
                steps, scales, stepped = torchs_decisions(settings, limits(settings[3], seed))
                self.assertGreater(min(scales), 1, "below our floor there is nothing to compare")
                changes = [b / a for a, b in zip(scales, scales[1:])]
                self.assertGreater(sum(change > 1 for change in changes), 1)
                self.assertGreater(sum(change < 1 for change in changes), 5)
                ours = our_scales(settings, steps)
                self.assertEqual(len(ours), STEPS)
                other = next((at for at in range(STEPS) if ours[at] != scales[at]), None)
                self.assertIsNone(other, other and (other, ours[other - 1:other + 2], scales[other - 1:other + 2]))
                self.assertTrue(all(did != overflow for did, overflow in zip(stepped, steps)))


if __name__ == "__main__":
    unittest.main()
