"""Job files of benchmarks."""

import json
import math


def write_job(path, **tables):
    """`path`, with a table of keys and values for each keyword."""
    lines = []
    for name, keys in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def hidden_for(parameters):
    """The hidden size of an MLP 784 → h → h → 10: h² + 796 h + 10 parameters."""
    return round(-398 + math.sqrt(398 ** 2 + parameters - 10))


def tokens(folder, block):
    """[data] for what made_tokens() has put there."""
    return {"name": "tokens", "path": str(folder / "tokens"), "block": block}
