"""The C interface of the core: loaded, its functions typed, its errors raised."""

from __future__ import annotations

import atexit
import ctypes
import warnings
from collections.abc import Iterable
from ctypes import c_char_p, c_double, c_int32, c_int64, c_uint64, c_void_p
from typing import Any

from bimetal._build import VERSION
from bimetal._torch_check import core_path

ABI_VERSION = 1
OK = 0
PENDING = -1

PATH = core_path()

StoreSet = ctypes.CFUNCTYPE(c_int32, c_void_p, c_char_p, c_void_p, c_int64)
StoreTryGet = ctypes.CFUNCTYPE(c_int32, c_void_p, c_char_p, c_void_p)
StoreAdd = ctypes.CFUNCTYPE(c_int32, c_void_p, c_char_p, c_int64, ctypes.POINTER(c_int64))


class StoreCalls(ctypes.Structure):
    _fields_ = [("struct_size", c_uint64), ("context", c_void_p), ("set", StoreSet), ("try_get", StoreTryGet),
                ("add", StoreAdd), ("name", c_char_p), ("address", c_char_p)]


class Meeting(ctypes.Structure):
    _fields_ = [("struct_size", c_uint64), ("store", c_void_p), ("name", c_char_p), ("rank", c_int32),
                ("size", c_int32), ("timeout_ms", c_int64), ("world", c_void_p), ("members", ctypes.POINTER(c_int32))]


Wait = ctypes.CFUNCTYPE(c_int32, c_void_p)


class MemberOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_uint64), ("door", c_char_p), ("host", c_char_p), ("worker", c_char_p), ("job", c_char_p),
                ("keeper", c_char_p), ("least", c_int32), ("most", c_int32), ("patience_ms", c_int64),
                ("timeout_ms", c_int64), ("wait", Wait), ("context", c_void_p)]


_P, _I, _L, _S = c_void_p, c_int32, c_int64, c_char_p

# The result and the arguments of each function: bimetal_c.h has their meaning.
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "abi_version": (_I, []), "release": (_S, []), "error_name": (_S, [_I]), "error_text": (_S, []),
    "error_rank": (_I, []), "set_log": (_I, [_S, _P, _P]),
    "server_new": (_I, [_S, _P]), "server_port": (_I, [_P]), "server_free": (None, [_P]),
    "store_connect": (_I, [_S, _L, _P]), "answer_set": (None, [_P, _S, _L]), "store_of_calls": (_I, [_P, _P]),
    "store_free": (None, [_P]), "store_set": (_I, [_P, _S, _S, _L, _L]), "store_get": (_I, [_P, _S, _L, _P, _P]),
    "store_add": (_I, [_P, _S, _L, _L, _P]), "store_try_get": (_I, [_P, _S, _L, _P, _P]), "address": (_I, [_S, _P]), "door": (_I, [_S, _P]), "own_addresses": (_I, [_P]), "token": (_I, [_P]),
    "end_with_launcher": (_I, []),
    "folder_new": (_I, [_S, _P]), "folder_path": (_I, [_P, _P]), "folder_move": (_I, [_P]), "folder_free": (None, [_P]),
    "remove_leftovers": (_I, [_S, _S]), "sync_path": (_I, [_S]), "write_file": (_I, [_S, _S, _L]),
    "group_meet": (_I, [_P, _P]), "group_part": (_I, [_P, _P, _I, _P]), "group_abort": (_I, [_P, _S]),
    "group_close": (_I, [_P, _L]), "group_free": (None, [_P]), "group_rank": (_I, [_P]), "group_size": (_I, [_P]),
    "group_transport": (_S, [_P]), "group_bytes_sent": (_L, [_P]), "group_flight_recorder": (_I, [_P, _P]),
    "work_wait": (_I, [_P, _L]), "work_test": (_I, [_P]), "work_free": (None, [_P]),
    "all_reduce": (_I, [_P, _P, _L, _I, _I, _L, _P]),
    "all_reduce_compressed": (_I, [_P, _P, _L, _I, _I, _S, _L, _P]),
    "broadcast": (_I, [_P, _P, _L, _I, _I, _L, _P]), "reduce": (_I, [_P, _P, _L, _I, _I, _I, _L, _P]),
    "all_gather": (_I, [_P, _P, _L, _P, _P, _I, _L, _P]),
    "reduce_scatter": (_I, [_P, _P, _P, _L, _P, _I, _I, _L, _P]),
    "gather": (_I, [_P, _P, _P, _L, _I, _I, _L, _P]), "scatter": (_I, [_P, _P, _P, _L, _I, _I, _L, _P]),
    "all_to_all": (_I, [_P, _P, _P, _P, _P, _I, _L, _P]), "send": (_I, [_P, _P, _L, _I, _I, c_uint64, _L, _P]),
    "receive": (_I, [_P, _P, _L, _I, _I, c_uint64, _L, _P]), "barrier": (_I, [_P, _L, _P]),
    "receive_from_anybody": (_I, [_P, _P, _L, _I, c_uint64, _L, _P]), "work_sender": (_I, [_P]),
    "all_gather_bytes": (_I, [_P, _P, _L, _P, _L, _P]), "gathered_part": (_I, [_P, _I, _P, _P]),
    "gathered_free": (None, [_P]),
    "queue_new": (_I, [_P]), "queue_watch": (_I, [_P, _P, c_uint64]), "queue_put": (_I, [_P, c_uint64]),
    "queue_next": (_I, [_P, _L, _P]), "queue_free": (None, [_P]),
    "sampler_new": (_I, [_L, c_uint64, _I, _P, _P]), "sampler_free": (None, [_P]), "sampler_remaining": (_L, [_P]),
    "sampler_position": (None, [_P, _P, _P]), "sampler_seek": (_I, [_P, _L, _L]),
    "sampler_mean_weight": (_L, [_P, _L]), "sampler_deal": (_I, [_P, _P, _I, _L, _P, _P, _P, _P]),
    "balancer_new": (_I, [_I, _L, _S, _P, _P, _P, _P]), "balancer_free": (None, [_P]),
    "balancer_shares": (None, [_P, _P]), "balancer_observe": (_I, [_P, _P, _P, _P, _P, _P, _P]),
    "balancer_alone_rate": (c_double, [_P, _I]),
    "members_new": (_I, [_P, _P]), "members_free": (None, [_P]), "members_found": (_I, [_P, _P]),
    "members_join": (_I, [_P, _S, _P]), "members_next": (_I, [_P, _I, _S, _I, _P, _I, _P]),
    "members_end": (_I, [_P, _I, _S]), "members_somebody_waits": (_I, [_P, _P]), "members_told": (_I, [_P, _P]),
}


def _load() -> Any:
    if not PATH.exists():
        raise ImportError(f"this bimetal has neither a library for the torch that is installed nor {PATH.name}: "
                          f"install a wheel for this system (docs/install.md), or build it anew from its sources")
    library = ctypes.CDLL(str(PATH))
    library.bimetal_abi_version.restype = c_int32
    found = library.bimetal_abi_version()
    if found != ABI_VERSION:
        raise ImportError(f"{PATH} has version {found} of the C interface, and this package needs {ABI_VERSION}: its "
                          f"files are of different versions; install bimetal anew")
    functions = _typed(library, _FUNCTIONS)
    if functions.release().decode() != VERSION:  # that of another wheel
        raise ImportError(f"{PATH} is of bimetal {functions.release().decode()}, and this package of {VERSION}: install both anew, as by "
                          f"pip install --upgrade 'bimetal[train]'")
    return functions


def _typed(library: ctypes.CDLL, names: Iterable[str]) -> Any:
    functions = type("Library", (), {})()
    for name in names:
        function = getattr(library, f"bimetal_{name}")
        function.restype, function.argtypes = _FUNCTIONS[name]
        setattr(functions, name, function)
    return functions


lib = _load()
# These never wait. They keep Python's lock, which costs more to give away and to get back than they take.
at_once = _typed(ctypes.PyDLL(str(PATH)), ("work_test", "work_free"))
_error_class: Any = RuntimeError


def set_error_class(kind: type[Exception]) -> None:
    """`kind(message, code, rank)` makes the exceptions that everything here raises."""
    global _error_class
    _error_class = kind


def error(text: str, code: str, rank: int | None = None) -> Exception:
    """An error as the core raises it."""
    return _error_class(f"bimetal: {text} [{code}{'' if rank is None else f', rank {rank}'}]", code, rank)


def failure(status: int) -> Exception:
    """The exception for a function that returned `status` in this thread."""
    rank = lib.error_rank()
    return error(lib.error_text().decode(errors="replace"), lib.error_name(status).decode(),
                 None if rank < 0 else rank)


def check(status: int) -> None:
    if status != OK:
        raise failure(status)


def status_of(code: str) -> int:
    """The status that stands for an error's code."""
    return next(status for status in range(1, 32) if lib.error_name(status).decode() in (code, "unknown"))


def made(function: Any, *arguments: Any) -> int:
    """The handle that a function gives in its last argument."""
    handle = c_void_p()
    check(function(*arguments, ctypes.byref(handle)))
    return handle.value or 0


def text_of(function: Any, *arguments: Any) -> str:
    """The text that a function gives in its last argument."""
    text = c_char_p()
    check(function(*arguments, ctypes.byref(text)))
    return (text.value or b"").decode()


def numbers(values: Any, kind: Any = c_int64) -> Any:
    """A C array of them."""
    values = list(values)
    return (kind * len(values))(*values)


_Sink = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
_LEVEL = b"warning"


@_Sink
def _warn(_context: int | None, _level: bytes, message: bytes) -> None:
    warnings.warn(f"bimetal: {message.decode(errors='replace')}", stacklevel=2)


def pass_warnings_on() -> None:
    """For the process, until it ends: from then on the core's threads must not come into Python."""
    lib.set_log(_LEVEL, ctypes.cast(_warn, ctypes.c_void_p), None)
    atexit.register(lib.set_log, _LEVEL, None, None)
