"""Tokens to train language models on where what they say does not matter."""

import subprocess


def made_tokens(program, folder, size=200_000):
    """`size` bytes that follow no language, as tokens in a folder in `folder`."""
    text = folder / "text"
    text.write_bytes(bytes(i * 7919 % 251 for i in range(size)))
    subprocess.run([program, "data", "tokenize", text, "--tokenizer", "bytes", "--out", folder / "tokens"], check=True,
                   stdout=subprocess.DEVNULL)
    return folder / "tokens"
