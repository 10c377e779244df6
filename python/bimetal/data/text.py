"""Asked by the program (cli/predict/text_codec.cpp): text to tokens and back. Reads one JSON object, {"tokenizer",
"encode": text} or {"tokenizer", "decode": tokens}, and prints {"tokens", "vocabulary"}, {"text"}, or {"error", "code"}."""

from __future__ import annotations

import json
import sys
from typing import Any

from bimetal._errors import Error
from bimetal.data import tokenizers


def answer(question: dict[str, Any]) -> dict[str, Any]:
    try:
        tokenizer = tokenizers.load(question["tokenizer"])
        if "decode" in question:
            return {"text": tokenizer.decode(question["decode"])}
        tokens = tokenizer.encode([question["encode"].encode()])[0]
        return {"tokens": list(tokens), "vocabulary": tokenizer.vocabulary}
    except Error as failed:
        return {"error": str(failed), "code": failed.code}


if __name__ == "__main__":
    print(json.dumps(answer(json.load(sys.stdin))), flush=True)
