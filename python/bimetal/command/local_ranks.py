"""Ranks as processes of this machine: started, looked at and ended, for bimetal.horovod.run, which says what their ends mean for
the job. Not for Windows."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from bimetal.command.rank_output import RankOutput

_SECONDS_TO_END = 10.0  # between SIGTERM and SIGKILL
_SECONDS_TO_FOLLOW_ITS_TRACEBACK = 1.0
_SECONDS_TO_READ = 2.0  # for what ranks have left behind; processes of their own may hold the pipes open
_PAUSE_S = 0.05

# Where the system can do that, whatever ends the launcher ends its ranks: the process asks for it (PR_SET_PDEATHSIG) before it
# becomes the rank. Not between fork and exec of the launcher, whose other threads may hold what Python needs there.
_DIE_WITH_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
for name in (signal.SIGPIPE, signal.SIGXFSZ): signal.signal(name, signal.SIG_DFL)  # which Python has ignored
if os.getppid() == int(sys.argv[1]): os.execvp(sys.argv[2], sys.argv[2:])
"""


class LocalRanks:
    """For one thread. ``end`` is to be called, whatever happens.

    Args:
        prefixed: whether each line that they print gets its rank's number in front.
        each_by_itself: a rank's end has nothing to do with the others': none is waited for to name a cause.
    """

    def __init__(self, prefixed: bool, each_by_itself: bool = False) -> None:
        self._prefixed = prefixed
        self._each_by_itself = each_by_itself
        self._output = RankOutput()
        self._living: dict[int, subprocess.Popen[bytes]] = {}

    def __len__(self) -> int:
        """Those whose end ``ended`` has not told yet."""
        return len(self._living)

    def start(self, rank: int, command: Sequence[str], environment: dict[str, str]) -> None:
        """With nothing on its standard input. OSError if there is no such command."""
        # A session of its own, so that Ctrl-C reaches the launcher alone, which hands it on once.
        pipe = subprocess.PIPE if self._prefixed else None
        if shutil.which(command[0], path=environment.get("PATH")) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", _DIE_WITH_LAUNCHER, str(os.getpid()), *command]
        process = subprocess.Popen(command, env={"PYTHONUNBUFFERED": "1", **environment}, start_new_session=True,
                                   stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
        self._living[rank] = process
        self._output.read(rank, process)

    def ended(self) -> list[tuple[int, int]]:
        """Ranks that have ended since the last call, with their statuses as of subprocess: those first that can be no
        consequence of the others' ends."""
        self._output.look()
        ended = [rank for rank, process in self._living.items() if process.poll() is not None]
        failed = [rank for rank in ended if self._living[rank].returncode != 0]
        first = self._output.first_to_complain()
        if failed and first in self._living and first not in ended and not self._each_by_itself:
            # It has begun to end, which takes a rank with much to tidy up longer than those that miss it.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._living[first].wait(_SECONDS_TO_FOLLOW_ITS_TRACEBACK)
                ended.append(first)
        ended.sort(key=lambda rank: (self._living[rank].returncode >= 0, rank != first, rank))
        return [(rank, self._living.pop(rank).returncode) for rank in ended]

    def name_cause(self, rank: int) -> None:
        """The job has failed because of this rank: the others' tracebacks tell no more."""
        self._output.name_cause(rank)

    def tell(self, number: int) -> None:
        """A signal for all, and for what they have started."""
        for process in self._living.values():
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)

    def end(self, at_once: bool = False) -> list[int]:
        """Ends all that still run, by SIGKILL those that SIGTERM does not, and shows what they have printed.

        Returns:
            the ranks whose tracebacks were left out.
        """
        for number in (signal.SIGKILL,) if at_once else (signal.SIGTERM, signal.SIGKILL):
            self.tell(number)
            until = time.monotonic() + _SECONDS_TO_END
            while any(process.poll() is None for process in self._living.values()) and time.monotonic() < until:
                time.sleep(_PAUSE_S)
        self._output.end(_SECONDS_TO_READ)
        return self._output.left_out()


def how_it_ended(status: int) -> str:
    """Of one that failed, in words."""
    if status >= 0:
        return f"ended with status {status}"
    return f"was killed by signal {-status} ({signal.Signals(-status).name})"


def as_exit_status(status: int) -> int:
    """Of subprocess's, as a shell has it."""
    return 128 - status if status < 0 else status
