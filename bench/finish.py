"""The end of processes that were started together: all of them end, and all must have succeeded."""

import sys


def outputs_of(processes, what, timeout_s):
    """Their standard outputs, as text. Kills all of them on every way out; exits with what one said if it failed."""
    try:
        outputs = [process.communicate(timeout=timeout_s) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, outputs):
        if process.returncode != 0:
            sys.exit(f"{what} ended with {process.returncode}:\n{errors}")
    return [output for output, _ in outputs]
