"""DeepSpeed's way to train, on unlike machines: a script written for it changes one import.

::

    import bimetal.deepspeed as deepspeed        # was: import deepspeed

    engine, optimizer, loader, scheduler = deepspeed.initialize(
        args=args, model=model, model_parameters=model.parameters(), training_data=dataset)
    for ids in loader:
        loss = loss_of(engine(ids))
        engine.backward(loss)
        engine.step()

docs/deepspeed.md says what each key of the configuration does here.
"""

from bimetal.deepspeed import zero
from bimetal.deepspeed.config import Schedule
from bimetal.deepspeed.engine import DeepSpeedEngine
from bimetal.deepspeed.initialize import add_config_arguments, init_distributed, initialize

__all__ = ["DeepSpeedEngine", "Schedule", "add_config_arguments", "init_distributed", "initialize", "zero"]
