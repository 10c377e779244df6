"""Fashion-MNIST for the examples."""

import gzip
import os
import pathlib

import torch
from torch.utils.data import TensorDataset

FOLDERS = [pathlib.Path(os.environ.get("BIMETAL_DATA", pathlib.Path.home() / ".cache/bimetal")) / "fashion-mnist",
           pathlib.Path("/usr/share/datasets/fashion-mnist")]


def idx(path: pathlib.Path) -> torch.Tensor:
    """A gzipped IDX file of bytes."""
    content = bytearray(gzip.decompress(path.read_bytes()))
    dimensions = content[3]
    shape = [int.from_bytes(content[4 + 4 * d:8 + 4 * d], "big") for d in range(dimensions)]
    return torch.frombuffer(content, dtype=torch.uint8, offset=4 + 4 * dimensions).reshape(shape)


def fashion_mnist(samples: int = 60000, dtype: torch.dtype = torch.float32, test: bool = False) -> TensorDataset:
    """The first `samples` images, of those to train on or to test with, as (1, 28, 28) from 0 to 1, and their classes."""
    folder = next((path for path in FOLDERS if path.is_dir()), None)
    if folder is None:
        raise SystemExit("Fashion-MNIST is not here: run make setup, which fetches it")
    which = "t10k" if test else "train"
    images = idx(folder / f"{which}-images-idx3-ubyte.gz")[:samples].unsqueeze(1).to(dtype) / 255
    return TensorDataset(images, idx(folder / f"{which}-labels-idx1-ubyte.gz")[:samples].long())
