"""The C++ core. Its functions raise bimetal.Error."""

from typing import Any

import torch

def set_error_class(type: type[Exception]) -> None:
    """`type(message, code, rank)` makes the exceptions that everything here raises."""

def make_backend(place: Any) -> Any:
    """From torch's _DistributedBackendOptions to a torch._C._distributed_c10d.Backend. Collective."""

def close_all(seconds: float) -> None:
    """Ends every process group of this backend in order, within `seconds` each."""

def flight_recorder(backend: Any) -> str:
    """JSON."""

def bytes_sent(backend: Any) -> int: ...
def transport(backend: Any) -> str: ...
def device(spec: str, local_rank: int) -> str:
    """The name of a device, as torch.device takes it."""

def usable_cores() -> int:
    """Cores of this machine that this process may use: affinity and the container's quota counted."""

class Balancer:
    """Shares of a global batch that follow the ranks' speed. Pure: equal calls, equal shares."""

    def __init__(self, ranks: int, global_batch: int, policy: str = "auto", weights: list[float] = ...) -> None: ...
    @property
    def shares(self) -> list[int]:
        """Samples for each rank; the sum is the global batch."""

    def observe(self, batches: list[int], seconds: list[float]) -> bool:
        """Learns from one step: samples and seconds of compute of every rank. Whether the shares changed."""

    def alone_rate(self, rank: int) -> float:
        """Samples per second that the rank would do by itself; 0 if unknown."""

class EpochSampler:
    """A permutation of the data set for each epoch, cut into steps of any size."""

    def __init__(self, dataset_size: int, seed: int, shuffle: bool) -> None: ...
    @property
    def remaining(self) -> int:
        """Samples left in this epoch."""

    @property
    def position(self) -> tuple[int, int]:
        """(epoch, samples of it handed out)."""

    def seek(self, epoch: int, offset: int) -> None: ...
    def next(self, shares: list[int], rank: int) -> tuple[list[int], list[int], int]:
        """(samples of each rank, indices of `rank`'s, first index of the step)."""

class PredictionClient:
    """Asks a server of predictions; connects when it is first needed, and anew after an error. Not thread-safe."""

    def __init__(self, address: str, token_file: str) -> None: ...
    def facts(self, seconds: float) -> dict[str, Any]:
        """model, release, channels, height, width, classes, mean, stddev, dtype."""

    def predict(self, samples: torch.Tensor, seconds: float) -> tuple[torch.Tensor, int, int]:
        """(float64 logits [n, classes], oldest step, newest step) of uint8, float32 or float64 [n, ...]."""

    def figures(self, seconds: float) -> dict[str, Any]:
        """requests, samples, batches, refused, clients, latency_median_s, latency_p99_s."""
