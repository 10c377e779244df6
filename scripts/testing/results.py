"""The results of earlier runs, in a file outside of the repository: how long each test took, whether it passed, of
which inputs, and which tests passed only at a second try. Where the file is gone, nothing is known, and everything
runs."""

import datetime
import json
import os
import pathlib
import tempfile

KEPT_FLAKY = 200


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(os.environ.get("BIMETAL_TEST_CACHE") or pathlib.Path(base) / "bimetal")


class Results:
    def __init__(self, path=None, keep=True):
        self.path, self.keep = pathlib.Path(path or cache_folder() / "tests.json"), keep
        try:
            known = json.loads(self.path.read_text())
        except (OSError, ValueError):
            known = {}
        self.tests = known.get("tests", {})
        self.flaky = known.get("flaky", [])

    def seconds(self, name, otherwise=5.0):
        return self.tests.get(name, {}).get("seconds", otherwise)

    def when(self, name):
        """When it last ran, an ISO date; "" sorts before all."""
        return self.tests.get(name, {}).get("when", "")

    def failed_last(self, name):
        return self.tests.get(name, {}).get("passed") is False

    def holds(self, name, inputs):
        """Whether it passed with exactly these inputs."""
        known = self.tests.get(name, {})
        return bool(inputs) and known.get("passed") is True and known.get("inputs") == inputs

    def add(self, name, passed, seconds, inputs):
        self.tests[name] = {"passed": passed, "seconds": round(seconds, 2), "when": now(), "inputs": inputs}

    def add_flaky(self, name):
        self.flaky = [*self.flaky, {"name": name, "when": now(), "load": round(os.getloadavg()[0], 1)}][-KEPT_FLAKY:]

    def save(self):
        if not self.keep:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False) as file:
            json.dump({"tests": self.tests, "flaky": self.flaky}, file, indent=1, sort_keys=True)
        os.replace(file.name, self.path)


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
