"""Gives a process as much memory as a smaller machine has: a limit of a cgroup, at which the kernel ends it."""

from cgroup import make_cgroup


class MemoryLimit:
    """Context manager that holds processes to `bytes_` of memory, with what they use of files and shared memory.

    with MemoryLimit(5 << 30) as limit:
        subprocess.Popen(..., preexec_fn=limit.enter)
    """

    def __init__(self, bytes_: int):
        self.bytes = bytes_
        self.how = "none"
        self._group = None

    def __enter__(self):
        attempts = (("cgroup v1", "memory", {"memory.limit_in_bytes": str(self.bytes)}),
                    ("cgroup v2", "", {"memory.max": str(self.bytes), "memory.swap.max": "0"}))
        self._group = make_cgroup(attempts, self)
        if self._group is None:
            raise OSError("no cgroup with a limit of memory can be made here: that needs root, and the memory controller")
        self.how = self._group.how
        return self

    def enter(self):
        """For preexec_fn: puts the calling process under the limit."""
        self._group.enter()

    def kills(self) -> int:
        """Processes that the kernel has ended for want of memory."""
        for name in ("memory.oom_control", "memory.events"):
            path = self._group.folder / name
            if path.exists():
                counts = dict(line.split() for line in path.read_text().splitlines())
                return int(counts.get("oom_kill", 0))
        return 0

    def __exit__(self, *_):
        self._group.remove()
