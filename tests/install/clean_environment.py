"""An environment of Python's own for tests of wheels: nothing in it but what is installed from files. The torch in it is that of
the Python that runs the tests, so that nothing is downloaded."""

import os
import pathlib
import subprocess
import sys
import tempfile
import venv

import torch

SECONDS = 180


class CleanEnvironment:
    def __init__(self, test_class, *wheels, extra=""):
        """Until the class's tests are over. `folder` is empty, and where commands run. `extra`: of the first wheel; what it needs has
        to be where torch is."""
        place = tempfile.TemporaryDirectory(prefix="bimetal-test-")
        test_class.addClassCleanup(place.cleanup)
        self.place = pathlib.Path(place.name, "venv").resolve()
        self.folder = pathlib.Path(place.name, "work").resolve()
        self.folder.mkdir()
        venv.create(self.place, with_pip=False)
        self.packages, = self.place.glob("lib/python*/site-packages")
        # torch's needs are beside it or, if another environment is on the tests' way, in that one.
        places = dict.fromkeys([*(path for path in sys.path if path.endswith("site-packages")), str(pathlib.Path(torch.__file__).parents[1])])
        (self.packages / "torch_of_the_tests.pth").write_text("".join(f"{place}\n" for place in places))
        if extra:
            wheels = (f"{wheels[0]}[{extra}]", *wheels[1:])
        done = self.pip("install", *(() if extra else ("--no-deps",)), "--no-index", *wheels)
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)

    def pip(self, *words):
        """pip with this environment as its own; it is not in it."""
        return subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python",
                               self.place / "bin" / "python", *words], cwd=self.folder, capture_output=True, text=True, timeout=SECONDS)

    def run(self, *words, environment=None, seconds=SECONDS):
        """A command of the environment, by its name or path."""
        return subprocess.run(self.command(*words), **self.process(environment), timeout=seconds)

    def command(self, *words):
        return [str(self.place / "bin" / words[0]), *map(str, words[1:])]

    def process(self, environment=None):
        """How it is started: options of subprocess.Popen()."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "BIMETAL", "LD_LIBRARY"))}
        ours |= {"INSTALLED": str(self.packages), "OMP_NUM_THREADS": "1", **(environment or {})}
        return {"cwd": self.folder, "env": ours, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
