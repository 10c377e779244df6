"""Makes the objects of a training loop from a model and a configuration."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from bimetal._errors import error
from bimetal._torch_check import require_torch_library
from bimetal.balance import BalancedBatchSampler
from bimetal.deepspeed.config import Config, Schedule
from bimetal.deepspeed.engine import DeepSpeedEngine
from bimetal.zero import CoreOptimizer
from bimetal.zero.making import make_whole

_DEFAULT_RATE = 1e-3  # DeepSpeed's


def init_distributed(dist_backend: str | None = None, **_: Any) -> None:
    """Makes the default process group, unless there is one, or nothing has started this process as a rank.

    Args:
        dist_backend: ignored: groups are Bimetal's, whose ranks may be on unlike devices. So are other arguments.
    """
    if not dist.is_initialized() and "RANK" in os.environ:
        dist.init_process_group("bimetal")


def initialize(args: argparse.Namespace | None = None, model: nn.Module | None = None,
               optimizer: torch.optim.Optimizer | Callable | None = None,
               model_parameters: Iterable | None = None, training_data: Dataset | None = None,
               lr_scheduler: Any = None, collate_fn: Callable | None = None,
               config: dict[str, Any] | str | os.PathLike | None = None,
               config_params: dict[str, Any] | str | os.PathLike | None = None,
               dist_init_required: bool | None = None, *, seed: int = 0, balance: str = "auto",
               weights: Sequence[float] = (), shards: str | Sequence[float] = "equal",
               total_steps: int | None = None) -> tuple[DeepSpeedEngine, Any, DataLoader | None, Any]:
    """Wraps a model for training on all ranks. Collective.

    Args:
        args: ``args.deepspeed_config`` is the configuration, where ``config`` is not given.
        model: the module; it goes to this rank's device, and begins as it is on rank 0.
        optimizer: instead of the configuration's: one, or a function of the parameters.
        model_parameters: parameters or groups of them; None: all that are trained.
        training_data: a data set, for which a loader is made. It shares each batch so that all ranks are ready at the
            same time, unless train_micro_batch_size_per_gpu sets limits that leave equal shares alone.
        lr_scheduler: instead of the configuration's: one, or a function of the optimizer.
        collate_fn: the loader's.
        config, config_params: the configuration, as a dict or the path of its JSON.
        dist_init_required: False: leave the process group alone.
        seed: of the order of samples.
        balance, weights: as ``BalancedBatchSampler``'s.
        shards: at ZeRO's stages 1 to 3, each rank's part: as ``bimetal.zero.shard``'s.
        total_steps: of the training, where the configuration's ``total_num_steps`` is "auto".

    Returns:
        (engine, optimizer, loader or None, scheduler or None).

    Raises:
        ImportError: without the torch library; it says what to install.
        bimetal.Error: ``invalid_argument`` or ``unsupported``, with the configuration's key.
    """
    require_torch_library("bimetal.deepspeed.initialize()")
    if model is None:
        raise error("initialize() needs a model", "invalid_argument")
    if dist_init_required is not False:
        init_distributed()
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    chosen = _given(optimizer, model_parameters, model)
    made = isinstance(chosen, torch.optim.Optimizer)
    rate = chosen.param_groups[0]["lr"] if made else _DEFAULT_RATE
    first = not dist.is_initialized() or dist.get_rank() == 0
    settings = Config(_source(args, config, config_params), ranks, rate, first, total_steps)
    if settings.level > 0 and not dist.is_initialized():  # shards are a group's, be it of one
        dist.init_process_group("bimetal", store=dist.HashStore(), rank=0, world_size=1)
    if settings.level < 3:
        make_whole(model.parameters())  # what zero.Init has split
    engine = DeepSpeedEngine(model, settings)
    if settings.core.optimizer and made:
        raise error("an optimizer is given, and the configuration has one, too: leave one of them out",
                    "invalid_argument")
    engine.optimizer = chosen if made else _optimizer(settings, _parameters(model_parameters, model))
    engine.lr_scheduler = _scheduler(lr_scheduler, settings, engine.optimizer)
    loader = None
    if training_data is not None:
        engine.sampler = _sampler(training_data, settings, ranks, seed, balance, weights)
        loader = DataLoader(training_data, batch_sampler=engine.sampler, collate_fn=collate_fn)
    engine.training_dataloader = loader
    engine.cut(shards)
    return engine, engine.optimizer, loader, engine.lr_scheduler


def _source(args: argparse.Namespace | None, config: Any, config_params: Any) -> Any:
    sources = [config, config_params, getattr(args, "deepspeed_config", None)]
    given = [source for source in sources if source is not None]
    if not given:
        raise error("no configuration: give initialize(config=…), or --deepspeed_config FILE and args",
                    "invalid_argument")
    return given[0]


def _parameters(given: Iterable | None, model: nn.Module) -> list:
    parameters = list(model.parameters() if given is None else given)
    if parameters and isinstance(parameters[0], dict):
        return parameters
    return [parameter for parameter in parameters if parameter.requires_grad]


def _given(optimizer: Any, parameters: Iterable | None, model: nn.Module) -> Any:
    if optimizer is None or isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    return optimizer(_parameters(parameters, model))


def _optimizer(config: Config, parameters: list) -> torch.optim.Optimizer:
    train = config.train
    if not config.core.optimizer:
        raise error("no optimizer: give one to initialize(), or \"optimizer\" in the configuration", "invalid_argument")
    usual = {"lr": train["learning_rate"], "weight_decay": train["weight_decay"]}
    if train["optimizer"] == "sgd":
        return torch.optim.SGD(parameters, momentum=train["momentum"], **usual)
    adam = {"betas": (train["beta1"], train["beta2"]), "eps": train["epsilon"], **usual}
    if train["optimizer"] == "lamb":
        return CoreOptimizer(parameters, "lamb", **adam)
    if config.zero["offload_optimizer"] != "none":
        folder = config.zero["offload_path"] if config.zero["offload_optimizer"] == "disk" else ""
        return CoreOptimizer(parameters, train["optimizer"], folder=folder, **adam)
    return (torch.optim.AdamW if train["optimizer"] == "adamw" else torch.optim.Adam)(parameters, **adam)


def _scheduler(given: Any, config: Config, optimizer: torch.optim.Optimizer) -> Any:
    if given is not None and config.core.scheduler:
        raise error("a scheduler is given, and the configuration has one, too: leave one of them out",
                    "invalid_argument")
    if config.core.scheduler:
        return Schedule(optimizer, config)
    return given(optimizer) if callable(given) and not hasattr(given, "step") else given


def _sampler(data: Any, config: Config, ranks: int, seed: int, balance: str,
             weights: Sequence[float]) -> BalancedBatchSampler:
    if not config.free_shares:
        if balance == "fixed" and max(weights) / sum(weights) * config.loop_batch > config.micro_batch:
            raise error(f"weights {list(weights)} give a rank more than the {config.micro_batch} samples of "
                        "train_micro_batch_size_per_gpu: leave that key out, or the weights", "invalid_argument")
        balance = "fixed" if balance == "fixed" else "equal"
    return BalancedBatchSampler(data, config.loop_batch, seed=seed, balance=balance, weights=weights)


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds ``--deepspeed``, which scripts ask for and nothing here needs, and ``--deepspeed_config FILE``, which
    ``initialize(args=…)`` reads. Returns the parser."""
    group = parser.add_argument_group("DeepSpeed", "Its configuration, for bimetal.deepspeed")
    group.add_argument("--deepspeed", action="store_true", help="train by way of the engine, where the script asks")
    group.add_argument("--deepspeed_config", metavar="FILE.json", help="the configuration")
    return parser
