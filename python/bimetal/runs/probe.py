"""How fast unlike devices are at a job, and whether they can do it at all: `bimetal plan` on each of them."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence

from bimetal._errors import Error
from bimetal.runs.job import Job
from bimetal.runs.pool import Host, Pool
from bimetal.runs.run import Device, Outcome, Run


def measure(host: Host, job: Job, folder: pathlib.Path) -> dict[str, float]:
    """Samples per second of each kind of device, measured at the same time, as they will work. Kinds that are lost
    meanwhile, with their node, are left out.

    Raises:
        bimetal.Error: of the first device that can't do the job, by its name.
    """
    by_kind = {device.kind: device for device in host.devices}
    probes = _Probes(job, folder, list(by_kind.values()))
    Pool(_Only(host, probes.devices)).work_through(probes)
    return probes.speeds


class _Only:
    """A host with some of its devices."""

    def __init__(self, host: Host, devices: Sequence[Device]):
        self.devices = devices
        self.start, self.hear, self.stop = host.start, host.hear, host.stop


class _Probes:
    """A Source of one plan for each device."""

    def __init__(self, job: Job, folder: pathlib.Path, devices: Sequence[Device]):
        self.devices = devices
        self.speeds: dict[str, float] = {}
        self._job = job
        self._folder = folder
        self._begun = 0

    def waiting(self) -> list[float]:
        # Of equal length on devices held for equally fast: each gets one at once.
        return [1.0] * (len(self.devices) - self._begun)

    def begin(self, index: int) -> Run:
        self._begun += 1
        folder = self._folder / f"probe-{self._begun}"
        folder.mkdir(parents=True)
        name = self._job.write_to(folder)
        return Run(folder.name, folder, ["plan", name, *self._job.base_arguments(), "--json"], brings=(name,))

    def ended(self, outcome: Outcome) -> None:
        if outcome.lost:
            return
        if outcome.failure:
            raise Error(f"{outcome.device.name} cannot do this job: {outcome.failure}", outcome.code or "internal")
        plan = json.loads("\n".join(outcome.output))
        worker = plan["workers"][0]
        if worker["seconds_per_sample"] is None:
            raise Error(f"{outcome.device.name} cannot do this job: the model does not fit into its memory",
                        "out_of_memory")
        batch = plan["global_batch"]
        self.speeds[outcome.device.kind] = batch / (worker["seconds_per_step"] + batch * worker["seconds_per_sample"])
