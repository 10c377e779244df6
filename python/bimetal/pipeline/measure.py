"""What each unit of a module takes on this rank's device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from bimetal._synchronize import synchronize
from bimetal.pipeline.chain import Chain

_SECONDS = 0.8  # in which a device that is granted a part of a processor has used that up


def unit_seconds(chain: Chain, loss_of: Callable[[], torch.Tensor]) -> list[float]:
    """Forward and backward of each unit of the whole module: means over passes. What they leave in gradients is removed.

    Args:
        loss_of: calls the module; its backward is measured, too.
    """
    device = next(chain.module.parameters()).device
    clock = _Clock(chain, device)
    kept = [(parameter, parameter.grad) for parameter in chain.module.parameters()]
    for parameter, _ in kept:
        parameter.grad = None
    try:
        with torch.random.fork_rng(devices=[]):
            clock.measure(loss_of)  # kernels are chosen, memory is fetched
            total, passes, began = [0.0] * len(chain.units), 0, time.perf_counter()
            while passes == 0 or time.perf_counter() - began < _SECONDS:
                total = [a + b for a, b in zip(total, clock.measure(loss_of), strict=True)]
                passes += 1
    finally:
        clock.remove()
        for parameter, gradient in kept:
            parameter.grad = gradient
    return [max(seconds / passes, 1e-9) for seconds in total]


class _Clock:
    """When blocks are called, and when the gradients of what goes between them arrive."""

    def __init__(self, chain: Chain, device: torch.device):
        self._chain, self._device = chain, device
        self._called: list[float] = []  # each block, and the end of the last one
        self._arrived: dict[int, float] = {}  # of the input of each block, and of the last one's output
        self._hooks = [block.register_forward_pre_hook(self._block_begins, with_kwargs=True) for block in chain.blocks]
        self._hooks.append(chain.blocks[-1].register_forward_hook(self._last_ends))

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def measure(self, loss_of: Callable[[], torch.Tensor]) -> list[float]:
        blocks, units = len(self._chain.blocks), len(self._chain.units)
        self._called, self._arrived = [], {}
        began = self._now()
        loss = loss_of()
        ended, called = self._now(), self._called[:blocks + 1]
        loss.backward()
        done = self._now()
        if len(called) <= blocks:  # the forward leaves blocks out
            return [(done - began) / units] * units
        behind = self._arrived.get(blocks, ended)
        seconds = [called[0] - began]
        for block in reversed(range(blocks)):
            missing = done if block == 0 and not self._chain.first else behind
            arrived = self._arrived.get(block, missing)
            seconds.insert(1, called[block + 1] - called[block] + arrived - behind)
            behind = arrived
        seconds[0] += done - behind
        seconds.append(ended - called[blocks] + self._arrived.get(blocks, ended) - ended)
        return seconds[0 if self._chain.first else 1:len(seconds) if self._chain.last else -1]

    def _block_begins(self, _: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        self._called.append(self._now())
        self._note(len(self._called) - 1, args[0] if args else next(iter(kwargs.values()), None))

    def _last_ends(self, _: torch.nn.Module, __: tuple, output: Any) -> None:
        self._called.append(self._now())
        self._note(len(self._chain.blocks), output[0] if isinstance(output, (tuple, list)) else output)

    def _note(self, number: int, value: Any) -> None:
        def arrive(_: torch.Tensor) -> None:
            self._arrived.setdefault(number, self._now())

        if isinstance(value, torch.Tensor) and value.requires_grad:
            value.register_hook(arrive)

    def _now(self) -> float:
        synchronize(self._device)
        return time.perf_counter()
