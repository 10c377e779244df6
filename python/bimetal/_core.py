"""The C++ core, of which there is one in a process. It is the one within the torch library if that was built for the
installed torch, otherwise the shared library's. Both are called by the C interface (``bimetal.library``), so that the
process group, the sampler and the balancer are the same with any torch. Only the torch library has the code that needs
libtorch (``bimetal._C``).
"""

from __future__ import annotations

import warnings

from bimetal import _torch_check

_torch_check.check_oldest()
if _torch_check.has_torch_library() and not _torch_check.fits():
    if not _torch_check.has_library():
        _torch_check.check()  # which says how to mend it
    warnings.warn(f"{_torch_check.misfit()} Until then the back end and the sampler work without it.", stacklevel=2)

from bimetal import library as core  # noqa: E402, F401

core.pass_warnings_on()
