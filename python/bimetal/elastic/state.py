"""The state that a script trains, and the last of it that all ranks have in common."""

from __future__ import annotations

import gc
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bimetal._errors import error
from bimetal.balance import BalancedBatchSampler
from bimetal.elastic.packing import Packed
from bimetal.elastic.shards import Shards
from bimetal.zero.ownership import owner_of


class State:
    """Names what ``bimetal.elastic.run`` keeps over losses: each with ``state_dict`` and ``load_state_dict``, or plain::

        state = bimetal.elastic.State(model=model, optimizer=optimizer, sampler=sampler, best=math.inf)

    They are its attributes, of which the plain ones (numbers, texts, lists and dicts of these, tensors) can be set. All ranks make
    the same number of steps, and call ``commit`` after the same ones.
    """

    def __init__(self, **parts: Any) -> None:
        if not parts:
            raise error("a state of nothing keeps nothing: State(model=model, optimizer=optimizer, sampler=sampler)", "invalid_argument")
        for name, part in parts.items():
            if name.startswith("_") or hasattr(type(self), name):
                raise error(f"a part of a state cannot be called {name}", "invalid_argument")
            if isinstance(part, nn.parallel.DistributedDataParallel):
                raise error(f"{name} is a DistributedDataParallel, which is of one process group alone: give State the model within, and "
                            "wrap it in train(state)", "invalid_argument")
        self._names = list(parts)
        self._commits = -1  # of the run, as far as this rank knows it
        self._saved: Packed | None = None
        self._whole: dict[str, torch.Size] = {}  # of the modules' parameters
        self._run: Any = None  # while it is used
        self._shards: Shards | None = None  # of this epoch
        self._every = self._since = 0  # calls of commit(), where there are shards
        self._beside: dict[str, Any] = {}  # kept with them
        self._on_disk: list[int] = []  # commits whose shards are
        vars(self).update(parts)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name not in self._names:
            raise error(f"the state has no {name}: name what it keeps where it is made, as in State({name}=…)", "invalid_argument")
        super().__setattr__(name, value)

    @property
    def commits(self) -> int:
        """How many there have been, in all of the job."""
        return max(self._commits, 0)

    def commit(self) -> None:
        """Makes the work so far count. Collective: call it after an optimizer's step, on all ranks after the same ones.

        It copies all parts within host memory. If a rank is lost, steps after the last commit are lost and made again:
        so commit after each step, or every few. Workers that wait to come in, or want to leave, do so here.
        """
        self._require_run("commit")
        if self._shards is None and self._on_disk:
            raise error("train() has kept shards before its workers changed: it makes them and calls state.keep() each time that it is "
                        "called", "invalid_argument")
        self._since += 1
        if self._shards is not None:
            if self._since < self._every:
                return
            self._shards.save(self._commits + 1)
            *old, before = self._on_disk
            self._on_disk = [before, self._commits + 1]
        self._since = 0
        self._save()
        self._commits += 1
        if self._shards is not None:
            self._shards.remove(old)
        self._run.look_around()

    def keep(self, model: Any, folder: str | os.PathLike, *, optimizer: torch.optim.Optimizer | None = None, every: int = 1,
             **beside: Any) -> None:
        """In ``train``: a model in shards, which is made there for this epoch's ranks, and goes on from the last commit. Collective::

            def train(state):
                model, optimizer = make()
                sharded = bimetal.zero.shard(model, optimizer, level=3, sampler=state.sampler)
                state.keep(sharded, "checkpoints/run", every=50)

        No rank has all of it, so a commit writes it to the disk, each rank its part, and the remaining ranks read the
        last one.

        Args:
            model: what ``bimetal.zero.shard`` returns, with its optimizer; or a model of FSDP2's ``fully_shard``.
            folder: for the last two commits. Rank 0's, which sends the others what they do not see; should the job outlive that
                machine, one that all see. FSDP2 needs such a folder in any case.
            optimizer: of a model of FSDP2.
            every: only every so many calls of ``commit`` count; the steps since the last of these are made again after a loss.
            beside: what else is made in ``train`` (a scheduler, say), with ``state_dict`` and ``load_state_dict``.
        """
        self._require_run("keep")
        if every < 1 or self._shards is not None:
            raise error(f"state.keep(every={every}): every is 1 or more, and one model is kept", "invalid_argument")
        self._shards, self._every, self._since, self._beside = Shards(model, optimizer, folder), every, 0, beside
        saved = self._told(len(self._on_disk))
        if max(saved) == 0:
            self._shards.save(self._commits)
            self._on_disk = [self._commits]
            self._save()
            return
        self._shards.load(self._commits)
        assert self._saved is not None
        before = self._saved.value()["_beside"]
        for name, part in beside.items():
            if name in before:
                part.load_state_dict(before[name])
        if not self._on_disk:  # one that was lost here has kept this rank from knowing
            self._on_disk = [self._commits]

    def leave(self) -> None:
        """This process leaves after the next commit, and the others go on without it. SIGTERM does the same."""
        if self._run is not None:
            self._run.leaves = True

    # ---- For run() ----

    def _require_run(self, call: str) -> None:
        if self._run is None:
            raise error(f"state.{call}() is for a function that bimetal.elastic.run(train, state) calls", "invalid_argument")

    @staticmethod
    def _told(number: int) -> list[int]:
        """By every rank. Collective."""
        everyone = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, torch.tensor([number], device="cpu"))
        return [int(one) for one in everyone]

    def _let_go(self) -> None:
        """Frees everything of the group that ends."""
        self._shards, self._beside = None, {}

    def _parts(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in self._names]

    def _samplers(self) -> list[BalancedBatchSampler]:
        return [part for _, part in self._parts() if isinstance(part, BalancedBatchSampler)]

    def _require_usable(self) -> None:
        """Finds errors early that would show later."""
        modules = {name: part for name, part in self._parts() if isinstance(part, nn.Module)}
        mine = {id(parameter): name for name, module in modules.items() for parameter in module.parameters()}
        for thing in gc.get_objects():
            if not issubclass(type(thing), nn.parallel.DistributedDataParallel):  # isinstance() would wake up proxies
                continue
            name = next((mine[id(one)] for one in thing.parameters() if id(one) in mine), None)
            if name is not None:
                raise error(f"{name} is in a DistributedDataParallel already, which is of one process group alone: make that in "
                            "train(state), which is called again for every group", "invalid_argument")
        for sampler in self._samplers():
            sampler.require_elastic()
        self._whole = self._shapes()
        self._save()

    def _facts(self) -> str:
        """The facts that newcomers must have in common with the others."""
        facts = []
        for name, part in self._parts():
            facts.append(f"{name}: {type(part).__name__}")
            if isinstance(part, nn.Module):
                facts += [f"{name}.{key}: {tuple(one.shape)} {one.dtype}" for key, one in part.state_dict().items()
                          if isinstance(one, torch.Tensor)]
            elif isinstance(part, BalancedBatchSampler):
                facts.append(f"{name}: {part.size} samples, {part.global_batch} a batch, {part.accumulate} batches a step")
        return "\n".join(facts)

    def _shapes(self) -> dict[str, torch.Size]:
        return {f"{name}.{key}": one.shape for name, part in self._parts() if isinstance(part, nn.Module)
                for key, one in part.named_parameters()}

    def _require_whole(self) -> None:
        """Refuses a model of which one rank alone has a part: that part would be lost with the rank."""
        now = self._shapes()
        cut = next((name for name, shape in self._whole.items() if now.get(name) != shape), None)
        for name, part in self._parts():
            if isinstance(part, nn.Module):
                cut = cut or next((f"{name}.{key}" for key, one in part.named_parameters() if owner_of(one) is not None), None)
        if cut is not None:
            raise error(f"{cut} has been cut into parts of the ranks (bimetal.zero, bimetal.tensor, bimetal.pipeline, FSDP2), and what a "
                        "lost rank had of it would be gone: State keeps whole models, as DistributedDataParallel has them. Make one in "
                        "shards in train(state), and keep it by state.keep(sharded, folder)", "unsupported")

    def _packed(self, before: Packed | None = None) -> Packed:
        self._require_whole()
        kept = {name: part.state_dict() if hasattr(part, "state_dict") else part for name, part in self._parts()}
        kept |= {"_on_disk": self._on_disk, "_beside": {name: part.state_dict() for name, part in self._beside.items()}}
        return Packed(kept, "state", before)

    def _save(self) -> None:
        self._saved = self._packed(self._saved)

    def _begin(self, leads: bool) -> None:
        """The first epoch: what rank 0 has is what counts."""
        self._commits = 0 if leads else -1

    def _restore(self) -> None:
        """As of the last commit."""
        assert self._saved is not None
        kept = self._saved.value()
        del kept["_beside"]  # is for the next keep()
        for name, value in kept.items():
            part = getattr(self, name)
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(value)
            else:
                setattr(self, name, value)

    def _forget_step(self) -> None:
        """Drops the leftovers of a step under way."""
        for _, part in self._parts():
            if isinstance(part, nn.Module):
                part.zero_grad(set_to_none=True)

    def _even_out(self, undo: bool) -> None:
        """All have what the rank with most commits has. Collective.

        Args:
            undo: what this rank has done since its last commit does not count.
        """
        commits = self._told(self._commits)
        most = max(commits)
        if most < 0:
            raise error("every worker that had the state is gone", "peer_lost")
        behind = [rank for rank, made in enumerate(commits) if made < most]
        if behind:
            self._saved = Packed.exchange(self._saved, commits.index(most), behind)
        if undo or dist.get_rank() in behind:
            self._restore()
        self._commits = most
        self._forget_step()
        for sampler in self._samplers():
            sampler.regroup()
