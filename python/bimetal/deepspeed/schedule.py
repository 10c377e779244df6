"""The learning rate as DeepSpeed's schedulers have it."""

from __future__ import annotations

import torch

from bimetal.deepspeed.config import Config


class Schedule:
    """WarmupLR, WarmupDecayLR or WarmupCosineLR, as the configuration says, for all groups of an optimizer.

    The engine calls ``step()`` after each update; before the first one ``last_batch_iteration`` is -1.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, config: Config):
        self.optimizer = optimizer
        self._config = config
        self.last_batch_iteration = -1
        self._apply()

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Goes on to the next iteration's rate, or to that of the one given."""
        self.last_batch_iteration = (self.last_batch_iteration + 1 if last_batch_iteration is None
                                     else last_batch_iteration)
        self._apply()

    def get_lr(self) -> list[float]:
        """The rate of each group."""
        rate = self._config.core.learning_rate(self.last_batch_iteration + 2)
        return [rate] * len(self.optimizer.param_groups)

    def get_last_lr(self) -> list[float]:
        """The rates that the optimizer has now."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, int]:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step(state["last_batch_iteration"])

    def _apply(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = rate
