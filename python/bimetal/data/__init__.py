"""Data sets for language models: text as token files (docs/text.md)."""
