"""Which of the waiting runs to start on which of the idle devices: list scheduling by earliest finish time.

The longest run first, each on the device that would finish it first, busy ones included (LPT on uniform machines:
T. Gonzalez, O. H. Ibarra, S. Sahni, "Bounds for LPT schedules on uniform processors", SIAM J. Comput. 6, 1977).
So long runs go to fast devices, and none is begun on a slow device that a fast one, free soon, would finish earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Forecast:
    """What is expected of a device.

    Attributes:
        samples_per_s: while it trains.
        free_in: seconds until it is idle; 0: it is.
        overhead: seconds that any run on it takes beside training: start, data, evaluation.
    """

    samples_per_s: float
    free_in: float = 0.0
    overhead: float = 0.0

    def finish(self, samples: float) -> float:
        """Seconds until a run of so many samples would be done, were it the next here."""
        return self.free_in + self.overhead + samples / self.samples_per_s


def choose(waiting: Sequence[float], devices: Sequence[Forecast]) -> list[tuple[int, int]]:
    """Pairs (index of a run, index of an idle device) to start now; other runs are better off waiting.

    Args:
        waiting: samples of each run that could start. Of equally long ones the first comes first.
        devices: all that there are, busy ones too.
    """
    plan = [Forecast(device.samples_per_s, device.free_in, device.overhead) for device in devices]
    idle = {index for index, device in enumerate(devices) if device.free_in <= 0}
    chosen = []
    for run in sorted(range(len(waiting)), key=lambda index: -waiting[index]):
        if not idle:
            break
        best = min(range(len(plan)), key=lambda index: plan[index].finish(waiting[run]))
        plan[best].free_in = plan[best].finish(waiting[run])
        if best in idle:
            idle.remove(best)
            chosen.append((run, best))
    return chosen
