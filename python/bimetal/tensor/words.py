"""The words by which a plan says how something is cut."""

from __future__ import annotations

import dataclasses
import re

from bimetal._errors import error

_WORD = re.compile(r"(columns|rows|count|inside)(?::(heads|qkv|pair))?(?:=([1-9][0-9]*))?")
_ALLOWED = {"columns": (None, "heads", "qkv", "pair"), "rows": (None, "heads"), "count": (None,), "inside": (None,)}


@dataclasses.dataclass(frozen=True)
class Word:
    """Attributes: kind: columns, rows, count or inside; by_heads; segments: of which a fused matrix is made, which are cut
    alike; pieces: that stay whole, where the plan says how many."""

    kind: str
    by_heads: bool = False
    segments: int = 1
    pieces: int | None = None


def word_of(pattern: str, text: str) -> Word:
    """bimetal.Error ``invalid_argument`` for what is none."""
    found = _WORD.fullmatch(text)
    if found is None or found[2] not in _ALLOWED[found[1]] or (found[1] == "inside" and found[3]):
        raise error(f"plan: \"{pattern}\" is to be \"{text}\": columns, columns:heads, columns:qkv, columns:pair, rows, "
                    "rows:heads or count, each with =N for N pieces that stay whole, or inside", "invalid_argument")
    return Word(found[1], found[2] in ("heads", "qkv"), {"qkv": 3, "pair": 2}.get(found[2], 1),
                int(found[3]) if found[3] else None)
