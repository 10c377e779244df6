"""bimetal data: makes data sets. `bimetal data tokenize` turns text into token files."""

from __future__ import annotations

import argparse
import pathlib
import sys

from bimetal.data.tokenize import Request, tokenize
from bimetal.pool import command

_EXAMPLES = """Examples:
  bimetal data tokenize book.txt --tokenizer bytes --out data/book --test-fraction 0.05
  bimetal data tokenize texts/*.txt --tokenizer gpt2/tokenizer.json --document-separator '<|endoftext|>' --out data/texts

Each file is one document of UTF-8 text (of any bytes with --tokenizer bytes). A job trains on the result with
  [data]
  name = "tokens"
  path = "data/texts"
docs/text.md tells more."""


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bimetal data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    tokens = commands.add_parser("tokenize", help="turn text into token files", epilog=_EXAMPLES,
                                 description="Turns text into token files, and keeps the tokenizer beside them.",
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    tokens.add_argument("files", nargs="+", type=pathlib.Path, metavar="FILE", help="text; each is one document")
    tokens.add_argument("--tokenizer", required=True, metavar="tokenizer.json|bytes",
                        help="a file of Hugging Face's tokenizers, or bytes: each byte is a token")
    tokens.add_argument("--out", required=True, type=pathlib.Path, metavar="DIR",
                        help="a new or empty folder for train.tokens, test.tokens and tokenizer.json")
    tokens.add_argument("--test-fraction", type=_fraction, default=0.0, metavar="F",
                        help="the last part of every document, from 0 to less than 1, is not trained on but tested "
                             "with (default: 0, nothing)")
    tokens.add_argument("--document-separator", default="", metavar="TEXT",
                        help="what ends every document, such as a special token of the tokenizer (default: nothing)")
    tokens.add_argument("--json", action="store_true", help="print what has been made as JSON")
    return parser


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to less than 1")
    return value


def main() -> int:
    arguments = _arguments().parse_args()
    request = Request(arguments.files, arguments.tokenizer, arguments.out, arguments.test_fraction,
                      arguments.document_separator, arguments.json)
    return command.run_command(lambda: tokenize(request))


if __name__ == "__main__":
    sys.exit(main())
