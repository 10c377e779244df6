"""From a module and its optimizer to parts of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

from bimetal import _C
from bimetal._errors import error
from bimetal._together import rank_weights, require_alike, require_group
from bimetal._torch_check import require_torch_library
from bimetal.process_group import core_group
from bimetal.tensor.layers import Columns, Embeddings, Logits, OwnLoss, Rows, has_own_loss
from bimetal.tensor.parted import Part, Parted
from bimetal.tensor.plan import Layer, Plan, plan_for
from bimetal.tensor.region import Region, SharedParameter, follow_first
from bimetal.zero.optimizer import require_by_element, take_pieces


def parts(module: nn.Module, optimizer: torch.optim.Optimizer | None = None, *, plan: Mapping[str, str] | None = None,
          weights: str | Sequence[float] = "equal", follow: int = 1, group: dist.ProcessGroup | None = None) -> Parted:
    """Cuts a module's matrices into parts, one for each rank of a process group of Bimetal's, of which this rank keeps its
    own. Collective.

    Linear layers that the plan names are replaced by this rank's columns or rows of them, which sum over the ranks where it
    is needed; module, parameters and optimizer stay the objects that they are. All ranks begin with rank 0's parameters and
    buffers, and torch's generators stand where rank 0's do. From then on all make the same calls with the same batches.

    Args:
        module: where it is to be computed; whole on each rank, and not to be moved any more.
        optimizer: any of this module's that works element by element (Adam, AdamW, SGD and others), with or without
            states; None: none yet.
        plan: the modules that are cut, by names with wildcards (``*`` stands for dots, too), and how:

            - "columns": a layer's outputs, one by one. "columns:heads": by whole heads; "columns:qkv": of three matrices in a row,
              each by heads; "columns:pair": of two in a row. The number of heads is asked of the module that the layer stands
              in or its ``config`` (of keys and values, if that has fewer), or said: "columns:qkv=12".
            - "rows": a layer's inputs, as those columns are cut that come before it in the same module and are as many;
              "rows:heads" where they are in another.
            - "vocabulary": an embedding's rows, or an output layer's outputs: single tokens, tied or not. Logits are gathered, but
              for the loss that transformers' causal models compute from labels; "vocabulary:parts": they stay in parts, for the
              layer's ``cross_entropy``.
            - "count": a whole number that a module keeps of what is cut. Those called ``num_heads``, ``n_head``, ``heads`` and the
              like beside a layer that is cut by heads become this rank's by themselves.
            - "inside": a module or parameter that every rank uses for its own heads or columns, as a norm of each head: its
              gradients are summed, but for what a penalty on it adds.

            None: as is known of Hugging Face's GPT-2, Llama, Mistral, Qwen2 and Qwen3.
        weights: how large the ranks' parts are: "equal", in proportion to "speed" (of float32 products, measured now), or to
            numbers, one for each rank.
        follow: after so many steps of the optimizer, parameters that are whole on all ranks become rank 0's: unlike
            devices round differently. 0: never.
        group: None is the default group. Where others have other parts of the same model, as replicas that DDP joins, each
            group of those that have all parts of one.

    Raises:
        bimetal.Error: ``invalid_argument`` and ``unsupported`` for settings that cannot work, ``call_mismatch`` where
            the ranks' modules or arguments differ.
    """
    require_torch_library("bimetal.tensor.parts()")
    require_group("parts")
    if isinstance(module, nn.parallel.DistributedDataParallel):
        raise error("parts() comes before DistributedDataParallel, which is made of what it leaves", "invalid_argument")
    if any(getattr(part, "on_another_stage", False) for part in module.modules()):
        raise error("parts() cannot cut a module that is in stages. A job has stages whose tensors are in parts ([mesh] stages, "
                    "tensor)", "unsupported")
    if follow < 0:
        raise error(f"follow = {follow}: after so many steps, or 0", "invalid_argument")
    if optimizer is not None:
        require_by_element(optimizer)
    found = plan_for(module, plan)
    device = found.layers[0].module.weight.device
    _require_current(device)
    core_ranks, rank = core_group(group), dist.get_rank(group)
    _C.share_model(core_ranks, list(module.named_parameters()), list(module.named_buffers()))
    shares = rank_weights("weights", weights, ("equal", "speed"), device, group)
    _require_pieces(found, shares)
    require_alike("parts()", {**_told_of(found), "weights": shares, "follow": follow}, group)
    follow_first(module, device, group)
    named = dict(module.named_parameters())
    splits = [split for layer in found.layers for split in layer.splits() if split[0] in named]  # a tied one by its first name
    cuts = _C.TensorCuts(list(named.items()), splits, shares)
    shapes = {name: value.detach().to("meta") if isinstance(value, torch.Tensor) else value
              for name, value in module.state_dict().items()}
    pieces = [Part(name, parameter, cuts, rank) for name, parameter in module.named_parameters()]
    groups = take_pieces(optimizer, module, pieces) if optimizer is not None else []
    ranks = _C.PartRanks(core_ranks, shares)
    for piece in pieces:
        piece.cut()
    _replace(module, found, ranks, rank, shares)
    parted = Parted(module, pieces, cuts, ranks, shapes, shares, group)
    if optimizer is not None:
        parted.watch(optimizer, groups, follow)
    return parted


def _told_of(plan: Plan) -> dict[str, list]:
    return {"plan": [[layer.path, layer.word.kind, layer.word.segments, layer.pieces, layer.word.apart]
                     for layer in plan.layers],
            "inside": sorted(plan.inside), "counts": [[count.path, count.attribute, count.pieces] for count in plan.counts]}


def _require_current(device: torch.device) -> None:
    """Random numbers are those of the current device."""
    if device.type in ("cpu", "mps", "meta") or device.index is None:
        return
    if device.index != torch.get_device_module(device).current_device():
        raise error(f"the module is on {device}, which is not the current device: call set_device first", "invalid_argument")


def _require_pieces(plan: Plan, weights: list[float]) -> None:
    fewest = min(plan.layers, key=lambda layer: layer.pieces)
    if fewest.pieces < len(weights):
        raise error(f"{fewest.path} is of {fewest.pieces} pieces that stay whole (heads that share keys and values are one), too "
                    f"few for {len(weights)} ranks: take at most {fewest.pieces}", "invalid_argument")
    _C.whole_parts(fewest.pieces, weights)  # for its errors


def _replace(module: nn.Module, plan: Plan, ranks: _C.PartRanks, rank: int, weights: list[float]) -> None:
    regions: dict[int, Region] = {}

    def region_of(layer: Layer) -> Region:
        if id(layer.parent) not in regions:
            regions[id(layer.parent)] = Region(ranks, rank, layer.parent)
        return regions[id(layer.parent)]

    for layer in plan.layers:
        if layer.word.kind == "vocabulary":
            _replace_vocabulary(layer, ranks, rank, weights)
            continue
        kind = Columns if layer.word.kind == "columns" else Rows
        setattr(layer.parent, layer.name, kind(layer.module, region_of(layer), layer.transposed))
    for count in plan.counts:
        here = _C.whole_parts(count.pieces, weights)[rank]
        setattr(count.module, count.attribute, getattr(count.module, count.attribute) // count.pieces * here)
    for name, parameter in plan.inside.items():
        SharedParameter(module, name, parameter, ranks)


def _replace_vocabulary(layer: Layer, ranks: _C.PartRanks, rank: int, weights: list[float]) -> None:
    counts = _C.whole_parts(layer.features, weights)
    here = sum(counts[:rank]), counts[rank]
    if isinstance(layer.module, nn.Embedding):
        setattr(layer.parent, layer.name, Embeddings(layer.module, ranks, here))
        return
    head = Logits(layer.module, ranks, here, layer.word.apart)
    setattr(layer.parent, layer.name, head)
    if not head.apart and has_own_loss(layer.parent):
        OwnLoss(layer.parent, head)
