"""Lets torch know the name of the backend before anybody has imported bimetal.

``import torch`` calls ``register`` by the entry point ``torch.backends``, unless TORCH_DEVICE_BACKEND_AUTOLOAD=0 stands
in the environment. That is every program's start, whether it uses bimetal or not: so nothing of bimetal is loaded here,
nothing is checked, and nothing can fail. A package of its own, since importing ``bimetal.x`` would load all of it.
"""

from typing import Any


def _create(place: Any, options: Any) -> Any:
    from bimetal import process_group  # says what is wrong where it was built for another torch
    return process_group.create(place, options)


def register() -> None:
    """Makes ``init_process_group("bimetal")`` work without ``import bimetal``."""
    try:
        import torch.distributed as dist
        if dist.is_available() and "bimetal" not in dist.Backend.backend_list:
            dist.Backend.register_backend("bimetal", _create, extended_api=True, devices=["cpu", "cuda", "mps", "xpu"])
    except Exception:  # noqa: BLE001  (import torch must go on; import bimetal will say what is wrong)
        pass
