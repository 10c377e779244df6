"""Checkpoints that a job's launcher knows of, and names when a worker is lost."""

from harness import wait_until


def wait_for_a_told_checkpoint(test, job):
    """Once a second one is there: a first may be on disk before rank 0 has said so, all the more where the disk is busy."""
    test.wait_for_checkpoint(job)
    first = test.saved_steps()[0]
    wait_until(lambda: max(test.saved_steps(), default=0) > first or job.process.poll() is not None, "a second checkpoint", job)
