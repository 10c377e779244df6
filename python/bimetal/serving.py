"""Asking a served model: ``bimetal serve``, or a job with parameter servers while it trains.

::

    from bimetal.serving import Predictor

    with Predictor("127.0.0.1:29600") as predictor:
        result = predictor.predict(images)        # numpy or torch, uint8 [n, 28, 28]
        print(result.classes, result.step)

docs/serving.md has the whole story.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from typing import Any

import torch

from bimetal import _C
from bimetal._errors import error
from bimetal._torch_check import require_torch_library


@dataclasses.dataclass(frozen=True)
class PredictResult:
    """A model's predictions for some samples, in their order; all tensors are on the CPU.

    Attributes:
        logits: float64 [n, classes], as the model gives them.
        step: optimizer steps behind the weights. A large request is computed in several batches, and a job in training
            may move on between them: then those of the oldest weights.
        newest_step: those of the newest weights.
    """

    logits: torch.Tensor
    step: int
    newest_step: int

    @property
    def probabilities(self) -> torch.Tensor:
        """float64 [n, classes], the softmax of the logits."""
        return torch.softmax(self.logits, 1)

    @property
    def classes(self) -> torch.Tensor:
        """int64 [n], the most probable ones."""
        return self.logits.argmax(1)


class Predictor:
    """A client of a server of predictions. It connects at its first call, and anew after an error.

    Thread-safe: calls from several threads take turns. Threads that are to ask at once have one Predictor each.

    Args:
        address: ``"ADDR:PORT"`` of ``bimetal serve``, or of a job (``bimetal train --listen``).
        token_file: the server's shared secret; without one ``BIMETAL_TOKEN_FILE`` or ``BIMETAL_TOKEN``, if they
            are set. Needed beyond loopback.
        timeout: seconds within which each call ends, connecting included, which is given up after 15 s.

    Raises:
        ImportError: without the torch library; it says what to install.
        bimetal.Error: with code ``invalid_argument`` for an address or token file that makes no sense. All other
            methods raise: ``timeout``, ``peer_lost``, ``unauthorized`` (another token), ``unsupported`` (a job that
            serves no predictions), ``aborted`` (the server is busy, or ends), ``protocol_mismatch``.
    """

    def __init__(self, address: str, *, token_file: str | os.PathLike[str] | None = None, timeout: float = 60.0):
        require_torch_library("bimetal.serving.Predictor()")
        if timeout <= 0:
            raise error("the timeout must be more than 0 s", "invalid_argument")
        self._client: Any = _C.PredictionClient(address, "" if token_file is None else os.fspath(token_file))
        self._timeout = timeout
        self._turn = threading.Lock()

    def predict(self, samples: Any) -> PredictResult:
        """Asks about samples of the model's shape.

        Args:
            samples: a torch tensor or whatever ``torch.as_tensor`` takes (a numpy array): [n, C, H, W], or [n, H, W]
                for grey images. uint8 are pixels, which the server normalises as in training; floats are taken as
                the model takes them: (x / 255 - mean) / stddev, see :meth:`model`. Any n of at least 1.

        Raises:
            bimetal.Error: with code ``invalid_argument`` for samples of another shape or type.
        """
        tensor = torch.as_tensor(samples).detach().cpu()
        if tensor.dtype not in (torch.uint8, torch.float32, torch.float64):
            raise error(f"samples must be uint8 (pixels), float32 or float64 (normalised), not {tensor.dtype}",
                        "invalid_argument")
        with self._turn:
            facts = self._open().facts(self._timeout)
            shape = [facts["channels"], facts["height"], facts["width"]]
            grey = tensor.dim() == 3 and shape[0] == 1 and list(tensor.shape[1:]) == shape[1:]
            if not (grey or list(tensor.shape[1:]) == shape) or tensor.shape[0] == 0:
                raise error(f"samples are {list(tensor.shape)}, and the model '{facts['model']}' takes [n, "
                            f"{', '.join(map(str, shape))}]", "invalid_argument")
            logits, oldest, newest = self._open().predict(tensor.contiguous(), self._timeout)
        return PredictResult(logits, oldest, newest)

    def model(self) -> dict[str, Any]:
        """The served model: ``model`` (its name), ``release``, ``channels``, ``height``, ``width``, ``classes``,
        ``mean`` and ``stddev`` (of pixel / 255 in training: lists of one number for each channel, or one for all),
        ``dtype`` (that it computes in)."""
        with self._turn:
            return self._open().facts(self._timeout)

    def figures(self) -> dict[str, Any]:
        """The server's totals for all its clients: ``requests``, ``samples``, ``batches``, ``refused``, ``clients``,
        and, for the last 1000 requests, ``latency_median_s`` and ``latency_p99_s``."""
        with self._turn:
            return self._open().figures(self._timeout)

    def close(self) -> None:
        """Hangs up. Nothing can be asked any more."""
        with self._turn:
            self._client = None

    def __enter__(self) -> Predictor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> Any:
        if self._client is None:
            raise error("this Predictor has been closed", "invalid_argument")
        return self._client
