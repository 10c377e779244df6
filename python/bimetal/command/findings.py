"""A doctor's findings: told line by line, or as one JSON object at the end."""

from __future__ import annotations

import json
import sys
from typing import Any


class Findings:
    """
    Args:
        as_json: nothing but the object goes to standard output.
    """

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self.facts: dict[str, Any] = {}
        self._notes: list[str] = []

    def tell(self, line: str, **facts: Any) -> None:
        """A line for people, and its facts by name."""
        self.facts |= facts
        if not self._as_json:
            print(line, flush=True)

    def note(self, line: str) -> None:
        self._notes.append(line)
        self.tell(line)

    def ask(self, line: str) -> None:
        """Tells people what to do now, while this process waits."""
        print(line, flush=True, file=sys.stderr if self._as_json else sys.stdout)

    def end(self, problems: list[str]) -> None:
        if self._as_json:
            print(json.dumps({**self.facts, "notes": self._notes, "problems": problems}, indent=2, ensure_ascii=False))
            return
        for problem in problems:
            print(f"! {problem}")
