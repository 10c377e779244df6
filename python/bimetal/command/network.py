"""Faults of this machine's network that keep others away: a VPN in their way, WSL2's NAT, a Wi-Fi that keeps its guests
apart. Each is told with the command to type. On Linux the facts are read from files; macOS and Windows are not asked
for routes."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable

_ASKS_FOR_MASK = 0x891B  # SIOCGIFNETMASK
_WITHOUT_LINK = "65534"  # ARPHRD_NONE, as tun devices and WireGuard's have it
_HEARD, _SECONDS = 0x2, 3.0
_DISCARD, _ROUTER_SECONDS = 9, 1.0
_MIRRORED = r"""in PowerShell: Add-Content $HOME\.wslconfig "[wsl2]`nnetworkingMode=mirrored"; wsl --shutdown"""
ANYWHERE = ("198.51.100.1", _DISCARD)  # of no machine (RFC 5737): asks for the default route


def of_this_machine(own: Iterable[tuple[str, str]]) -> list[str]:
    """The network's faults. Args: own: (address, interface) of each address that others could reach."""
    if sys.platform != "linux":
        return []
    own = list(own)
    problems = [found for found in (wsl_nat(),) if found]
    way = _own_towards(*ANYWHERE)
    taken = next((name for address, name in own if address == way and is_tunnel(name)), None)
    rest = sorted({name for _, name in own if not is_tunnel(name)})
    if taken and rest and not os.environ.get("BIMETAL_INTERFACE"):
        problems.append(f"the VPN of {taken} has taken the default route, so that others are told its address, which those of this "
                        f"network may not reach: export BIMETAL_INTERFACE={rest[0]}, or end the VPN")
    return problems


def wsl_nat() -> str:
    """For a Linux within Windows whose network goes through Windows' NAT; empty elsewhere, and if the network is
    mirrored."""
    if "WSL_DISTRO_NAME" not in os.environ:
        return ""
    mode = "nat"  # the default; versions before 2.0 know no other and do not tell
    if tool := shutil.which("wslinfo"):
        said = subprocess.run([tool, "--networking-mode"], capture_output=True, text=True, timeout=_SECONDS, check=False)
        mode = said.stdout.strip() or mode
    if mode != "nat":
        return ""
    return ("WSL2 is behind NAT: this PC's address belongs to Windows, and others cannot come in here. Let the other machine listen and "
            f"join from here, or {_MIRRORED} (docs/windows.md)")


def towards(host: str, port: int, own: Iterable[tuple[str, str]]) -> str:
    """Why nobody answers at an address, as far as this machine can tell: to be asked after it was tried. Empty for no reason that is
    known. Args: own: as above."""
    if sys.platform != "linux":
        return ""
    own = list(own)
    try:
        peer = str(ipaddress.IPv4Address(socket.gethostbyname(host)))
    except (OSError, ValueError):
        return ""
    beside = next((name for address, name in own if ":" not in address and not is_tunnel(name) and _in_network(peer, address, name)), "")
    if not beside:
        return ""
    way = _own_towards(peer, port)
    if (through := next((name for address, name in own if address == way), beside)) != beside and is_tunnel(through):
        return (f"{peer} is in the network of {beside}, but the VPN of {through} has taken the way there: sudo ip rule add to {peer} lookup "
                f"main pref 1 && sudo ip route replace {peer} dev {beside}, or end the VPN")
    knock_at_router(beside)
    heard = neighbours(beside)
    if heard.get(peer):
        return (f"{peer} is there, and lets nothing in at port {port}: does the other doctor listen there, and what does its firewall say? "
                f"The doctor there tells what to type")
    if any(heard.values()):
        return (f"{peer} does not answer on {beside} at all, though others do: it is off or has another address, or this Wi-Fi keeps its "
                "guests apart (client or AP isolation, a guest network): switch that off in the router, use a cable, or give both machines a "
                f"VPN of their own, as by `sudo tailscale up`, and its addresses")
    return ""


def is_tunnel(interface: str) -> bool:
    """Whether it is a VPN's: it has no link of its own."""
    folder = pathlib.Path("/sys/class/net", interface)
    try:
        kind = (folder / "type").read_text().strip()
    except OSError:  # macOS
        return interface.startswith(("utun", "ppp", "ipsec"))
    return kind == _WITHOUT_LINK or kind == "512" or (folder / "tun_flags").exists()  # 512: ppp


def knock_at_router(interface: str) -> None:
    """So that this machine looks for it on the link, and knows afterwards whether it answers."""
    routes = [line.split() for line in pathlib.Path("/proc/net/route").read_text().splitlines()[1:]]
    for name, target, router in (route[:3] for route in routes):
        if name == interface and int(target, 16) == 0 and int(router, 16) != 0:
            with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.sendto(b"", (socket.inet_ntoa(struct.pack("=I", int(router, 16))), _DISCARD))
                time.sleep(_ROUTER_SECONDS)


def neighbours(interface: str) -> dict[str, bool]:
    """Addresses that this machine has looked for on a link, and whether they have answered."""
    try:
        lines = pathlib.Path("/proc/net/arp").read_text().splitlines()[1:]
    except OSError:
        return {}
    fields = [line.split() for line in lines]
    return {field[0]: bool(int(field[2], 16) & _HEARD) for field in fields if field[5] == interface}


def own_towards(host: str, port: int) -> str:
    """This machine's address on the way to another. OSError if no network leads there."""
    family, _, _, _, peer = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(peer)  # sends nothing
        return str(probe.getsockname()[0])


def _own_towards(host: str, port: int) -> str:
    with contextlib.suppress(OSError):
        return own_towards(host, port)
    return ""


def _in_network(peer: str, address: str, interface: str) -> bool:
    import fcntl  # which Windows has not
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unconnected:
        try:  # a struct ifreq: the name, and a sockaddr
            answer = fcntl.ioctl(unconnected, _ASKS_FOR_MASK, struct.pack("16s24x", interface.encode()))
        except OSError:
            return False
    mask = socket.inet_ntoa(answer[20:24])
    return ipaddress.ip_address(peer) in ipaddress.ip_network(f"{address}/{mask}", strict=False)
