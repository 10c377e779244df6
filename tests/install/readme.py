"""The README's examples in Python as programs: with the data, the model and the loss that a reader has."""

import pathlib
import re
import textwrap

README = pathlib.Path(__file__).parents[2] / "README.md"

_OF_THE_READER = textwrap.dedent("""
    import torch
    dataset = torch.utils.data.TensorDataset(torch.randn(600, 8), torch.randint(3, (600,)))
    model, criterion = torch.nn.Linear(8, 3), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    """)
_AT_THE_END = "print('batches', len(sampler))\ndist.destroy_process_group()\n"
BATCHES = "batches 3"  # what each prints: 600 samples in global batches of 256


def programs():
    """One for each; every one is a training loop of ranks that ends with BATCHES."""
    return [_OF_THE_READER + shown + _AT_THE_END for shown in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)]
