#!/usr/bin/env python3
"""wrap_docs.py FILE.md …: fills paragraphs and list items to lines of at most 120 characters. Tables, code and headings stay."""

import pathlib
import re
import sys
import textwrap

WIDTH = 120
ITEM = re.compile(r"( *)([-*+]|\d+\.) +(?=\S)")
FENCE = re.compile(r" *(```|~~~)")
MARK = re.compile(r" ([-*+#>|]|\d+[.)]) ")  # would begin a list or the like at a line's beginning
KEPT = re.compile(r" *([|#>]|<[a-z/!]|!\[|::: |\[[^]^][^]]*\]: )")


def filled(lines: list[str]) -> list[str]:
    """One paragraph or list item, of lines that belong together."""
    item = ITEM.match(lines[0])
    indent = " " * (len(lines[0]) - len(lines[0].lstrip()))
    first = item.group(0) if item else indent
    later = " " * len(first) if item else indent
    text = " ".join([lines[0][len(first):].strip(), *(line.strip() for line in lines[1:])])
    text = MARK.sub("\0\\1 ", text)
    lines = textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def wrapped(text: str) -> str:
    out, paragraph, fence = [], [], None

    def flush():
        if paragraph:
            # Paragraphs that fit stay as they are, so that a small change of a page is a small change of its file; two
            # spaces at an end break lines.
            fits = all(len(line) <= WIDTH for line in paragraph) or any(line.endswith("  ") for line in paragraph)
            out.extend(paragraph if fits else filled(paragraph))
            paragraph.clear()

    for line in text.splitlines():
        if fence:
            out.append(line)
            fence = None if line.strip() == fence else fence
        elif match := FENCE.match(line):
            flush()
            out.append(line)
            fence = match.group(1)
        elif not line.strip() or KEPT.match(line) or (not paragraph and is_code(line, out)):
            flush()
            out.append(line)
        else:
            if ITEM.match(line):
                flush()
            paragraph.append(line)
    flush()
    return "\n".join(out) + "\n"


def is_code(line: str, before: list[str]) -> bool:
    """Whether a line is code by its indentation, rather than going on with a list."""
    if not line.startswith("    ") or ITEM.match(line):
        return False
    for earlier in reversed(before):
        if ITEM.match(earlier):
            return False
        if earlier.strip() and not earlier.startswith(" "):
            return True
    return True


def main() -> None:
    for name in sys.argv[1:]:
        path = pathlib.Path(name)
        old = path.read_text()
        if (new := wrapped(old)) != old:
            path.write_text(new)


if __name__ == "__main__":
    main()
