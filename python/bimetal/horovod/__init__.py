"""Horovod's API on Bimetal's ranks: change the import line of a script, and nothing else.

``bimetal.horovod.torch`` (which is also what ``bimetal.horovod`` itself is), ``bimetal.horovod.tensorflow``,
``bimetal.horovod.tensorflow.keras`` and ``bimetal.horovod.keras``. See docs/horovod.md.
"""

from bimetal.horovod.torch import *  # noqa: F403
from bimetal.horovod.torch import __all__  # noqa: F401
