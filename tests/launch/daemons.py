"""Daemons that a test starts: the system ends them with the test, however that ends (Linux)."""

import ctypes
import signal
import subprocess

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_the_test():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start(command, log, environment=None):
    """The daemon's Popen; all that it prints goes to the open file `log`. It must stay in the foreground."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                            start_new_session=True, preexec_fn=_die_with_the_test)
