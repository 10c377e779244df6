"""The exception class of the package."""

from __future__ import annotations

import torch.distributed as dist

from bimetal import _C, _torch_check
from bimetal._core import core


class Error(dist.DistBackendError):
    """A failure, with a code that programs can tell apart and the rank that is to blame.

    Being a ``torch.distributed.DistBackendError`` (and so a ``RuntimeError``), it is caught by code that catches
    torch's own. If an error passes through autograd (DDP's and FSDP's backward), torch turns it into a plain
    ``DistBackendError``: its message ends with code and rank, too, as in ``[peer_lost, rank 2]``.

    Attributes:
        code: ``invalid_argument``, ``unsupported``, ``timeout``, ``peer_lost``, ``aborted``, ``unauthorized``,
            ``protocol_mismatch``, ``call_mismatch``, ``corrupt_data``, ``out_of_memory``, ``not_finite``,
            ``system`` or ``internal``; docs/errors.md tells the usual causes of each.
        rank: the global rank that the error is about (the lost peer), or None.
    """

    def __init__(self, message: str, code: str = "internal", rank: int | None = None):
        super().__init__(message)
        self.code = code
        self.rank = rank


def error(text: str, code: str, rank: int | None = None) -> Error:
    """An Error whose text ends with code and rank, as those of the C++ core do."""
    return Error(f"{text} [{code}{'' if rank is None else f', rank {rank}'}]", code, rank)


core.set_error_class(Error)
if _torch_check.fits():
    _C.set_error_class(Error)

# The exit statuses of the program, and of modules started with `python -m`: docs/errors.md.
EXIT_STATUSES = {"invalid_argument": 2, "unsupported": 3, "timeout": 4, "peer_lost": 5, "aborted": 6, "unauthorized": 7,
                 "protocol_mismatch": 8, "call_mismatch": 9, "corrupt_data": 10, "out_of_memory": 11, "not_finite": 12,
                 "system": 13, "internal": 14}
INTERRUPTED = 130  # by Ctrl-C or SIGTERM
