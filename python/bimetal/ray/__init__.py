"""Bimetal on a Ray cluster: Ray finds, starts and restarts the workers, gradients go by Bimetal's own sockets.

::

    import bimetal.ray
    trainer = bimetal.ray.Trainer("job.toml", workers=[{"cuda": 1}, {"mps": 1}])
    result = trainer.fit()

``python -m bimetal.ray up`` and ``python -m bimetal.ray join HEAD`` make the cluster. docs/ray.md has the whole story.
"""

from bimetal.ray import token_file

token_file.require_ray()

from bimetal.ray.loop import get_checkpoint, report  # noqa: E402
from bimetal.ray.result import Change, Event, Restart, Result, print_event  # noqa: E402
from bimetal.ray.trainer import Trainer  # noqa: E402

__all__ = ["Change", "Event", "Restart", "Result", "Trainer", "get_checkpoint", "print_event", "report"]
