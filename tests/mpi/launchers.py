"""The mpirun of each family, where this machine has it, and runs that leave nothing behind."""

import os
import re
import shutil
import subprocess
import sys
import threading
import time

PATIENCE_S = 120

FAMILIES = {
    "open_mpi": {"programs": ["mpirun.openmpi", "orterun", "mpirun"], "words": "Open MPI|OpenRTE",
                 "package": "openmpi-bin", "library": "libmpi.so.40",
                 # More ranks than cores; and tests may run as root, which it refuses by itself.
                 "options": ["--oversubscribe"] + (["--allow-run-as-root"] if os.geteuid() == 0 else [])},
    "mpich": {"programs": ["mpirun.mpich", "mpiexec.hydra", "mpirun"], "words": "HYDRA|MPICH",
              "package": "mpich", "library": "libmpich.so.12", "options": []},
}


def find(family):
    """Path of the family's mpirun; ends the test as skipped if there is none."""
    for program in FAMILIES[family]["programs"]:
        path = shutil.which(program)
        if not path:
            continue
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False)
        if re.search(FAMILIES[family]["words"], said.stdout + said.stderr):
            return path
    print(f"skipped: no mpirun of {family} here (Debian: apt-get install {FAMILIES[family]['package']})")
    sys.exit(77)


def command(family, ranks, program):
    return [find(family), "-n", str(ranks), *FAMILIES[family]["options"], *program]


def environment(**changes):
    """This one without what would decide for the ranks; None takes a variable away."""
    own = {name: value for name, value in os.environ.items()
           if name not in ("RANK", "WORLD_SIZE", "BIMETAL_TRANSPORT", "BIMETAL_ENCRYPTION", "BIMETAL_MPI_LIBRARY")}
    own.update({name: value for name, value in changes.items() if value is not None})
    return own


class Run:
    """mpirun in the background. Processes that are left when the block ends are killed."""

    def __init__(self, family, ranks, program, **changes):
        self.process = subprocess.Popen(command(family, ranks, program), env=environment(**changes),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, start_new_session=True)
        self.lines = []
        self.pids = {}
        # A run that hangs ends here, and so does the thread that reads its output.
        self.limit = threading.Timer(PATIENCE_S, self.process.kill)
        self.limit.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.limit.cancel()
        for pid in [*self.pids.values(), self.process.pid]:
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
        self.process.stdout.close()
        self.process.wait()

    def read_until(self, pattern, times=1):
        """Reads lines until so many match."""
        seen = 0
        for line in self.process.stdout:
            self.take(line)
            seen += bool(re.search(pattern, line))
            if seen == times:
                return
        raise AssertionError(f"'{pattern}' was not said {times} times in:\n{self.text()}")

    def finish(self):
        """The exit status, when all output has been read."""
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        for line in output.splitlines(keepends=True):
            self.take(line)
        return self.process.returncode

    def take(self, line):
        self.lines.append(line)
        if match := re.search(r"rank (\d+) is process (\d+)", line):
            self.pids[int(match[1])] = int(match[2])

    def text(self):
        return "".join(self.lines)

    def left_behind(self):
        """Ranks that still exist a moment after the end."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            alive = [rank for rank, pid in self.pids.items() if os.path.exists(f"/proc/{pid}")]
            if not alive:
                return []
            time.sleep(0.05)
        return alive
