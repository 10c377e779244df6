"""Checkpoints from and to other programs' folders, and the way of a model to a hub: what `bimetal export` and
`bimetal checkpoint import` begin (docs/checkpoints.md)."""
