"""DeepSpeed's configuration and learning rates, read by the same C++ as for ``bimetal train --deepspeed``."""

from __future__ import annotations

import json
import os
import warnings
from typing import Any

import torch

from bimetal import _C
from bimetal._errors import error


class Config:
    """The settings of a configuration.

    Args:
        source: the configuration as a dict, or the path of its file.
        ranks: of the job.
        learning_rate: of the optimizer that the script has made; it counts if the configuration names none.
        tell: whether this rank warns of keys without effect.
        total_steps: of the training, for a schedule whose ``total_num_steps`` is "auto"; None: not known.

    Raises:
        bimetal.Error: ``invalid_argument`` for a configuration that cannot be read, ``unsupported`` for settings that a
            loop in Python cannot follow.
    """

    def __init__(self, source: dict[str, Any] | str | os.PathLike, ranks: int, learning_rate: float, tell: bool,
                 total_steps: int | None = None):
        text, origin = _read(source)
        self.core = _C.DeepSpeedConfig(text, origin, ranks, learning_rate)
        job = json.loads(self.core.job)
        self.train = job["train"]
        self.zero = job["zero"]
        self.level: int = self.core.zero_level
        self.bucket_mb = job["parallel"]["bucket_mb"]
        if tell and self.core.notices:
            warnings.warn("\n".join(self.core.notices), stacklevel=3)
        self._require_possible(origin)
        self._set_length(origin, total_steps)
        self._set_batches(origin, ranks)

    def _require_possible(self, origin: str) -> None:
        offloads = [self.zero["offload_optimizer"], self.zero["offload_parameters"]]
        if self.level == 0 and offloads != ["none", "none"]:
            raise error(f"{origin}: zero_optimization: at stage 0 nothing is offloaded: take stage 1, 2 or 3",
                        "unsupported")
        if self.level < 3 and offloads[1] != "none":
            raise error(f"{origin}: zero_optimization.offload_param needs stage 3: below it every rank holds all "
                        "parameters", "unsupported")
        if self.level > 0 and self.train["optimizer"] == "lamb" and self.core.optimizer:
            raise error(f"{origin}: optimizer.type \"Lamb\" needs whole tensors: take stage 0, or AdamW", "unsupported")
        if offloads[0] != "none" and self.core.optimizer and self.train["optimizer"] not in ("adam", "adamw"):
            raise error(f"{origin}: zero_optimization.offload_optimizer goes with Adam and AdamW alone", "unsupported")

    def _set_length(self, origin: str, total_steps: int | None) -> None:
        if not self.core.scheduler or self.train["schedule"] == "constant" or self.train["decay_steps"] > 0:
            return
        if total_steps is None:
            raise error(f"{origin}: scheduler.params.total_num_steps is \"auto\", but how many steps a loop takes is "
                        "not known beforehand: give the number, or initialize(total_steps=…)", "invalid_argument")
        self.core.set_total_steps(total_steps)

    def _set_batches(self, origin: str, ranks: int) -> None:
        self.accumulation: int = self.core.accumulation
        self.step_batch: int = self.train["global_batch"]
        if self.step_batch % self.accumulation != 0:
            raise error(f"{origin}: train_batch_size {self.step_batch} is no multiple of {self.accumulation} "
                        "accumulated micro-batches (gradient_accumulation_steps): change one of them",
                        "invalid_argument")
        self.loop_batch = self.step_batch // self.accumulation  # samples over all ranks for each backward
        self.micro_batch: int = self.core.micro_batch or -(-self.loop_batch // ranks)
        # Shares may follow the speed only where any of them is allowed.
        self.free_shares = self.core.micro_batch == 0 or self.core.micro_batch >= self.loop_batch


def _read(source: dict[str, Any] | str | os.PathLike) -> tuple[str, str]:
    if isinstance(source, dict):
        return json.dumps(source), "config"
    try:
        with open(source, encoding="utf-8") as file:
            return file.read(), os.fspath(source)
    except OSError as bad:
        raise error(f"cannot read DeepSpeed's configuration {os.fspath(source)}: {bad.strerror}",
                    "invalid_argument") from bad


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
