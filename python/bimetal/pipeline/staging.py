"""From a module and its optimizer to a stage of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bimetal import _C
from bimetal._errors import error
from bimetal._together import require_alike, require_group
from bimetal._torch_check import require_torch_library
from bimetal.pipeline.chain import Chain, unit_seconds
from bimetal.pipeline.loss import causal_loss_sum, causal_weight
from bimetal.pipeline.parts import Parts, Whole
from bimetal.pipeline.staged import Learning, Place, Staged
from bimetal.process_group import core_group
from bimetal.zero.optimizer import take_pieces


def stages(module: nn.Module, optimizer: torch.optim.Optimizer | None = None, stages: int | None = None, *,
           cuts: Sequence[int] | None = None, sample: Mapping[str, Any] | Sequence[Any] | None = None,
           schedule: str = "1f1b", chunks: int = 1, micro_batches: int | None = None, micro_batch: int | None = None,
           loss_sum: Callable[[Any, Any], torch.Tensor] | None = None, weight: Callable[[Any], int] | None = None,
           blocks: str | None = None, group: dist.ProcessGroup | None = None) -> Staged:
    """Cuts a module into stages, one for each rank of a process group of Bimetal's, of which this rank keeps its own.
    Collective.

    What can be cut is a module whose forward calls the children of an ``nn.ModuleList`` or ``nn.Sequential`` one after
    the other, each with what the one before has returned as its first argument: ``GPT2LMHeadModel``,
    ``LlamaForCausalLM`` and their like. Its units are what stands before these blocks (embeddings), each block, and what
    stands behind them (the head). All ranks begin with rank 0's parameters and buffers. The module and the optimizer stay
    the objects that they are; what other stages keep is no longer in them.

    Args:
        module: where it is to be computed; whole on each rank, and not to be moved any more.
        optimizer: any of this module's, with or without states; None: none yet.
        stages: None: as many as ranks. With twice as many ranks each stage has two replicas, which train on batches of
            their own: ranks are numbered stage by stage.
        cuts: the units with which all stages but the first begin (with "interleaved" all pieces).
        sample: a small batch as ``forward_backward`` takes it (a dict, or a tuple), targets included. Without ``cuts`` each
            rank measures for a second what units take on its device, and the module is cut so that the step is shortest.
            Without either, stages get about as many parameters each.
        schedule: "1f1b", "gpipe", "zero_bubble", or "interleaved" with ``chunks`` pieces for each stage.
        micro_batches: how many a batch is cut into, as evenly as can be. None: pieces of ``micro_batch`` samples, or four
            for each stage.
        loss_sum: from what the module returns for a micro-batch and its targets to the sum (not the mean) of the loss.
            None: the next token's cross-entropy, the batch's ``labels`` being the targets, -100 not counted, as Hugging
            Face's causal models have it.
        weight: from the targets of a whole batch to what divides the sum. None: labels of the next token, or samples where
            ``loss_sum`` is given.
        blocks: the name of the list, where it is not the largest one.
        group: None is the default group.

    Raises:
        bimetal.Error: ``invalid_argument`` and ``unsupported`` for what cannot work, ``call_mismatch`` where the ranks'
            modules or arguments differ.
    """
    require_torch_library("bimetal.pipeline.stages()")
    require_group("stages")
    ranks = dist.get_world_size(group)
    count = ranks if stages is None else stages
    if count < 1 or ranks % count:
        raise error(f"{count} stages for {ranks} ranks: start as many ranks, or a multiple of them", "invalid_argument")
    if chunks > 1 and schedule != "interleaved":
        raise error(f"chunks = {chunks} goes with schedule = \"interleaved\"", "invalid_argument")
    for name, value in (("micro_batches", micro_batches), ("micro_batch", micro_batch)):
        if value is not None and value < 1:
            raise error(f"{name} = {value}: at least 1, or None", "invalid_argument")
    if any(getattr(part, "of_tensor_ranks", False) for part in module.modules()):
        raise error("stages() cannot cut a module that bimetal.tensor.parts() has cut: norms and states would be of one part, and "
                    "the embedding of another stage would wait for ranks that do not come. A job has stages whose tensors are in "
                    "parts ([mesh] stages, tensor)", "unsupported")
    chain = Chain(module, blocks)
    core_ranks = core_group(group)
    _C.share_model(core_ranks, list(module.named_parameters()), list(module.named_buffers()))
    require_alike("stages()", {"stages": count, "blocks": chain.path, "cuts": None if cuts is None else list(cuts),
                   "sample": "a batch" if sample is not None and cuts is None else None, "schedule": schedule,
                   "chunks": chunks, "micro_batches": micro_batches, "micro_batch": micro_batch}, group)
    learning = Learning(loss_sum or causal_loss_sum, weight or (causal_weight if loss_sum is None else None))
    begins = _begins(chain, cuts, sample, learning, count, chunks, micro_batches or 0, group)
    replicas = ranks // count
    place = Place(dist.get_rank(group) // replicas, count, dist.get_rank(group) % replicas, replicas, begins)
    parts = Parts(chain, [_stage_of(unit, begins, count) for unit in range(len(chain.units))], place.stage)
    split = not any(getattr(part, "gradient_checkpointing", False) for part in module.modules())
    core = _C.LoopStage(core_ranks, count, replicas, parts.parameters, parts.buffers, parts.tied, schedule, chunks, split,
                        str(next(module.parameters()).device))
    pieces = [Whole(name, parameter) for name, parameter in parts.parameters]
    groups = take_pieces(optimizer, module, pieces) if optimizer is not None else []
    staged = Staged(chain, core, place, parts, pieces, learning, schedule, micro_batches, micro_batch, group)
    if optimizer is not None:
        staged.watch(optimizer, groups)
    return staged


def _stage_of(unit: int, begins: list[int], stages: int) -> int:
    return max(piece for piece, begin in enumerate(begins) if begin <= unit) % stages


def _begins(chain: Chain, cuts: Sequence[int] | None, sample: Any, learning: Learning, stages: int, chunks: int,
            micro_batches: int, group: dist.ProcessGroup | None) -> list[int]:
    units, pieces = len(chain.units), stages * chunks
    if cuts is not None or pieces > units:
        return _C.piece_begins(list(cuts or []), pieces, units, "")
    if sample is None:
        own = [1.0 + sum(tensor.numel() for tensor in unit.tensors()) for unit in chain.units]
    else:
        own = unit_seconds(chain, lambda: learning.loss_of_sample(chain.module, sample))
    measured = [torch.zeros(units, dtype=torch.float64) for _ in range(dist.get_world_size(group))]
    dist.barrier(group)
    dist.all_gather(measured, torch.tensor(own, dtype=torch.float64), group=group)
    return _C.measured_cut([seconds.tolist() for seconds in measured], stages, chunks, micro_batches)
