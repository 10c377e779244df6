"""The words by which a plan says how something is cut."""

from __future__ import annotations

import dataclasses
import re

from bimetal._errors import error

_WORD = re.compile(r"(columns|rows|count|inside|vocabulary)(?::(heads|qkv|pair|parts))?(?:=([1-9][0-9]*))?")
_ALLOWED = {"columns": (None, "heads", "qkv", "pair"), "rows": (None, "heads"), "count": (None,), "inside": (None,),
            "vocabulary": (None, "parts")}


@dataclasses.dataclass(frozen=True)
class Word:
    """Attributes: kind: columns, rows, count, inside or vocabulary; by_heads; segments: of which a fused matrix is made, which
    are cut alike; pieces: that stay whole, where the plan says how many; apart: logits stay in parts."""

    kind: str
    by_heads: bool = False
    segments: int = 1
    pieces: int | None = None
    apart: bool = False

    @property
    def cuts_outputs(self) -> bool:
        return self.kind in ("columns", "vocabulary")


def word_of(pattern: str, text: str) -> Word:
    """bimetal.Error ``invalid_argument`` for what is none."""
    found = _WORD.fullmatch(text)
    if found is None or found[2] not in _ALLOWED[found[1]] or (found[1] in ("inside", "vocabulary") and found[3]):
        raise error(f"plan: \"{pattern}\" is to be \"{text}\": columns, columns:heads, columns:qkv, columns:pair, rows, "
                    "rows:heads or count, each with =N for N pieces that stay whole, inside, vocabulary or vocabulary:parts",
                    "invalid_argument")
    return Word(found[1], found[2] in ("heads", "qkv"), {"qkv": 3, "pair": 2}.get(found[2], 1),
                int(found[3]) if found[3] else None, found[2] == "parts")
