"""Slows a process down as a slower machine would: by the operating system, not by the program.

A CPU quota of a cgroup (v1 or v2) where one can be written, else a SIGSTOP/SIGCONT duty cycle.
The default period is short (10 ms) because a slower processor is slow all the time: with the
kernel's default of 100 ms a quarter-speed process runs for 25 ms and then stands still for 75.
"""

import os
import signal
import threading
import time

from cgroup import make_cgroup


class CpuLimit:
    """Context manager that holds processes to `speed` (0…1) of one core.

    with CpuLimit(0.25) as limit:
        subprocess.Popen(..., preexec_fn=limit.enter)   # cgroup: joins before exec
        limit.watch(process.pid)                        # duty cycle: from outside
    """

    def __init__(self, speed: float, period_ms: float = 10.0):
        if not 0 < speed <= 1:
            raise ValueError(f"speed must lie in (0, 1], not {speed}")
        self.speed, self.period_us = speed, int(period_ms * 1000)
        self.how = "none"
        self._group = None
        self._stop = threading.Event()
        self._threads = []

    def __enter__(self):
        if self.speed < 1:
            self.how = self._make_cgroup() or "duty cycle of SIGSTOP/SIGCONT"
        return self

    def _make_cgroup(self):
        quota = max(1000, int(self.period_us * self.speed))
        attempts = (
            ("cgroup v1 quota", "cpu",
             {"cpu.cfs_period_us": str(self.period_us), "cpu.cfs_quota_us": str(quota)}),
            ("cgroup v2 quota", "", {"cpu.max": f"{quota} {self.period_us}"}),
        )
        self._group = make_cgroup(attempts, self)
        return f"{self._group.how}, period {self.period_us / 1000:g} ms" if self._group else None

    def change(self, speed: float):
        """Another speed from now on, for limits that began below 1."""
        self.speed = speed
        if self._group:
            quota = str(max(1000, int(self.period_us * speed)))
            if (self._group.folder / "cpu.cfs_quota_us").exists():
                self._group.set("cpu.cfs_quota_us", quota)
            else:
                self._group.set("cpu.max", f"{quota} {self.period_us}")

    def enter(self):
        """For preexec_fn: puts the calling process under the quota."""
        if self._group:
            self._group.enter()

    def add(self, pid: int):
        """Puts a process that is running, and those that it starts from now on, under the quota."""
        if self._group:
            self._group.add(pid)
        else:
            self.watch(pid)

    def watch(self, pid: int):
        """Starts the duty cycle for `pid` where no cgroup could be made."""
        if self.speed < 1 and not self._group:
            thread = threading.Thread(target=self._duty_cycle, args=(pid,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _duty_cycle(self, pid: int):
        period = self.period_us / 1e6
        try:
            while not self._stop.is_set():
                os.kill(pid, signal.SIGCONT)
                time.sleep(period * self.speed)
                os.kill(pid, signal.SIGSTOP)
                time.sleep(period * (1 - self.speed))
        except ProcessLookupError:
            return
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._group:
            self._group.remove()
