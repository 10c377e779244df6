"""The sampler and the balancer."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_double, c_int32, c_int64
from typing import Any

from bimetal.library.interface import check, error, lib, made, numbers


class EpochSampler:
    """A permutation of the data set for each epoch, cut into steps of any size."""

    def __init__(self, dataset_size: int, seed: int, shuffle: bool, weights: Sequence[int] = ()) -> None:
        self._handle = 0
        if weights and len(weights) != dataset_size:
            raise error(f"{len(weights)} weights do not go with {dataset_size} samples: each needs one",
                        "invalid_argument")
        self._handle = made(lib.sampler_new, dataset_size, seed, shuffle, numbers(weights) if weights else None)

    def __del__(self) -> None:
        if lib is not None:  # the interpreter may be ending
            lib.sampler_free(self._handle)

    @property
    def remaining(self) -> int:
        return lib.sampler_remaining(self._handle)

    @property
    def position(self) -> tuple[int, int]:
        epoch, offset = c_int64(), c_int64()
        lib.sampler_position(self._handle, ctypes.byref(epoch), ctypes.byref(offset))
        return epoch.value, offset.value

    def seek(self, epoch: int, offset: int) -> None:
        check(lib.sampler_seek(self._handle, epoch, offset))

    def mean_weight(self, samples: int) -> int:
        return lib.sampler_mean_weight(self._handle, samples)

    def deal(self, shares: Sequence[int], samples: int, rank: int) -> tuple[list[int], list[int], list[int], int]:
        ranks = len(shares)
        if not 0 <= rank < ranks:
            raise error(f"rank {rank} has no part in a step of {ranks} ranks", "invalid_argument")
        counts, weights, total = (c_int64 * ranks)(), (c_int64 * ranks)(), c_int64()
        indices = (c_int64 * max(samples, 0))()
        check(lib.sampler_deal(self._handle, numbers(shares), ranks, samples, counts, weights, indices,
                               ctypes.byref(total)))
        before = sum(counts[:rank])
        return list(counts), list(weights), indices[before:before + counts[rank]], indices[0]


class Balancer:
    """Shares of a global batch that follow the ranks' speed. Pure: equal calls, equal shares."""

    def __init__(self, ranks: int, global_batch: int, policy: str = "auto", weights: Sequence[float] = (),
                 probes: Sequence[tuple[float, float]] = ()) -> None:
        self._handle = 0
        self._ranks = ranks
        self._check(weights, "weight")
        self._check(probes, "probe")
        alpha, beta = (numbers((p[i] for p in probes), c_double) if probes else None for i in (0, 1))
        self._handle = made(lib.balancer_new, ranks, global_batch, policy.encode(),
                            numbers(weights, c_double) if weights else None, alpha, beta)

    def __del__(self) -> None:
        if lib is not None:
            lib.balancer_free(self._handle)

    def _check(self, values: Sequence[Any], what: str) -> None:
        if values and len(values) != self._ranks:
            raise error(f"a {what} is needed for every one of the {self._ranks} ranks, or for none; "
                        f"{len(values)} were given", "invalid_argument")

    @property
    def shares(self) -> list[int]:
        shares = (c_int64 * self._ranks)()
        lib.balancer_shares(self._handle, shares)
        return list(shares)

    def observe(self, batches: Sequence[int], seconds: Sequence[float], shadow_batches: Sequence[int] = (),
                shadow_seconds: Sequence[float] = (), out_of_memory: Sequence[bool] = ()) -> bool:
        if not len(batches) == len(seconds) == self._ranks or len(shadow_batches) != len(shadow_seconds):
            raise error("a batch size and a time are needed for every rank", "invalid_argument")
        self._check(shadow_batches, "batch size")
        self._check(out_of_memory, "word")
        changed = c_int32()
        check(lib.balancer_observe(
            self._handle, numbers(batches), numbers(seconds, c_double),
            numbers(shadow_batches) if shadow_batches else None,
            numbers(shadow_seconds, c_double) if shadow_seconds else None,
            numbers(map(int, out_of_memory), c_int32) if out_of_memory else None, ctypes.byref(changed)))
        return bool(changed.value)

    def alone_rate(self, rank: int) -> float:
        return lib.balancer_alone_rate(self._handle, rank)
