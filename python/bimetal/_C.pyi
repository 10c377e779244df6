"""The contents of the torch library. Its functions raise bimetal.Error, and take no keywords."""

from collections.abc import Callable
from typing import Any

import torch

def set_error_class(type: type[Exception]) -> None:
    """`type(message, code, rank)` makes the exceptions that everything here raises."""

class ProcessGroup:
    """A process group as the functions here take it."""

    def __init__(self, handle: int, seconds: float) -> None:
        """`handle`: of the C interface, alive. `seconds`: for one call."""

def usable_cores() -> int:
    """Cores of this machine that this process may use: affinity and the container's quota counted."""

def save_slices(group: ProcessGroup, target: str, model: list[tuple[str, list[int], list[int], list[int], torch.Tensor]],
                optimizer: list[tuple[str, list[int], list[int], list[int], torch.Tensor]], kind: str, groups: str,
                at: dict[str, int], loop: str) -> str:
    """Saves what all ranks keep as the checkpoint `target`, which is rank 0's, and so are the last four. Of a slice: the
    tensor's name and shape, the slice's offset and size, its values. src/bimetal/checkpoint/slices/save_slices.h. Collective."""

class SavedSlices:
    """A checkpoint of any kind. Each rank reads the parts that it wants. Collective."""

    def __init__(self, group: ProcessGroup, path: str) -> None:
        """`path`: rank 0's, which verifies it; where that fails, all ranks say why."""

    loop: str
    model: dict[str, list[int]]
    """The shape of each tensor; likewise the next."""
    optimizer: dict[str, list[int]]
    def each_takes(self, take: Callable[[], None]) -> None:
        """Calls it; within, read() gives slices. Collective."""

    def read(self, part: str, name: str, offset: list[int], size: list[int]) -> torch.Tensor:
        """A slice of the "model"'s or the "optimizer"'s tensor, in the slice's shape: a box, or with one number each a range
        of its elements."""

def device_speed(device: str) -> float:
    """The speed of float32 products, in GFLOP/s, measured for 0.3 s; 0 if it cannot be measured."""

def memory_weights(group: ProcessGroup, device: str) -> list[float]:
    """Free bytes of each rank's device, or ones if somebody cannot tell. Collective."""

def close_off(tensor: torch.Tensor) -> None:
    """Takes the memory from below a tensor, and from whatever shares it; a look at the values is an error (torch 2.13)."""

def give_memory(tensor: torch.Tensor) -> None:
    """The way back: memory, with any values."""

class HookedModel:
    """A model in shards whose forward and backward run elsewhere: src/bimetal/parallel/shard/hooked_model.h. Methods of
    which several ranks are part let go of the interpreter's lock."""

    def __init__(self, group: ProcessGroup, units: list[tuple[str, list[tuple[str, torch.Tensor]], list[tuple[str, torch.Tensor]]]],
                 level: int, weights: list[float], flat_bytes: int, parameters_on: str, folder: str,
                 keep_below: int, hollow: bool) -> None:
        """``units``: name, trained parameters and buffers of each. ``parameters_on``: none, host or disk. ``hollow``, at
        level 3: the parameters have no memory, and the pieces any values, to be filled before after_update(). Collective."""

    pieces: list[tuple[str, list[int], int, torch.Tensor]]
    """For each piece: the parameter's name and shape, its first element in it, and this rank's piece, a leaf."""

    shard_bytes: list[int]
    pass_number: int
    has_gradients: bool
    wait_seconds: float

    def forward_begins(self, with_backward: bool) -> None: ...
    def forward_ends(self) -> None: ...
    def enter(self, unit: int, inputs: list[torch.Tensor]) -> list[torch.Tensor]: ...
    def leave(self, unit: int, outputs: list[torch.Tensor]) -> list[torch.Tensor]: ...
    def backward_begins(self, pass_number: int, reduce: bool) -> None: ...
    def backward_ends(self) -> None: ...
    def finish(self) -> None: ...
    def after_update(self) -> None: ...
    def end_passes(self) -> None: ...
    def hold_whole(self, names: list[str]) -> None: ...
    def let_go_of_whole(self, root: int | None) -> None: ...
    def gather(self, parts: list[torch.Tensor | None], root: int | None) -> list[tuple[str, torch.Tensor]]:
        """The ranks' values for the pieces as whole tensors, on rank `root` or, with None, on all. Collective."""

def share_model(group: ProcessGroup, parameters: list[tuple[str, torch.Tensor]], buffers: list[tuple[str, torch.Tensor]]) -> None:
    """Checks that all ranks have the same, then gives them rank 0's values. Collective."""

def measured_cut(seconds: list[list[float]], stages: int, chunks: int, micro_batches: int) -> list[int]:
    """``seconds``: of each unit, by rank; ``micro_batches`` 0: not known. The unit that each piece begins with."""

def piece_begins(cuts: list[int], pieces: int, units: int, table: str) -> list[int]:
    """0 and the cuts, if they will do; ``table``: the text before "cuts" where users give them."""

def usual_micro_batches(schedule: str, stages: int, samples: int, pieces: int) -> int: ...

def micro_batch_sizes(samples: int, micro_batches: int) -> list[int]:
    """As equal as can be, 0 where there are too few."""

class LoopStage:
    """A stage in a loop of somebody else's: src/bimetal/parallel/pipeline/loop_stage.h. Lets go of the interpreter's lock,
    but for calls of ``forward`` (chunk, micro-batch, inputs), which returns what goes on, or the loss alone.
    A batch: samples of each micro-batch, its weight, and a digest by which the ranks of a replica see that all have it."""

    def __init__(self, group: ProcessGroup, stages: int, replicas: int, parameters: list[tuple[str, torch.Tensor]],
                 buffers: list[tuple[str, torch.Tensor]], tied: list[tuple[torch.Tensor | None, list[int]]], schedule: str,
                 chunks: int, split: bool, device: str) -> None: ...
    def train(self, batch: tuple[list[int], int, int], scale: float,
              forward: Callable[[int, int, list[torch.Tensor]], list[torch.Tensor]]) -> float | None:
        """None, on every rank: one is out of memory, and the batch is to be repeated in more micro-batches."""
    def evaluate(self, batch: tuple[list[int], int, int],
                 forward: Callable[[int, int, list[torch.Tensor]], list[torch.Tensor]]) -> float | None: ...
    def counts(self, parameter: torch.Tensor) -> bool:
        """Whether its gradient counts here for a norm over all ranks."""

def whole_parts(total: int, weights: list[float]) -> list[int]:
    """How many of ``total`` whole pieces each rank gets: at least 1, in proportion to the weights as far as that goes."""

class TensorCuts:
    """Which part of each parameter a rank has: src/bimetal/parallel/tensor/tensor_model.h. Keeps no tensor."""

    def __init__(self, parameters: list[tuple[str, torch.Tensor]], splits: list[tuple[str, int, int, int]],
                 weights: list[float]) -> None:
        """``splits``: a parameter, the dimension that is cut, how much of it stays together, and of how many segments it is
        made, which are cut alike."""

    def has(self, parameter: str) -> bool:
        """Whether it is cut."""

    def part(self, parameter: str, whole: torch.Tensor, rank: int) -> torch.Tensor:
        """A copy; ``whole`` itself where it is not cut."""

    def places(self, parameter: str, rank: int) -> tuple[int, list[tuple[int, int]]]:
        """The dimension, and (first, count) in each segment."""

class PartRanks:
    """Ranks that have a module's tensors in parts: src/bimetal/parallel/tensor/group_ranks.h. All make the same calls in the
    same order, which let go of the interpreter's lock. Errors in backward are torch.distributed.DistBackendError."""

    def __init__(self, group: ProcessGroup, weights: list[float]) -> None:
        """Collective."""

    def shared(self, x: torch.Tensor) -> torch.Tensor:
        """``x``, whose gradient is the sum of the ranks' gradients."""

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of the ranks' ``x``; its gradient is that of each of them."""

    def gathered(self, part: torch.Tensor, columns: int) -> torch.Tensor:
        """All columns of ``part`` [n, columns here]. Each rank's gradient is that of its own columns, without a message: the
        ranks must have the same gradient of the whole."""

    def cross_entropy_sum(self, logits: torch.Tensor, targets: torch.Tensor, vocabulary: int, ignored: int) -> torch.Tensor:
        """The sum over ``targets`` [n] but those ``ignored``, of ``logits`` [n, those of the vocabulary that are here]:
        src/bimetal/parallel/tensor/group_ranks.h."""

    def follow_first(self, tensors: list[torch.Tensor]) -> None:
        """Their values become rank 0's."""

class CoreOptimizer:
    """Adam, AdamW or LAMB of the C++ core. ``folder``: of the file with Adam's moments, "" for memory."""

    def __init__(self, kind: str, parameters: list[torch.Tensor], learning_rate: float, betas: tuple[float, float],
                 epsilon: float, weight_decay: float, folder: str) -> None: ...
    def set_learning_rate(self, rate: float) -> None: ...
    def step(self) -> None: ...
    def states(self) -> list[tuple[int, torch.Tensor, torch.Tensor] | None]:
        """Steps and both moments of each parameter; None before its first step."""

    def set_states(self, states: list[tuple[int, torch.Tensor, torch.Tensor] | None]) -> None: ...

class PredictionClient:
    """Asks a server of predictions; connects when it is first needed, and anew after an error. Not thread-safe."""

    def __init__(self, address: str, token_file: str) -> None: ...
    def facts(self, seconds: float) -> dict[str, Any]:
        """model, release, channels, height, width, classes, mean, stddev, dtype."""

    def predict(self, samples: torch.Tensor, seconds: float) -> tuple[torch.Tensor, int, int]:
        """(float64 logits [n, classes], oldest step, newest step) of uint8, float32 or float64 [n, ...]."""

    def figures(self, seconds: float) -> dict[str, Any]:
        """requests, samples, batches, refused, clients, latency_median_s, latency_p99_s."""

class DeepSpeedConfig:
    """DeepSpeed's configuration, read as `bimetal train --deepspeed` does."""

    def __init__(self, text: str, origin: str, ranks: int, learning_rate: float = ...) -> None:
        """``learning_rate``: where the configuration says none."""

    job: str
    """The job that comes of it, as JSON."""

    notices: list[str]
    optimizer: bool
    scheduler: bool
    micro_batch: int
    accumulation: int
    zero_level: int

    def set_total_steps(self, steps: int) -> None:
        """Sets the training's steps, for a schedule that falls until its end."""

    def learning_rate(self, step: int) -> float:
        """The rate of optimizer step number `step`, counted from 1."""

    loss_scale: float
    """The factor of losses; 1 without float16."""

    def update_loss_scale(self, overflow: bool) -> None: ...
    @property
    def loss_scale_state(self) -> tuple[float, int, int, int]: ...
    def restore_loss_scale(self, state: tuple[float, int, int, int]) -> None: ...

class LoopMonitor:
    """A loop's figures, shown as a job's are: pages for HTTP, and TensorBoard's scalars."""

    def __init__(self, listen: str, tensorboard: str, host_name: str, counts: str, run_dir: str, settings: str) -> None:
        """``listen``, ``tensorboard`` and ``run_dir``: empty for none. ``settings``: TOML, for the run's record."""

    @property
    def address(self) -> str: ...
    def link(self) -> str:
        """For a browser, once; empty where there are no pages."""

    def set_workers(self, host_and_device: list[tuple[str, str]]) -> None: ...
    def lines(self, rank: int, host: str, said: list[tuple[float, str, str]]) -> None:
        """Takes a rank's log: Unix time, kind and text of each line."""

    def start(self) -> None:
        """Time counts from here on."""

    def end(self, interrupted: bool, loss: float) -> None:
        """For the record: without this call the loop has failed."""

    def stop(self) -> None: ...
    def step(self, epoch_of: tuple[int, int], step_of: tuple[int, int], batch: int, loss: float, shares: list[int],
             ranks: list[tuple[float, float, float, float, float]]) -> str:
        """The line for a terminal. ``epoch_of``: from 0; ``batch``: a step's average weight. ``ranks``: for each, samples and
        seconds of compute in the step; since the loop's start seconds of waiting and bytes sent; samples per second by itself.
        NaN for unknown values."""

    def evaluated(self, epoch: int, loss: float, metrics: list[tuple[str, float]], data: str) -> str:
        """The line for a terminal."""

    def close(self) -> None: ...

def run_program(arguments: list[str]) -> int:
    """The program bimetal, in this process; use it by ``python -m bimetal.program``."""

def note_output(line: str) -> None:
    """A line that this process has written, for the program's page and log."""

def in_a_step() -> bool:
    """Whether the program of this process computes samples just now."""

def dropout_by_sample(x: torch.Tensor, p: float, layer: int) -> torch.Tensor:
    """Dropout of ``x`` [n, …]: each sample's by its own number, within a step."""
