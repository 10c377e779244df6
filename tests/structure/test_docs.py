"""Every link of every Markdown file leads somewhere, and every page of docs/ is in the navigation of the site.

Reads what git tracks or would track below the root; needs no network and no mkdocs. Commands in shell blocks are held to the
program's own help where BIMETAL names the program.
"""

import functools
import os
import pathlib
import re
import shlex
import subprocess
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^( *)(```+|~~~+)(.*?)\n(.*?)^\1?\2 *$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+(?:\([^()]*\)[^()\s]*)?)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
SHELL = ("", "sh", "bash")
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z0-9_-]*)")
# Python's own: their options are in their files, as the program does not know them.
PYTHON = {"tune": ("tune", "runs", "pool"), "ensemble": ("ensemble", "runs", "pool"), "data": ("data",), "ray": ("ray",), "doctor": ("command",)}


def documents() -> list[pathlib.Path]:
    skipped = {"build", "data", "dist", "runs"}
    found = []
    for folder, folders, files in os.walk(ROOT):
        if pathlib.Path(folder) == ROOT:
            folders[:] = [name for name in folders if not name.startswith((".", "build-")) and name not in skipped]
        found += [pathlib.Path(folder, name) for name in files if name.endswith(".md")]
    return sorted(found)


@functools.cache
def prose(path: pathlib.Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


@functools.cache
def anchors(path: pathlib.Path) -> set[str]:
    """As GitHub names them, and mkdocs.yml likewise."""
    found = set()
    for heading in HEADING.findall(prose(path)):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        number = 1
        unique = name
        while unique in found:
            unique, number = f"{name}-{number}", number + 1
        found.add(unique)
    return found


def faults(path: pathlib.Path) -> list[str]:
    """The links of a page that lead nowhere, or to a folder, for which the site has no page."""
    found = []
    for target in LINK.findall(CODE.sub("", prose(path))):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if name and (ROOT not in file.parents or not file.is_file()):
            found.append(f"{target}: no such file")
        elif anchor and (file.suffix != ".md" or anchor not in anchors(file)):
            found.append(f"{target}: no such heading")
    return found


@functools.cache
def options(subcommand: str) -> set[str] | None:
    """Those that a subcommand of the program or of Python knows; None where neither can say."""
    if folders := PYTHON.get(subcommand):
        files = [file for folder in folders for file in (ROOT / "python" / "bimetal" / folder).glob("*.py")]
        return {"--help", *OPTION.findall("".join(file.read_text(encoding="utf-8") for file in files))}
    told = subprocess.run([os.environ["BIMETAL"], subcommand, "--help"], capture_output=True, text=True, timeout=60)
    return set(OPTION.findall(told.stdout)) if told.returncode == 0 else None


def commands(path: pathlib.Path) -> list[tuple[str, list[str]]]:
    """(subcommand, options) of each `bimetal SUBCOMMAND …` in a page's shell blocks."""
    found = []
    for _, _, language, block in FENCE.findall(path.read_text(encoding="utf-8")):
        if language.strip() not in SHELL:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
            lexer.whitespace_split = True
            try:
                words = list(lexer)
            except ValueError:  # prose, as messages are
                continue
            words = words[next((at + 1 for at, word in enumerate(words) if word == "--" and "launch" in words[:at]), 0):] or words
            at = next((at for at, word in enumerate(words) if word in ("bimetal", "build/bimetal")), None)
            if at is None or at + 1 >= len(words) or not re.fullmatch(r"[a-z-]+", words[at + 1]):
                continue
            rest = words[at + 2:]
            end = next((n for n, word in enumerate(rest) if word == "--" or word.endswith(".py") or set(word) <= set("|&;")), len(rest))
            found.append((words[at + 1], [word.partition("=")[0] for word in rest[:end] if word.startswith("--")]))
    return found


def patched(page: pathlib.Path, text: str):
    """pathlib.Path.read_text where `page` holds `text`."""
    read = pathlib.Path.read_text
    return lambda path, *arguments, **named: text if path == page else read(path, *arguments, **named)


class Docs(unittest.TestCase):
    def test_every_link_leads_somewhere(self):
        self.assertGreater(len(documents()), 40)
        for path in documents():
            with self.subTest(path.relative_to(ROOT)):
                self.assertEqual(faults(path), [])

    def test_finds_links_that_lead_nowhere(self):
        page = ROOT / "docs" / "not_there.md"
        for link, wrong in (("start.md", False), ("start.md#from-the-sources", False), ("#here", False), ("https://a.b/#c", False),
                            ("gone.md", True), ("start.md#gone", True), ("#gone", True), ("../docs", True), ("../../etc", True)):
            with self.subTest(link), unittest.mock.patch.object(pathlib.Path, "read_text", patched(page, f"# Here\n[a]({link})\n")):
                self.addCleanup(prose.cache_clear)
                self.addCleanup(anchors.cache_clear)
                prose.cache_clear(), anchors.cache_clear()
                self.assertEqual(bool(faults(page)), wrong)

    def test_every_page_is_in_the_navigation(self):
        named = re.findall(r"[\w/.-]+\.md\b", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2])
        self.assertEqual(sorted(named), sorted(set(named)), "a page is there twice")
        pages = {str(path.relative_to(ROOT)) for path in documents()}
        self.assertEqual(pages - set(named), set(), "not in mkdocs.yml's nav")
        self.assertEqual(set(named) - pages, set(), "in mkdocs.yml's nav, but not there")

    def test_lines_of_pages_fit(self):
        for path in documents():
            long = [line for line in prose(path).splitlines() if len(line) > 120 and not line.lstrip().startswith("|")]
            with self.subTest(path.relative_to(ROOT)):
                self.assertEqual(long, [], "run scripts/wrap_docs.py on it")

    @unittest.skipUnless(os.environ.get("BIMETAL"), "BIMETAL names no program to ask for its options")
    def test_commands_in_shell_blocks_are_there(self):
        asked = 0
        for path in documents():
            for subcommand, named in commands(path):
                with self.subTest(f"{path.relative_to(ROOT)}: bimetal {subcommand}"):
                    known = options(subcommand)
                    self.assertIsNotNone(known, "no such command")
                    self.assertEqual(set(named) - known, set())
                    asked += 1
        self.assertGreater(asked, 50)


if __name__ == "__main__":
    unittest.main()
