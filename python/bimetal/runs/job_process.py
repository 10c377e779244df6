"""One rank of a job file: the program `bimetal` as a child of this process, which it does not outlive."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

from bimetal._errors import EXIT_STATUSES, INTERRUPTED

# Variables that this process may have inherited (from Ray, or from the program that started the node), and the rank
# must not see.
_NOT_PASSED_ON = ("OMP_NUM_THREADS", "BIMETAL_TOKEN_FILE", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID",
                  "TORCHELASTIC_RESTART_COUNT", "BIMETAL_STORE", "BIMETAL_REQUEST", "BIMETAL_SERVER", "BIMETAL_ELASTIC", "BIMETAL_DOOR",
                  "BIMETAL_BOARD")
# A world of one rank: it meets nobody and listens nowhere, so the port is a formality.
SOLO = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
_CODES = {status: code for code, status in EXIT_STATUSES.items()}


class JobProcess:
    """Starts the rank and tells the mailbox what it says: lines, progress, checkpoints, and its end.

    The child holds the read end of a pipe (the lifeline) whose other end is this process's alone: when the parent
    is gone, however it went, the child ends at once.

    Args:
        command: the program and its arguments.
        variables: of torchrun, and the job's token.
        report: where rank 0 writes its figures.
        mailbox: where all goes.
        folder: in which it runs; None: this process's.

    Attributes:
        door: where another process may join the job; empty: it is not elastic, or over.
    """

    def __init__(self, command: Sequence[str], variables: dict[str, str], report: pathlib.Path, mailbox: Mailbox,
                 folder: pathlib.Path | None = None):
        self.door = ""
        self._report = report
        self._mailbox = mailbox
        self._rank = int(variables["RANK"])
        self._failure: dict[str, Any] | None = None
        self._last_words: list[str] = []
        lifeline, self._lifeline = os.pipe()
        status, status_in_child = os.pipe()
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
        environment.update(variables, BIMETAL_LIFELINE_FD=str(lifeline), BIMETAL_STATUS_FD=str(status_in_child))
        try:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                pass_fds=(lifeline, status_in_child), start_new_session=True, text=True, errors="replace",
                cwd=folder)
        except OSError:
            os.close(self._lifeline)
            os.close(status)
            raise
        finally:
            os.close(lifeline)
            os.close(status_in_child)
        threads = [threading.Thread(target=target, daemon=True) for target in (
            self._read_output, self._read_errors, lambda: self._read_status(status))]
        for thread in threads:
            thread.start()
        threading.Thread(target=self._wait, args=(threads,), daemon=True).start()

    def stop(self) -> None:
        """Asks the rank to end after its step, with a checkpoint where the job has them."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)  # Ray lets its processes, and so their children, ignore SIGINT

    def kill(self) -> None:
        """Ends the rank at once."""
        self._process.kill()

    def wait(self) -> None:
        """Until it is gone; not for long once it has ended or been killed."""
        self._process.wait()

    def _read_output(self) -> None:
        for line in self._process.stdout:
            self._mailbox.put("line", text=line.rstrip("\n"))

    def _read_errors(self) -> None:
        for line in self._process.stderr:
            self._last_words = [*self._last_words[-9:], line.rstrip("\n")]
            self._mailbox.put("line", text=line.rstrip("\n"))

    def _read_status(self, descriptor: int) -> None:
        with os.fdopen(descriptor, errors="replace") as pipe:
            for line in pipe:
                said = json.loads(line)
                event = said.pop("event")
                if event == "error":
                    self._failure = said
                elif event == "door":
                    self.door = said["address"]
                elif event == "leads":
                    self._mailbox.put("leads")
                elif event == "checkpoint":
                    self._mailbox.put("checkpoint", path=said["path"], step=said["step"])
                else:
                    self._mailbox.put(event, metrics=said)

    def _wait(self, readers: Sequence[threading.Thread]) -> None:
        status = self._process.wait()
        os.close(self._lifeline)
        for reader in readers:
            reader.join(5)  # pipes end with the process, unless somebody inherited them
        self.door = ""
        if status in (0, INTERRUPTED):
            report = json.loads(self._report.read_text()) if self._report.exists() else None
            self._mailbox.put("ended", interrupted=status == INTERRUPTED, report=report)
        elif self._failure:
            self._mailbox.put("failed", text=self._failure["message"], code=self._failure["code"],
                              about=self._failure.get("rank"), died=False, own=False)
        elif status < 0:
            name = signal.Signals(-status).name
            self._mailbox.put("failed", text=f"was killed by signal {-status} ({name})", code="peer_lost",
                              about=self._rank, died=True, own=False)
        else:
            words = "\n  ".join(["", *self._last_words])
            self._mailbox.put("failed", text=f"ended with status {status}{words}",
                              code=_CODES.get(status, "internal"), about=None, died=False, own=False)


_MOST_LINES = 10_000  # lines of output that wait; older ones give way


class Mailbox:
    """Events in order, numbered from 0. Thread-safe."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._first = 0  # number of the oldest that is kept
        self._changed = threading.Condition()

    def put(self, kind: str, **details: Any) -> None:
        with self._changed:
            self._events.append({"kind": kind, **details})
            if kind == "line" and len(self._events) > _MOST_LINES and self._events[0]["kind"] == "line":
                del self._events[0]
                self._first += 1
            self._changed.notify_all()

    def take(self, after: int, seconds: float) -> tuple[int, list[dict[str, Any]]]:
        """The events from number ``after`` on, and the number that comes next; waits so long for the first one."""
        until = time.monotonic() + seconds
        with self._changed:
            while self._first + len(self._events) <= after:
                rest = until - time.monotonic()
                if rest <= 0:
                    break
                self._changed.wait(rest)
            del self._events[:max(0, after - self._first)]  # taken before
            self._first = max(self._first, after)
            return self._first + len(self._events), list(self._events)
