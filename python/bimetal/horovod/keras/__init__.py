"""``import bimetal.horovod.keras as hvd``: the same as bimetal.horovod.tensorflow.keras."""

from bimetal.horovod.tensorflow.keras import *  # noqa: F403
from bimetal.horovod.tensorflow.keras import __all__, callbacks, elastic, load_model  # noqa: F401
