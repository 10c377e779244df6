"""Job files of benchmarks."""

import json


def write_job(path, **tables):
    """`path`, with a table of keys and values for each keyword."""
    lines = []
    for name, keys in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def tokens(folder, block):
    """[data] for what made_tokens() has put there."""
    return {"name": "tokens", "path": str(folder / "tokens"), "block": block}
