"""The tests that CTest knows, and which of them a command runs."""

import dataclasses
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Labels of tests that `make test` leaves out. `rest`: cases that tests/make_test.txt does not name. `engines`: tests that
# scripts/test_engines.sh runs once it has installed Slurm and sshd. `suites`: scripts that install what they need and count their
# own tests. `endurance`: long runs.
ENGINES, ENDURANCE, SUITES, REST, FIRST = "engines", "endurance", "suites", "rest", "first"


@dataclasses.dataclass(frozen=True)
class Test:
    number: int  # as `ctest -I` counts
    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = dataclasses.field(hash=False)
    labels: frozenset[str] = frozenset()
    serial: bool = False

    @property
    def program(self):
        return self.command[0]


def load(build):
    """All tests of a build folder. A program that is not built is a test that fails, named NAME_NOT_BUILT."""
    said = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], stdout=subprocess.PIPE, text=True, check=True)
    tests = []
    for number, entry in enumerate(json.loads(said.stdout)["tests"], 1):
        properties = {p["name"]: p["value"] for p in entry.get("properties", [])}
        environment = dict(line.split("=", 1) for line in properties.get("ENVIRONMENT", []) if "=" in line)
        tests.append(Test(number, entry["name"], tuple(entry.get("command", [entry["name"]])), environment,
                          frozenset(properties.get("LABELS", [])), bool(properties.get("RUN_SERIAL"))))
    return tests


def of_level(tests, level):
    """Those that `make test`, `test-all`, `endurance` or the engines' script run."""
    if level in (ENGINES, ENDURANCE):
        return [test for test in tests if level in test.labels]
    usual = [test for test in tests if not test.labels & {ENGINES, ENDURANCE}]
    if level == "test":
        return [test for test in usual if not test.labels & {REST, SUITES}]
    # A file that runs whole has the cases of its `.first`, too.
    return [test for test in usual if FIRST not in test.labels]
