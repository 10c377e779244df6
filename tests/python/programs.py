"""Example programs as ranks of a test, in an environment where the package is installed."""

import os
import pathlib
import signal
import sys
import tempfile
import tomllib

import ranks

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

# Threads of torch's own Gloo backend sometimes outlive it when the process group is destroyed.
GLOO_AT_ITS_END = "terminate called without an active exception"


def run(script, *arguments, count=2, timeout=240, without=()):
    """The output of rank 0 of `count` ranks of examples/SCRIPT, or of a file by its whole path."""
    return outputs(script, *arguments, count=count, timeout=timeout, without=without)[0]


def outputs(script, *arguments, count=2, timeout=240, without=()):
    """The output of each rank; AssertionError with all of it if one fails."""
    path = EXAMPLES / script
    command = [sys.executable, str(path), *map(str, arguments)]
    if without:
        command = ["env", *(f"--unset={name}" for name in without), *command]
    with tempfile.TemporaryDirectory(prefix="bimetal-test-") as folder:
        search = [install_entry_point(folder), str(EXAMPLES / "textbook"), os.environ["PYTHONPATH"]]
        with ranks.Job(count, [command] * count, {"PYTHONPATH": os.pathsep.join(search)}) as job:
            statuses = job.wait(timeout)
            on_gloo = '"gloo")\n' in path.read_text() and GLOO_AT_ITS_END in job.text()
            if any(statuses) and not (on_gloo and set(statuses) <= {0, -signal.SIGABRT}):
                raise AssertionError(f"exit statuses {statuses}\n{job.text()}")
            return [job.output(rank) for rank in range(count)]


def install_entry_point(folder):
    """Writes pip's notes beside the package, by which torch knows the back end's name. Returns the folder to look
    in."""
    written = pathlib.Path(folder, "bimetal-0.dist-info")
    written.mkdir()
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["torch.backends"]
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (written / "entry_points.txt").write_text("\n".join(["[torch.backends]", *lines]))
    pathlib.Path(folder, "bimetal_autoload").symlink_to(ROOT / "python" / "bimetal_autoload")
    return str(folder)
