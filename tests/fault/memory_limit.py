"""A group of processes that the kernel holds to so much memory, and kills a process of that wants more."""

import os
import pathlib
import time

ROOT = pathlib.Path("/sys/fs/cgroup")


class MemoryLimit:
    """with MemoryLimit(bytes) as limit: Popen(…, preexec_fn=limit.enter). why_not() says why there is none."""

    def __init__(self, size):
        self.size = size
        v1 = (ROOT / "memory").is_dir()
        self.key = "memory.limit_in_bytes" if v1 else "memory.max"
        self.folder = (ROOT / "memory" if v1 else ROOT) / f"bimetal-test-{os.getpid()}-{id(self):x}"

    def __enter__(self):
        self.folder.mkdir()
        (self.folder / self.key).write_text(str(self.size))
        return self

    def __exit__(self, *_):
        end = time.monotonic() + 10
        while True:
            try:
                return self.folder.rmdir()
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def enter(self):
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))


def why_not():
    try:
        with MemoryLimit(1 << 30):
            return None
    except OSError as error:
        return f"no memory limits can be made here: {error}"
