"""The changes that the page of examples/textbook makes to its programs, applied to them: as they were before, and as
they are for unequal machines."""

import pathlib
import re

TEXTBOOK = pathlib.Path(__file__).resolve().parents[2] / "examples" / "textbook"
PAGE = (TEXTBOOK / "README.md").read_text()


def original(text):
    """The program as it was: the part of the changed line that its comment quotes."""
    changed = re.search(r"^(.*)  # was: (.*)$", text, re.MULTILINE)
    line, was = changed.groups()
    before = line.replace('"bimetal"', was) if was.startswith('"') else was
    return text.replace(changed[0], before)


def for_unequal_machines(text):
    """With the page's lines, each of which fits one place."""
    for piece in re.findall("```diff\n(.*?)```", PAGE, re.DOTALL):
        lines = piece.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        assert text.count(f"\n{before}") == 1, f"{before!r} is not once in the program"
        text = text.replace(f"\n{before}", "\n" + "".join(line[1:] for line in lines if line[0] in " +"))
    return text
