"""The checks that two machines make together: versions, clocks, whether either reaches the other, how fast the link is.

They meet in a store that one of them serves, then as a group of two. They tell how to let either through the other's
firewall, but do not do it.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import json
import os
import re
import shutil
import socket
import sys
import time
from typing import Any

from bimetal._errors import Error
from bimetal._torch_check import series
from bimetal.command import network
from bimetal.command.findings import Findings
from bimetal.library.interface import Meeting, check, error, lib, made, text_of

_ROUNDS = 50  # of a short message
_BYTES = 8 << 20  # of a long one
_MOST_CLOCK_S = 5.0
_KNOCK_S = 4.0
_NOBODY = ("timeout", "system", "peer_lost")  # what calling an address that nobody answers at ends with


def examine(mine: dict[str, str], address: str, listens: bool, seconds: float, own: list[tuple[str, str]], found: Findings) -> list[str]:
    """Tells its findings, and returns the faults. Args: mine: the facts on this machine for the other; own: its
    addresses, each with its interface."""
    if not (os.environ.get("BIMETAL_TOKEN_FILE") or os.environ.get("BIMETAL_TOKEN")) and not is_loopback(address):
        raise error("two machines need one secret: make it by `bimetal token FILE`, copy it, and name it on both with "
                    "--token-file", "unauthorized")
    with contextlib.ExitStack() as held:
        if listens:
            server = made(lib.server_new, address.encode())
            held.callback(lib.server_free, server)
            found.ask(f"waiting at {address} for `bimetal doctor {address}` on the other machine")
            if not is_loopback(address):
                other = "IPV6:OF:THAT:ONE" if "[" in address else "IPV4.OF.THAT.ONE"
                found.ask(f"if that gets no answer, on this machine: {way_through(other)}")
        try:
            store = _Store(address, seconds)
        except Error as problem:
            host, _, port = address.rpartition(":")
            why = "" if listens or problem.code not in _NOBODY else network.towards(host.strip("[]"), int(port), own)
            raise error(f"{problem}\n{why}", problem.code) if why else problem from None
        held.callback(store.free)
        problems = _compare(store, mine, 0 if listens else 1, found)
        problems += _knock(store, address, listens, found)
        if not problems:
            _measure(store, 0 if listens else 1, seconds, found)
        _leave(store, listens)
    return problems


def _leave(store: _Store, listens: bool) -> None:
    """The one that listens goes last, with its store."""
    if listens:
        store.get("over")
    else:
        with contextlib.suppress(Error):  # it may go before its answer to this is here
            store.set("over", "")


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT is on loopback."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name
        return False


def address_of(host: str) -> str:
    """The address of a name or an address, in square brackets or not: firewalls take no names."""
    found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    return str(found[0][4][0])


def newer(version: str, other: str) -> str:
    return max(version, other, key=lambda text: [int(number) for number in re.findall(r"\d+", text)])


class _Store:
    def __init__(self, address: str, seconds: float) -> None:
        self._milliseconds = int(seconds * 1000)
        self.handle = made(lib.store_connect, address.encode(), self._milliseconds)

    def free(self) -> None:
        lib.store_free(self.handle)

    def set(self, key: str, text: str) -> None:
        data = text.encode()
        check(lib.store_set(self.handle, f"doctor/{key}".encode(), data, len(data), self._milliseconds))

    def get(self, key: str) -> str:
        value, size = ctypes.c_void_p(), ctypes.c_int64()
        check(lib.store_get(self.handle, f"doctor/{key}".encode(), self._milliseconds, ctypes.byref(value),
                            ctypes.byref(size)))
        return ctypes.string_at(value.value or 0, size.value).decode() if size.value else ""


def _compare(store: _Store, mine: dict[str, str], rank: int, found: Findings) -> list[str]:
    store.set(f"facts/{rank}", json.dumps(mine))
    other = json.loads(store.get(f"facts/{1 - rank}"))
    found.tell(f"there: bimetal {other['bimetal']}, torch {other['torch']}, Python {other['python']}, {other['system']}; "
               f"{other.get('devices', '')}", there=other)
    problems = []
    if other["core"] != mine["core"]:
        problems.append(f"bimetal is {mine['core']} here and {other['core']} there; all machines of a job need the same: "
                        f"pip install bimetal=={newer(mine['core'], other['core'])} on both")
    if series(other["torch"]) != series(mine["torch"]):
        newest = newer(series(mine["torch"]), series(other["torch"]))
        found.note(f"torch: unlike here and there, and ranks meet by its own store: better the same, pip install 'torch=={newest}.*'")
    apart = _clocks_apart(store, rank)
    advice = "; no job fails by that, but logs are hard to read: switch on the time service of both"
    found.tell(f"clocks: {apart:.1f} s apart{advice if apart > _MOST_CLOCK_S else ''}", clocks_apart_s=apart)
    return problems


def _clocks_apart(store: _Store, rank: int) -> float:
    """The difference in seconds, exact to half the time of a question and its answer."""
    if rank == 0:
        store.get("clock/question")
        store.set("clock/answer", repr(time.time()))
        return float(store.get("clock/apart"))
    asked = time.time()
    store.set("clock/question", "")
    theirs = float(store.get("clock/answer"))
    apart = abs(theirs - (asked + time.time()) / 2)
    store.set("clock/apart", repr(apart))
    return apart


def _knock(store: _Store, address: str, listens: bool, found: Findings) -> list[str]:
    """Whether the one that listens reaches the other, too: ranks connect in either direction."""
    if listens:
        host, _, port = store.get("knock/where").rpartition(" ")
        try:
            socket.create_connection((host, int(port)), _KNOCK_S).close()
            said = ""
        except OSError as problem:
            said = f"{host} cannot be reached from the machine that listens ({problem}): let Python through the firewall " \
                   f"of {host} for incoming connections; there: {store.get('knock/through')}"
        store.set("knock/said", said)
    else:
        own = text_of(lib.address, address.encode())
        family = socket.AF_INET6 if ":" in own else socket.AF_INET
        with socket.socket(family) as door:
            door.bind((own, 0))
            door.listen(1)
            store.set("knock/through", way_through(address_of(address.rpartition(":")[0])))
            store.set("knock/where", f"{own} {door.getsockname()[1]}")
            said = store.get("knock/said")
    found.facts["both_directions"] = not said
    if not said:
        found.tell("connections: in both directions")
    return [said] if said else []


def _measure(store: _Store, rank: int, seconds: float, found: Findings) -> None:
    meeting = Meeting(ctypes.sizeof(Meeting), store.handle, b"doctor", rank, 2, int(seconds * 1000), None, None)
    group = made(lib.group_meet, ctypes.byref(meeting))
    try:
        buffer = (ctypes.c_uint8 * _BYTES)()
        where = ctypes.addressof(buffer)

        def broadcast(count: int, root: int) -> None:
            _finish(made(lib.broadcast, group, where, count, 9, root, 0))

        broadcast(_BYTES, 0)
        begun = time.perf_counter()
        for turn in range(_ROUNDS):
            broadcast(1, turn % 2)
        way = (time.perf_counter() - begun) / _ROUNDS
        rates = []
        for root in (0, 1):
            _finish(made(lib.barrier, group, 0))
            begun = time.perf_counter()
            broadcast(_BYTES, root)
            _finish(made(lib.barrier, group, 0))
            rates.append(_BYTES * 8 / 1e6 / (time.perf_counter() - begun))
        way_of = lib.group_transport(group).decode()
        found.tell(f"link: {way * 1e3:.2f} ms, {rates[rank]:.0f} Mbit/s from here, {rates[1 - rank]:.0f} to here, by {way_of}",
                   link={"latency_s": way, "mbit_per_s_from_here": rates[rank], "mbit_per_s_to_here": rates[1 - rank], "transport": way_of})
        store.set(f"measured/{rank}", "")
        store.get(f"measured/{1 - rank}")  # who left now would be lost to the other, which may still be in the barrier
    finally:
        lib.group_free(group)


def _finish(work: Any) -> None:
    try:
        check(lib.work_wait(work, -1))
    finally:
        lib.work_free(work)


SYSTEM_TOOLS = ":/usr/sbin:/sbin"  # where they are, whether or not this user looks there


def way_through(peer: str, platform: str = sys.platform) -> str:
    """The command to type on this machine so that ranks on `peer`, an address, reach those here. Ranks listen at ports
    that the system chooses, so the peer or the program has to be let in."""
    if platform == "win32":
        python = getattr(sys, "_base_executable", "") or sys.executable  # a venv's only starts it
        return (f"New-NetFirewallRule -DisplayName Bimetal -Direction Inbound -Action Allow -Protocol TCP -Profile Private "
                f"-Program '{python}' in PowerShell as administrator")
    if platform == "darwin":
        tool, python = "sudo /usr/libexec/ApplicationFirewall/socketfilterfw", os.path.realpath(sys.executable)
        return f"{tool} --add '{python}' && {tool} --unblockapp '{python}'"
    for tool, words in (("ufw", f"allow proto tcp from {peer}"),
                        ("firewall-cmd", f"--zone=trusted --add-source={peer}"),
                        ("nft", f"insert rule inet filter input {'ip6' if ':' in peer else 'ip'} saddr {peer} tcp dport 1024-65535 accept"),
                        ("ip6tables" if ":" in peer else "iptables", f"-I INPUT -p tcp -s {peer} -j ACCEPT")):
        if shutil.which(tool, path=os.environ.get("PATH", os.defpath) + SYSTEM_TOOLS):
            return f"sudo {tool} {words}"
    return "none of the tools that set up a firewall is here: look at the router's or the cloud's"
