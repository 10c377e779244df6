"""Loops of one's own over DistributedDataParallel whose workers come, go and die: docs/elastic.md, "In a Python script"."""

from bimetal.elastic.run import Left, doors, run
from bimetal.elastic.state import State

__all__ = ["Left", "State", "doors", "run"]
