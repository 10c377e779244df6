"""Tasks written in Python, which ``bimetal train`` trains: docs/tasks.md.

A job file names a function::

    [model]
    python = "my_package.my_module:make_task"

that returns a :class:`Task`. The program's own step in C++ trains it: shares by speed, exact gradients, mixed
precision, ZeRO, parameter servers, checkpoints, evaluation.
"""

from bimetal.task.task import Dropout, Metric, Task

__all__ = ["Dropout", "Metric", "Task"]
