"""bimetal doctor: finds causes that may keep machines from working together, and says what to type."""

from __future__ import annotations

import argparse
import os
import platform
import socket
import struct
import sys
from typing import Any

import torch

import bimetal
from bimetal import _build, _torch_check
from bimetal._devices import accelerators, usable_cores
from bimetal._errors import Error
from bimetal.command import network, two_doctors
from bimetal.command.findings import Findings
from bimetal.library.interface import lib, set_error_class, text_of

PORT = 29500
_ASKS_FOR_MTU = {"linux": 0x8921, "darwin": 0xC0206933}  # SIOCGIFMTU, as each system numbers it


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor", help="look for what may keep machines from working together",
        description="Without an address: what this machine has. On two machines, with one token file on both: --listen "
                    "on one, its address on the other; each then says what it found between them.")
    parser.add_argument("address", nargs="?", metavar="HOST:PORT", help="where another doctor listens")
    parser.add_argument("--listen", metavar="HOST:PORT", help="wait for another doctor there")
    parser.add_argument("--token-file", metavar="FILE", help="the secret of both (else BIMETAL_TOKEN_FILE)")
    parser.add_argument("--wait", type=float, default=120.0, metavar="SECONDS", help="for the other (default: 120)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    set_error_class(Error)  # the torch library has done so for itself alone
    if arguments.token_file:
        os.environ["BIMETAL_TOKEN_FILE"] = arguments.token_file
    found = Findings(arguments.json)
    problems = local(found)
    if arguments.listen or arguments.address:
        try:
            problems += two_doctors.examine(facts(), arguments.listen or arguments.address, bool(arguments.listen), arguments.wait, addresses(), found)
        except Error as failure:
            found.end([*problems, str(failure)] if arguments.json else problems)
            raise
    elif not problems:
        found.tell(how())
    found.end(problems)
    return 1 if problems else 0


def facts() -> dict[str, str]:
    """Facts on this machine, for the other to compare."""
    return {"bimetal": _build.VERSION, "core": lib.release().decode(), "torch": str(torch.__version__),
            "python": platform.python_version(), "system": f"{platform.system()} on {platform.machine()}",
            "devices": ", ".join(devices())}


def devices() -> list[str]:
    return [*device_names(), f"cpu with {usable_cores()} cores"]


def device_names() -> list[str]:
    """As torch names them, and as their makers do."""
    found = []
    for name in accelerators():
        kind = getattr(torch, name.split(":")[0])
        model = kind.get_device_name(name) if hasattr(kind, "get_device_name") else ""
        found.append(f"{name} ({model})" if model else name)
    return found


def addresses() -> list[tuple[str, str]]:
    """(address, interface) of those that are up and not loopback or link-local."""
    found = [tuple(line.split(" ", 1)) for line in text_of(lib.own_addresses).splitlines()]
    return [(address, name) for address, name in found
            if not address.startswith(("127.", "::1", "fe80:", "169.254."))]


def local(found: Findings) -> list[str]:
    """Tells the facts on this machine, and returns its faults."""
    mine, torch_library = facts(), _torch_check.fits()
    found.tell(f"bimetal {mine['bimetal']} ({'with' if torch_library else 'without'} its torch library), torch {mine['torch']}, Python {mine['python']}, {mine['system']}",
               bimetal=mine["bimetal"], torch_library=torch_library, torch=mine["torch"], python=mine["python"], system=mine["system"])
    if _torch_check.is_untried():
        newest = ".".join(map(str, _torch_check.NEWEST_TRIED))
        found.note(f"torch: newer than {newest}, the last that this bimetal was tested with; should something fail, try "
                   f"pip install 'torch=={newest}.*'")
    found.tell(f"devices: {mine['devices']}", devices=devices())
    problems = []
    if mine["core"] != mine["bimetal"]:
        problems.append(f"the library is of bimetal {mine['core']}, the package of {mine['bimetal']}: install it anew")
    own = addresses()
    packets = [mtu_of(name) for _, name in own]
    for (address, name), mtu in zip(own, packets):
        found.tell(f"address: {address} on {name}{f', packets of {mtu} bytes' if mtu else ''}")
    found.facts["addresses"] = [{"address": address, "interface": name, "packet_bytes": mtu} for (address, name), mtu in zip(own, packets)]
    if own and sys.platform not in _ASKS_FOR_MTU:
        found.note("packets: their size is not looked up on this system; `netsh interface ipv4 show subinterfaces` tells it (MTU)")
    if not own:
        problems.append("this machine has no address that others could reach: is it on a network?")
    problems += network.of_this_machine(own)
    refusal = can_listen(PORT)
    found.tell(f"port {PORT}: {refusal or 'free'}", port={"number": PORT, "refusal": refusal})
    token = os.environ.get("BIMETAL_TOKEN_FILE") or ("in BIMETAL_TOKEN" if os.environ.get("BIMETAL_TOKEN") else "none")
    found.tell(f"token: {token}", token=token)
    return problems


def how() -> str:
    """To try two machines."""
    own = addresses()
    here = f"[{own[0][0]}]" if own and ":" in own[0][0] else own[0][0] if own else "ADDRESS"
    return ("\nTo try two machines:\n"
            "  bimetal token bimetal.token         # here; copy it to the other: scp -p bimetal.token OTHER:\n"
            f"  bimetal doctor --listen {here}:{PORT} --token-file bimetal.token\n"
            f"  bimetal doctor {here}:{PORT} --token-file bimetal.token         # there")


def mtu_of(interface: str) -> int | None:
    """As Linux and macOS tell it; elsewhere nothing."""
    if sys.platform not in _ASKS_FOR_MTU:
        return None
    import fcntl  # which Windows has not
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unconnected:
        try:  # a struct ifreq: the name, and the answer
            answer = fcntl.ioctl(unconnected, _ASKS_FOR_MTU[sys.platform], struct.pack("16s24x", interface.encode()))
        except OSError:
            return None
    return int(struct.unpack_from("i", answer, 16)[0])


def can_listen(port: int) -> str:
    """Why not, or nothing."""
    with socket.socket() as probe:
        if sys.platform != "win32":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return f"taken ({error.strerror}); give another to MASTER_PORT or --listen"
    return ""
