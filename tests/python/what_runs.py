#!/usr/bin/env python3
"""what_runs.py [--write]: tells which part of the package runs where, by running each part: from a wheel alone, and
with the torch library; the commands from that wheel, and with the program beside it. Prints the tables of
docs/install.md, or writes them there. The package that is tested is the one of PYTHONPATH, the program BIMETAL's.

Each call runs in a process of its own whose other packages are those that torch itself needs, so that what this machine has installed
makes no difference. A call that needs another package (Ray, TensorFlow) runs a second time with that, if it is
installed; without it the table keeps what was found where it is.
"""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import typing

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "install.md"
BEGIN, END = "<!-- made by tests/python/what_runs.py --write -->\n", "<!-- end of what was made -->\n"
SECONDS = 900
WORKS = "works"


class Part(typing.NamedTuple):
    name: str
    call: str
    needs: str = ""  # another package


GROUP = 'dist.init_process_group("bimetal", rank=0, world_size=1, store=dist.HashStore()); '
MODEL = "model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)); "
ADAM = "optimizer = torch.optim.AdamW(model.parameters()); "
STEP = "model(torch.ones(2, 4)).sum().backward(); optimizer.step()"
PARTS = [
    Part("process group, DDP, `BalancedBatchSampler`, `sample_exact_hook`", GROUP + MODEL +
         "ddp = torch.nn.parallel.DistributedDataParallel(model); sampler = bimetal.BalancedBatchSampler(8, 4); "
         "ddp.register_comm_hook(sampler, bimetal.sample_exact_hook)\n"
         "for batch in sampler: ddp(torch.ones(len(batch), 4)).mean().backward()\n"
         "assert model[0].weight.grad is not None and bimetal.transport()"),
    Part("`bimetal.elastic.run`", MODEL + "from bimetal import elastic; state = elastic.State(model=model)\n"
         "assert elastic.run(lambda state: state.commit() or 7, state) == 7"),
    Part("`bimetal.monitor`", GROUP + "bimetal.monitor(bimetal.BalancedBatchSampler(8, 4), loss=lambda: 1.0, progress=False)"),
    Part("`bimetal.zero.shard`", GROUP + MODEL + ADAM + "bimetal.zero.shard(model, optimizer, level=2); " + STEP),
    Part("`bimetal.zero.CoreOptimizer`", MODEL + 'optimizer = bimetal.zero.CoreOptimizer(model.parameters(), "adamw", 0.1); ' + STEP),
    Part("`bimetal.pipeline.stages`", GROUP + MODEL + "bimetal.pipeline.stages(model, loss_sum=lambda out, target: ((out - target) ** 2).sum(), "
         "weight=len, sample=(torch.ones(2, 4), torch.ones(2, 4)))"),
    Part("`bimetal.tensor.parts`", GROUP + "import torch.nn as nn\n"
         "parted = bimetal.tensor.parts(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), plan={'0': 'columns', '2': 'rows'})"),
    Part("`bimetal.serving.Predictor`", 'import bimetal.serving; bimetal.serving.Predictor("127.0.0.1:1").close()'),
    Part("`bimetal.deepspeed.initialize`", GROUP + MODEL + "import bimetal.deepspeed\n"
         "bimetal.deepspeed.initialize(model=model, config={'train_batch_size': 4, 'optimizer': {'type': 'Adam'}})"),
    Part("`bimetal.horovod.torch`", "import bimetal.horovod.torch as hvd; hvd.init()\n"
         "assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [1, 1]; hvd.shutdown()"),
    Part("`bimetal.horovod.tensorflow`, `.keras`", "import bimetal.horovod.keras as hvd; hvd.init()\n"
         "import tensorflow as tf; assert hvd.allreduce(tf.ones(2)).numpy().tolist() == [1, 1]; hvd.shutdown()", "tensorflow"),
    Part("`bimetal.hf.balanced`", "import transformers; from bimetal.hf import balanced; balanced(transformers.Trainer)", "transformers"),
    Part("`bimetal.lightning.BalancedStrategy`", "import bimetal.lightning; bimetal.lightning.BalancedStrategy()", "lightning"),
    Part("`bimetal.ray.Trainer`", 'import bimetal.ray; bimetal.ray.Trainer(lambda config: None, workers=["cpu"])', "ray"),
    Part("`bimetal.task.Task`, to test one", "import bimetal.task; assert bimetal.task.Task"),
]
# For the command `bimetal`: words that make it do as much as can be done alone.
COMMANDS = {
    "token": "", "doctor": "", "launch": "-n 1 -- true", "bench": "--help", "top": "--help", "machines": "",
    "train": "--help", "join": "--help", "plan": "--help", "serve": "--help", "demo": "--help", "devices": "--help",
    "tune": "--help", "ensemble": "--help", "ray": "--help", "data": "--help"}

RUN = """
import json, os, sys, torch, torch.distributed as dist
import bimetal
found = []
for call, more in json.loads(sys.argv[1]):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        said = "works"
        sys.path.append(more)
        try:
            exec(call, {"torch": torch, "dist": dist, "bimetal": bimetal})
        except BaseException as problem:
            said = f"{type(problem).__name__}: {problem}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        found.append(answer.read().decode() or "ended without a word")
    os.wait()
print(json.dumps(found))
"""


def folder_of(packages, folder):
    """A folder for sys.path with these packages and what they need, of those that are installed, and nothing else."""
    folder.mkdir(parents=True)
    wanted, seen = list(packages), set()
    while wanted:
        name = re.split(r"[^\w.-]", wanted.pop())[0]
        if name.lower().replace("_", "-") in seen:
            continue
        seen.add(name.lower().replace("_", "-"))
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        wanted += [need for need in package.requires or [] if "extra ==" not in need]
        for top in {file.parts[0] for file in package.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (folder / top).exists() and package.locate_file(top).exists():
                (folder / top).symlink_to(package.locate_file(top))
    return folder


def wheel_of(library, folder, programs=()):
    """The contents of a wheel, unpacked: the files that scripts/make_wheel.py puts into one."""
    sys.path[:0] = [str(ROOT / "cmake"), str(ROOT / "scripts")]
    import make_wheel

    for path, data in make_wheel.files_of(library, list(programs)):
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        if file.name in [program.name for program in programs]:
            file.chmod(0o755)
    return folder


class Places:
    """The package of a wheel and the one that is built, each with nothing but what torch needs beside it."""

    def __init__(self, built, program, folder):
        """Args: built: the folder of the package with the torch library."""
        self._folder = pathlib.Path(folder)
        library, = built.glob("libbimetal_core.*")
        self.library = library.name
        lite = [path for path in (built.parents[1] / "capi" / "bimetal_lite",) if path.exists()]
        self.package = {"wheel": wheel_of(library, self._folder / "wheel", lite), "with": built.parent}
        self._torch = folder_of(["torch", "numpy"], self._folder / "torch")
        (self._folder / "bin").mkdir()
        (self._folder / "bin" / "bimetal").symlink_to(program)

    def start(self, package, *words, path=""):
        """A Python of that package that sees nothing else of this machine's but torch."""
        environment = {"PATH": os.pathsep.join(filter(None, [path, "/usr/bin:/bin"])), "HOME": str(self._folder), "OMP_NUM_THREADS": "1",
                       "PYTHONPATH": os.pathsep.join([str(self.package[package]), str(self._torch)])}
        return subprocess.run([sys.executable, "-S", *words], capture_output=True, text=True, timeout=SECONDS, env=environment,
                              cwd=self._folder)

    def modules(self):
        """The wheel's modules that can't be imported beside torch alone, with what each says."""
        folder = self.package["wheel"]
        paths = (path.relative_to(folder).with_suffix("") for path in sorted((folder / "bimetal").rglob("*.py")) if "files" not in path.parts)
        names = [".".join(path.parts) for path in paths if path.name != "__main__"]
        done = self.start("wheel", "-c", RUN, json.dumps([(f"import {name}", "") for name in names]))
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        found = zip(names, json.loads(done.stdout.splitlines()[-1]), strict=True)
        return {name: said for name, said in found if said != WORKS}

    def parts(self, package):
        """For each of PARTS what happens with torch alone, and with what it needs: None where that is not here."""
        calls, places = [], []
        for part in PARTS:
            calls.append((part.call, ""))
            if part.needs and importlib.util.find_spec(part.needs):
                more = self._folder / "beside" / part.needs
                if not more.exists():
                    folder_of([part.needs, f"{part.needs}-cpu"], more)
                calls.append((part.call, str(more)))
            places.append(len(calls) - 1 if len(calls) > 1 and calls[-1][1] else None)
        done = self.start(package, "-c", RUN, json.dumps(calls))
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        found, alone = json.loads(done.stdout.splitlines()[-1]), iter(range(len(calls)))
        result = {}
        for part, second in zip(PARTS, places, strict=True):
            first = next(alone)
            if second is not None:
                next(alone)
            result[part.name] = (found[first], None if second is None else found[second])
        return result

    def command(self, name, with_program):
        """The command's reason why it can't, or that it works."""
        done = self.start("wheel", "-m", "bimetal.command", name, *COMMANDS[name].split(), path=str(self._folder / "bin") if with_program else "")
        said = (done.stderr.strip().splitlines() or [done.stdout])[-1]
        return WORKS if done.returncode == 0 else said.removeprefix("bimetal: error: ").removeprefix("bimetal.ray: error: ")


def kept(name, column):
    """The page's present entry for a row that could not be run here."""
    row = next((line for line in PAGE.read_text().splitlines() if line.startswith(f"| {name} |")), None)
    return row.strip("| ").split(" | ")[column] if row else "not run"


def told(said, name=""):
    """For a cell: without what differs from machine to machine."""
    said = re.sub(r" \[[a-z_]+\]$", "", said.removeprefix("ImportError: "))
    return said if said == WORKS else said.replace("|", "\\|")


def tables(places):
    """Both, as the page has them."""
    found = {package: places.parts(package) for package in ("wheel", "with")}
    lines = ["| of Python | also needs | from a wheel | with the torch library |", "|---|---|---|---|"]
    for part in PARTS:
        alone = {told(found[package][part.name][0]) for package in found}
        if part.needs:
            cells = [found[package][part.name][1] for package in found]
            cells = [kept(part.name, 2 + at) if cell is None else told(cell) for at, cell in enumerate(cells)]
            lacking, = alone
            lines.append(f"| {part.name} | {part.needs}; else: {lacking} | {' | '.join(cells)} |")
        else:
            lines.append(f"| {part.name} | | {' | '.join(told(found[package][part.name][0]) for package in found)} |")
    lines += ["", "| command | from a wheel | with the program, too |", "|---|---|---|"]
    for name in COMMANDS:
        cells = [places.command(name, with_program) for with_program in (False, True)]
        cells = [kept(f"`bimetal {name}`", 1 + at) if "needs Ray, which is not installed" in cell else told(cell) for at, cell in enumerate(cells)]
        lines.append(f"| `bimetal {name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def on_page():
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip("\n") + "\n"


def main():
    import bimetal
    with tempfile.TemporaryDirectory() as folder:
        made = tables(Places(pathlib.Path(bimetal.__file__).parent, os.environ["BIMETAL"], folder))
    if sys.argv[1:] != ["--write"]:
        print(made)
        return
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
