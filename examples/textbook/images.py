"""Fashion-MNIST, where a textbook has torchvision's: read by what the other examples read it with."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "python"))

from data import fashion_mnist  # noqa: E402

__all__ = ["fashion_mnist"]
