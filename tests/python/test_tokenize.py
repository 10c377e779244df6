"""`bimetal data tokenize`: what it writes, read by the format's description, and what it refuses."""

import contextlib
import hashlib
import io
import json
import pathlib
import struct
import tempfile
import unittest
from unittest import mock

import ranks

from bimetal._errors import EXIT_STATUSES
from bimetal.data import __main__ as command
from bimetal.data import text, tokenize, tokenizers

HEADER = struct.Struct("<8sIIQQQ")


def read_tokens(path):
    """(vocabulary, tokens, documents' ends)"""
    data = path.read_bytes()
    magic, version, width, vocabulary, count, documents = HEADER.unpack_from(data)
    assert (magic, version) == (b"BMTOKENS", 1)
    body = data[72:]
    assert data[40:72] == hashlib.blake2b(body + data[:40], digest_size=32).digest()
    tokens = struct.unpack_from(f"<{count}{'H' if width == 2 else 'I'}", body)
    assert len(body) == -(-count * width // 8) * 8 + 8 * documents
    return vocabulary, list(tokens), list(struct.unpack_from(f"<{documents}Q", body, len(body) - 8 * documents))


class Tokenizing(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.out = self.folder / "out"

    def write(self, name, content):
        (self.folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return self.folder / name

    def run_command(self, *arguments):
        """(exit status, standard output, standard error)"""
        out, err = io.StringIO(), io.StringIO()
        with mock.patch("sys.argv", ["bimetal data", "tokenize", *map(str, arguments)]), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = command.main()
            except SystemExit as usage:
                status = usage.code
        return status, out.getvalue(), err.getvalue()

    def tokenized(self, *arguments):
        """The contents of the train and the test file."""
        status, _, said = self.run_command(*arguments, "--out", self.out)
        self.assertEqual(status, 0, said)
        return read_tokens(self.out / "train.tokens"), read_tokens(self.out / "test.tokens")

    def refused(self, *arguments, code="invalid_argument"):
        status, _, said = self.run_command(*arguments, "--out", self.out)
        self.assertEqual(status, EXIT_STATUSES[code], said)
        self.assertEqual([path.name for path in self.folder.iterdir() if "out" in path.name], [], "something is left")
        return said

    def test_what_was_made_as_json(self):
        status, out, _ = self.run_command(self.write("a", "abcd"), "--tokenizer", "bytes", "--json", "--out", self.out)
        self.assertEqual((status, json.loads(out)), (0, {"path": str(self.out), "train_tokens": 4, "train_documents": 1, "test_tokens": 0,
                                                         "vocabulary": 256}))

    def test_bytes_are_their_own_tokens(self):
        every = bytes(range(256))
        (vocabulary, tokens, ends), (_, tested, _) = self.tokenized(
            self.write("a", every), self.write("b", "ä\n"), self.write("empty", ""), "--tokenizer", "bytes")
        self.assertEqual(vocabulary, 256)
        self.assertEqual(bytes(tokens), every + "ä\n".encode())
        self.assertEqual(ends, [256, 259])
        self.assertEqual(tested, [])
        self.assertEqual(json.loads((self.out / "tokenizer.json").read_text()), "bytes")

    def test_the_last_part_of_every_document_is_for_the_test(self):
        lines = "".join(f"line {i}\n" for i in range(100))
        (_, train, ends), (_, tested, test_ends) = self.tokenized(
            self.write("a", lines), self.write("b", lines), "--tokenizer", "bytes", "--test-fraction", "0.25",
            "--document-separator", "<end>")
        self.assertEqual((len(ends), len(test_ends)), (2, 2))
        first, rest = bytes(train[:ends[0]]).decode(), bytes(tested[:test_ends[0]]).decode()
        self.assertTrue(first.endswith("\n<end>"))
        self.assertEqual(first.removesuffix("<end>") + rest.removesuffix("<end>"), lines)
        self.assertAlmostEqual(len(rest) / len(lines), 0.25, delta=0.02)
        self.assertEqual(train[:ends[0]], train[ends[0]:])

    def test_long_documents_are_taken_in_pieces_without_a_seam(self):
        content = ("äöü€ a line\n" * 30 + "€" * 40) * 3
        file = self.write("a", content)
        for piece in (16, 17, 18, 64):
            with mock.patch.multiple(tokenize, _PIECE_BYTES=piece, _BATCH_BYTES=3 * piece):
                self.out = self.folder / f"out {piece}"
                (_, tokens, ends), _ = self.tokenized(file, "--tokenizer", "bytes")
            self.assertEqual(bytes(tokens).decode(), content)
            self.assertEqual(ends, [len(tokens)])

    @ranks.needs("tokenizers")
    def test_a_tokenizer_of_the_library(self):
        library = self.trained_tokenizer()
        content = "the cat sat on the mat\nthe €uro\n" * 5
        for piece in (1 << 20, 40):
            with mock.patch.multiple(tokenize, _PIECE_BYTES=piece, _BATCH_BYTES=3 * piece):
                self.out = self.folder / f"out {piece}"
                (vocabulary, tokens, ends), _ = self.tokenized(
                    self.write("a", content), self.write("b", "the mat"), "--tokenizer",
                    self.folder / "tokenizer.json", "--document-separator", "<|end|>")
            self.assertEqual(vocabulary, library.get_vocab_size())
            end = library.token_to_id("<|end|>")
            self.assertEqual(tokens, [*library.encode(content).ids, end, *library.encode("the mat").ids, end])
            self.assertEqual(ends[-1], len(tokens))
            self.assertEqual((self.out / "tokenizer.json").read_text(), (self.folder / "tokenizer.json").read_text())
        question = {"tokenizer": str(self.out), "encode": "the cat €"}
        asked = text.answer(question)
        self.assertEqual(asked, {"tokens": library.encode("the cat €").ids, "vocabulary": vocabulary})
        self.assertEqual(text.answer({"tokenizer": str(self.out), "decode": asked["tokens"]}), {"text": "the cat €"})

    def trained_tokenizer(self):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        library = Tokenizer(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoders.ByteLevel()
        library.train_from_iterator(["the cat sat on the mat"] * 3, trainers.BpeTrainer(
            vocab_size=280, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False))
        library.save(str(self.folder / "tokenizer.json"))
        return library

    def test_a_large_vocabulary_has_wider_tokens(self):
        class Large(tokenizers.ByteTokenizer):
            vocabulary = 1 << 17

            def encode(self, texts):
                return [[byte << 9 for byte in text] for text in texts]

        with mock.patch.object(tokenizers, "load", lambda name: Large()):
            (vocabulary, tokens, _), _ = self.tokenized(self.write("a", b"\x01\xff\x02"), "--tokenizer", "any")
        self.assertEqual(vocabulary, 1 << 17)
        self.assertEqual(tokens, [1 << 9, 255 << 9, 2 << 9])

    def test_what_cannot_be_tokenized_is_named(self):
        a = self.write("a", "text")
        self.assertIn("cannot read", self.refused(a, self.folder / "none", "--tokenizer", "bytes"))
        self.assertIn("is a folder", self.refused(self.folder, "--tokenizer", "bytes"))
        self.assertIn("there is nothing to learn", self.refused(self.write("b", "x"), "--tokenizer", "bytes"))
        self.assertIn("name a tokenizer.json, or bytes", self.refused(a, "--tokenizer", "byte"))
        self.assertIn("is not from 0 to less than 1", self.run_command(a, "--tokenizer", "bytes", "--out", self.out,
                                                                       "--test-fraction", "1")[2])

    @ranks.needs("tokenizers")
    def test_files_of_the_wrong_kind_are_named(self):
        a = self.write("a", "text")
        self.assertIn("is no tokenizer.json of Hugging Face's", self.refused(a, "--tokenizer", a))
        self.trained_tokenizer()
        bad = self.write("bad", b"good\n" * 3 + b"\xff")
        self.assertIn(f"'{bad}' is not UTF-8: byte 15 is 0xff",
                      self.refused(a, bad, "--tokenizer", self.folder / "tokenizer.json"))

    def test_an_existing_folder_is_left_alone(self):
        self.out.mkdir()
        (self.out / "mine").touch()
        a = self.write("a", "text")
        status, _, said = self.run_command(a, "--tokenizer", "bytes", "--out", self.out)
        self.assertEqual(status, EXIT_STATUSES["invalid_argument"])
        self.assertIn("not empty", said)
        self.assertEqual([path.name for path in self.out.iterdir()], ["mine"])


if __name__ == "__main__":
    unittest.main()
