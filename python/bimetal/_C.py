"""Everything that needs libtorch: the functions and classes that the shared library ``libbimetal_torch`` has beside the
core, as listed in the stub. They come in by ctypes, so that one library serves every Python;
src/bimetal/python/bindings.h says how."""

import ctypes as _ctypes

from bimetal import _torch_check


def _bound(call, number, name):
    """The function of that number, or of an object with it."""
    if "." not in name:
        return lambda *arguments: call(number, None, arguments)
    return lambda self, *arguments: call(number, self._object, arguments)


def _make(library):
    """All that the library has, by name."""
    library.bimetal_torch_names.restype = _ctypes.c_char_p
    call = library.bimetal_torch_call
    call.argtypes, call.restype = [_ctypes.c_int32, _ctypes.py_object, _ctypes.py_object], _ctypes.py_object
    made = {}
    for number, name in enumerate(library.bimetal_torch_names().decode().split()):
        if name.endswith("()"):
            made[name[:-2]] = type(name[:-2], (), {"__slots__": ("_object", "__weakref__"), "__init__": _maker(call, number)})
        elif ".=" in name:
            kind, _, member = name.partition(".=")
            setattr(made[kind], member, property(_bound(call, number, name)))
        elif "." in name:
            kind, _, member = name.partition(".")
            setattr(made[kind], member, _bound(call, number, name))
        else:
            made[name] = _bound(call, number, name)
    return made


def _maker(call, number):
    def __init__(self, *arguments):
        self._object = call(number, None, arguments)
    return __init__


if _torch_check.fits():
    # Python's lock stays held on the way in: the library lets it go where something takes longer.
    globals().update(_make(_ctypes.PyDLL(str(_torch_check.core_path()))))


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    _torch_check.require_torch_library("this call")
