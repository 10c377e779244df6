"""Hands a job's figures on to experiment trackers (docs/trackers.md): a process that rank 0 starts, which reads its
monitor. It is run without the rest of the package, so nothing in here may need that, or torch."""
