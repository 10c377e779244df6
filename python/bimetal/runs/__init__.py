"""Runs of the program: job files, processes, folders of checkpoints. ``bimetal.ray`` and ``bimetal.pool`` start them."""
