"""This library's own optimizers as torch's: LAMB, and Adam whose state is elsewhere than its parameters."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch

from bimetal import _C
from bimetal._errors import error
from bimetal._torch_check import require_torch_library

State = dict[str, Any]


class CoreOptimizer(torch.optim.Optimizer):
    """Adam, AdamW or LAMB of the C++ core, with the numbers and the state of torch's Adam.

    Args:
        params: float32 or float64 parameters, or groups of them, which may have a ``lr`` and ``weight_decay`` of their
            own. After the first step only ``lr`` may change.
        kind: "adamw", "adam", or "lamb" (You et al., 2020; whole tensors only, so that it cannot be in shards).
        folder: of "adam" and "adamw": the moments live in a file there, which has no name and goes with this process;
            those of 8 MiB at a time are read, stepped and written. Empty: in the host's memory, for parameters of any
            device.

    Raises:
        ImportError: without the torch library; it says what to install.
        bimetal.Error: ``invalid_argument`` for an unknown kind and for a folder that is none, ``system`` for a disk
            that has no room. With the first step.
    """

    def __init__(self, params: Iterable, kind: str = "adamw", lr: float = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0,
                 folder: str | os.PathLike = ""):
        require_torch_library("bimetal.zero.CoreOptimizer()")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.kind = kind
        self.by_element = kind != "lamb"
        self._folder = os.fspath(folder)
        self._cores: list[_C.CoreOptimizer | None] | None = None  # of each group; None for one of no parameters

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        if closure is not None:
            raise error("this optimizer's step takes no closure", "unsupported")
        for core, group in zip(self._made(), self.param_groups, strict=True):
            if core is not None:
                core.set_learning_rate(group["lr"])
                core.step()

    def kept_states(self) -> dict[torch.Tensor, State]:
        """The state of each parameter that has been stepped: step, exp_avg, exp_avg_sq, as torch's Adam has them. Those
        on a disk are views of the file."""
        if self._cores is None:
            return dict(self.state)
        kept = {}
        for core, group in zip(self._cores, self.param_groups, strict=True):
            for parameter, state in zip(group["params"], core.states() if core is not None else [], strict=True):
                if state is not None:
                    steps, mean, square = state
                    kept[parameter] = {"step": torch.tensor(float(steps)), "exp_avg": mean, "exp_avg_sq": square}
        return kept

    def put_states(self, states: dict[torch.Tensor, State]) -> None:
        """Goes on with these, and with none where there is none."""
        self.state.clear()
        for core, group in zip(self._made(), self.param_groups, strict=True):
            if core is not None:
                core.set_states([_as_core_has(states.get(parameter)) for parameter in group["params"]])

    def state_dict(self) -> dict[str, Any]:
        own, self.state = self.state, self.kept_states()
        try:
            return super().state_dict()
        finally:
            self.state = own

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.put_states(dict(self.state))

    def _made(self) -> list[_C.CoreOptimizer | None]:
        """With the first step, since shard() changes the parameters before."""
        if self._cores is None:
            before = dict(self.state)
            self._cores = [self._make(group) if group["params"] else None for group in self.param_groups]
            if before:
                self.put_states(before)
        return self._cores

    def _make(self, group: dict[str, Any]) -> _C.CoreOptimizer:
        return _C.CoreOptimizer(self.kind, group["params"], group["lr"], tuple(group["betas"]), group["eps"],
                                group["weight_decay"], self._folder)


def _as_core_has(state: State | None) -> tuple[int, torch.Tensor, torch.Tensor] | None:
    return (int(state["step"]), state["exp_avg"], state["exp_avg_sq"]) if state else None
