"""Control groups of the kernel (v1 or v2), each with one limit, that go with the benchmark that makes them."""

import os
import pathlib
import time

ROOT = pathlib.Path("/sys/fs/cgroup")


class Cgroup:
    """`enter` puts the calling process into it, as subprocess.Popen(..., preexec_fn=group.enter) does before exec."""

    def __init__(self, how: str, folder: pathlib.Path):
        self.how, self.folder = how, folder

    def enter(self):
        self.add(os.getpid())

    def add(self, pid: int):
        """A process that is running, and those that it starts from now on."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    def set(self, key: str, value: str):
        (self.folder / key).write_text(value)

    def remove(self):
        """Once its processes have ended."""
        deadline = time.monotonic() + 5
        while True:
            try:
                self.folder.rmdir()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def make_cgroup(attempts, owner):
    """The first of `attempts` (how, controller's folder below ROOT or "", settings) that this system lets one make; else None."""
    for how, controller, settings in attempts:
        folder = ROOT / controller / f"bimetal-bench-{os.getpid()}-{id(owner):x}"
        if not folder.parent.exists():
            continue
        try:
            folder.mkdir()
        except OSError:
            continue
        group = Cgroup(how, folder)
        try:
            for key, value in settings.items():
                if not (folder / key).exists():
                    raise OSError(f"no {key}")
                group.set(key, value)
        except OSError:
            folder.rmdir()
            continue
        return group
    return None
