"""Training that outlives the loss of ranks, whatever the framework: what torch.elastic and the forms for TensorFlow
and Keras are made of."""

from bimetal.horovod.elastic.loop import run
from bimetal.horovod.elastic.state import HostsUpdatedInterrupt, ObjectState, State

__all__ = ["HostsUpdatedInterrupt", "ObjectState", "State", "run"]
