"""The package's back end, and what stands on it, with tensors on the device that BIMETAL_DEVICE names: cuda:0, mps, or cpu for a try.

Both ranks share that device, or one of them computes on the CPU. Each makes all checks, whatever others have found, so that one run on
a machine that is not there for long tells all: a check has a group of its own, and its findings and its time are printed.
"""

import datetime
import os
import pathlib
import sys
import time
import traceback
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))

import models  # noqa: E402
import package_calls  # noqa: E402
import package_extension  # noqa: E402
import package_training  # noqa: E402
import ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import bimetal  # noqa: E402

DEVICE = os.environ.get("BIMETAL_DEVICE", "")
DEADLINE_S = 120  # of a launch
CALLS = ["collectives", "shapes", "errors", "order", "threads"]
TRAININGS = ["ddp", "micro_batches", "unused_parameters", "hooks", "samples", "tokens", "scaler", "fsdp", "stages_of_torch", "saved"]
OF_EXTENSION = ["zero", "pipeline", "tensor_parts"]


def check_of(name):
    return next(getattr(module, name) for module in (package_calls, package_training, package_extension) if hasattr(module, name))


def has_double(device):
    try:
        return bool(torch.ones(1, dtype=torch.float64, device=device).item())
    except (RuntimeError, TypeError):  # Metal's, and some of Intel's
        return False


class Lab:
    """A check's tools: this rank's device, a group, and its findings so far."""

    def __init__(self, devices):
        self.devices, self.rank, self.size = devices, dist.get_rank(), dist.get_world_size()
        self.device = torch.device(devices[self.rank])
        self.alike = len(set(devices)) == 1
        self.double = all(has_double(name) for name in devices)
        self.real = torch.float64 if self.double else torch.float32
        self.solo = [dist.new_group([rank]) for rank in range(self.size)][self.rank]
        self.group, self.findings = None, []

    def make(self, name):
        return models.make(name).to(self.real)

    def same(self, got, expected, what, tolerance=0.0):
        """`tolerance` is relative to the largest value; without it every bit counts."""
        got, expected = got.detach().cpu(), expected.detach().cpu()
        if got.dtype != expected.dtype or got.shape != expected.shape:
            self.findings.append(f"{what}: {got.dtype} {list(got.shape)} instead of {expected.dtype} {list(expected.shape)}")
            return
        if torch.equal(got, expected):
            return
        distance = (got.double() - expected.double()).abs()
        wrong = ~(distance <= tolerance * max(expected.double().abs().max().item(), 1e-30)) if got.numel() else distance.bool()
        if wrong.any():
            at = wrong.flatten().nonzero()[0].item()
            self.findings.append(f"{what}: {int(wrong.sum())} of {got.numel()} values are wrong, by {distance.max().item():.3g} at most; "
                                 f"the first is [{at}], {got.flatten()[at].item()} instead of {expected.flatten()[at].item()}")

    def same_model(self, model, reference, what, tolerance=None):
        for (name, one), other in zip(model.named_parameters(), reference.parameters(), strict=True):
            self.same(one, other, f"{what}: {name}", tolerance or (1e-10 if self.double else 1e-4))


def run(devices, checks):
    """Each check's findings, why it was left out, and how long it took."""
    if devices[dist.get_rank()].startswith("cuda"):
        torch.cuda.set_device(devices[dist.get_rank()])
    lab, found = Lab(devices), {}
    nn.Conv2d(1, 1, 3, device=lab.device)(torch.ones(1, 1, 9, 9, device=lab.device)).sum().backward()  # which takes seconds, once
    dist.barrier()
    for name in checks:
        lab.findings, lab.group = [], dist.new_group(timeout=datetime.timedelta(seconds=package_calls.PATIENCE_S))
        began, left_out = time.monotonic(), ""
        try:
            check_of(name)(lab)
        except unittest.SkipTest as reason:
            left_out = str(reason)
        except BaseException:  # whatever it is, the others are worth a try
            lab.findings.append(traceback.format_exc())
        found[name] = {"findings": lab.findings[:12], "left out": left_out, "seconds": round(time.monotonic() - began, 1)}
        print(name, found[name]["seconds"], "s", left_out, *lab.findings[:12], sep="\n    ", flush=True)
    return found


@unittest.skipUnless(DEVICE, "BIMETAL_DEVICE names no device: cuda:0, mps, or cpu for a try")
class Package(unittest.TestCase):
    def all_find_nothing(self, devices, checks):
        began = time.monotonic()
        found = ranks.on_ranks(2, run, devices, checks, timeout=DEADLINE_S)
        print(f"ranks on {devices}: {time.monotonic() - began:.0f} s;", *(
            f"{name} {max(of_rank[name]['seconds'] for of_rank in found)}" for name in checks), file=sys.stderr)
        left_out = {name: found[0][name]["left out"] for name in checks if found[0][name]["left out"]}
        for name, why in left_out.items():
            print(f"  left out: {name}, since {why}", file=sys.stderr)
        wrong = [f"{name}, rank {rank} on {devices[rank]}:\n" + "\n".join(found[rank][name]["findings"])
                 for name in checks for rank in range(2) if found[rank][name]["findings"]]
        if wrong:
            self.fail("\n".join(["", *wrong]))
        if len(left_out) == len(checks):
            self.skipTest("all checks are left out")

    def test_two_ranks_on_the_device(self):
        self.all_find_nothing([DEVICE, DEVICE], CALLS + TRAININGS + OF_EXTENSION)

    def test_a_rank_on_the_device_and_one_on_the_cpu(self):
        self.all_find_nothing([DEVICE, "cpu"], CALLS + TRAININGS + OF_EXTENSION)

    def test_a_rank_on_the_cpu_and_one_on_the_device(self):
        self.all_find_nothing(["cpu", DEVICE], TRAININGS + OF_EXTENSION)

    @unittest.skipUnless(DEVICE.startswith("cuda"), "only CUDA's allocator can be told to have less")
    def test_a_device_without_memory(self):
        self.all_find_nothing([DEVICE, "cpu"], ["too_little_memory"])


if __name__ == "__main__":
    ranks.main(globals())
