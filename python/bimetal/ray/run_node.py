"""Starts a Ray node on this machine, looks where it listens, and ends it with the command. Tells a program that uses a
cluster where it is, and keeps that program from listening to everybody."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import bimetal
from bimetal._devices import accelerators
from bimetal.command import network
from bimetal.ray import node as node_process
from bimetal.ray import token_file
from bimetal.ray.result import error
from bimetal.ray.watch import SAVE_SECONDS

# By its path: as a part of the package it would import torch, which no node needs before it has work.
_RUN_NODE = f"import runpy; runpy.run_path({node_process.__file__!r}, run_name='__main__')"
_START_SECONDS = 90.0
_STOP_SECONDS = SAVE_SECONDS + 10.0
_FAILURE_SECONDS = 3.0  # in which `ray start` ends if one of its processes has failed, but not if it was ended
_STARTED = "Ray runtime started"
_OTHER_SYSTEMS = ("darwin", "win32")
_BIND_HERE = pathlib.Path(bimetal.__file__).parent / "ray" / "_bind_here.so"
RESERVED = ("cpu", "cuda", "mps", "xpu", "CPU", "GPU")  # a node's own offers
_DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
CLUSTER_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def device_tags() -> dict[str, int]:
    """The resources that a node of this machine offers beside Ray's own: how many devices of each kind."""
    return {"cpu": 1, **Counter(name.partition(":")[0] for name in accelerators())}


def loopback_address() -> str:
    """The address of a node that only this machine shall reach. Ray replaces 127.0.0.1 by the address of the default
    route, except on systems where it forms no clusters unless told to."""
    return "127.0.0.1" if sys.platform in _OTHER_SYSTEMS else "127.0.0.2"


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def own_address_towards(host: str, port: int) -> str:
    """This machine's address on the way to another. bimetal.Error if no network leads there."""
    try:
        return network.own_towards(host, port)
    except OSError as bad:
        raise error(f"no network leads to {host}: {bad}", "system") from bad


def require_own(host: str, port: int) -> None:
    """bimetal.Error if a node could not listen there."""
    if host in ("0.0.0.0", "::"):
        raise error(f"--host {host}: name one address of this machine, by which the others reach it",
                    "invalid_argument")
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as bad:
        raise error(f"cannot listen at {host}:{port}: {bad}. If a cluster runs there already, join it; else choose "
                    "another --port, or a --host that is an address of this machine", "system") from bad


def environment(address: str, token: pathlib.Path | None) -> dict[str, str]:
    """The environment of the node's processes: token authentication on, no reports to Ray's makers, this package in
    reach, and listening only on that address."""
    variables = {_DRAIN: str(SAVE_SECONDS), **os.environ, token_file.MODE: "token", "RAY_USAGE_STATS_ENABLED": "0"}
    if token is not None:
        variables[token_file.PATH] = str(token)
    package = str(pathlib.Path(bimetal.__file__).parents[1])
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    if sys.platform in _OTHER_SYSTEMS and not is_loopback(address):
        variables[CLUSTER_VARIABLE] = "1"
    return confined_to(address, variables)


def confined_to(address: str, variables: dict[str, str]) -> dict[str, str]:
    """The environment of a process that must listen on that address in place of all: Ray has no setting for its own
    ports. Without a library for it (it is for Linux) nothing is added."""
    if not can_confine():
        return variables
    loaded = [str(_BIND_HERE), *variables.get("LD_PRELOAD", "").split()]
    return {**variables, "LD_PRELOAD": " ".join(dict.fromkeys(loaded)), "BIMETAL_BIND_ADDRESS": address}


def can_confine() -> bool:
    """Whether there is such a library here."""
    return _BIND_HERE.is_file()


def common_arguments(num_cpus: int | None, object_store_mb: int | None, resources: Mapping[str, float] | None = None,
                     labels: Mapping[str, str] | None = None) -> list[str]:
    """Arguments of `ray start`, for any node: its resources; ``resources`` and ``labels`` beside those of its
    devices."""
    tags = device_tags()
    named = {"os": platform.system(), "arch": platform.machine(), **(labels or {})}
    arguments = [f"--resources={json.dumps({**(resources or {}), **tags})}", f"--num-gpus={tags.get('cuda', 0) + tags.get('xpu', 0)}",
                 "--labels=" + ",".join(f"{name}={value}" for name, value in named.items()), "--disable-usage-stats"]
    if num_cpus is not None:
        arguments.append(f"--num-cpus={num_cpus}")
    if object_store_mb is not None:
        arguments.append(f"--object-store-memory={object_store_mb << 20}")
    return arguments


def run(role: str, address: str, arguments: Sequence[str], variables: dict[str, str], host: str,
        started: Callable[[list[str]], None], ending: Callable[[str], None]) -> None:
    """Runs a node until SIGINT, SIGTERM or SIGHUP (its terminal's end), or until the head node ends.

    Args:
        role: ``head``, or ``joined``.
        address: of the head node, HOST:PORT.
        arguments: of `ray start`.
        variables: the environment.
        host: the address that it is to be found at.
        started: is called when the node is up, with what of it listens elsewhere.
        ending: is called when it begins to end in good order, with the reason, for people.

    Raises:
        bimetal.Error: ``system`` if it does not come up or ends by itself, with the last that Ray said; ``peer_lost`` if
            the head node is gone.
    """
    stop = threading.Event()
    terminal_ends = getattr(signal, "SIGHUP", signal.SIGTERM)
    nohup = signal.getsignal(terminal_ends) is signal.SIG_IGN
    for number in (signal.SIGINT, signal.SIGTERM, *(() if nohup else (terminal_ends,))):
        signal.signal(number, lambda *_: stop.set())
    node = subprocess.Popen([sys.executable, "-u", "-c", _RUN_NODE, role, address, str(SAVE_SECONDS), *arguments],
                            env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, errors="replace", start_new_session=True)
    said: deque[str] = deque(maxlen=30)
    up = threading.Event()
    threading.Thread(target=_read, args=(node, said, up), daemon=True).start()
    try:
        _wait(node, up, stop, said)
        if not stop.is_set():
            started(listening_elsewhere(host, node.pid))
        why = _stay(node, stop, said)
        with contextlib.suppress(OSError):  # where the terminal's end is the reason, nobody reads it
            ending(why or ("jobs may save and leave" if role == "joined" else
                           "the cluster ends with it; jobs may save and leave"))
    finally:
        _end(node)


def _stay(node: Any, stop: threading.Event, said: Sequence[str]) -> str | None:
    """Returns when the node is to end, or why it does so by itself; bimetal.Error if that is in no good order."""
    at_first = _of_ray(node.pid)
    while not stop.wait(0.5):
        if node.poll() is None and at_first <= _of_ray(node.pid):
            continue
        try:
            node.wait(_FAILURE_SECONDS)
        except subprocess.TimeoutExpired:
            if at_first <= _of_ray(node.pid):
                continue
            if not any(line.startswith(node_process.LEFT) for line in list(said)):
                return "Ray was ended on this machine, by `ray stop` perhaps"
        time.sleep(0.2)  # for its last output
        return _why_left(said, node.returncode)
    return None


def _of_ray(pid: int) -> set[str]:
    """Names of those processes below it that no node can be without; none if it is gone."""
    import psutil  # comes with Ray, also where it is not installed by itself

    found = set()
    try:
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.status() != psutil.STATUS_ZOMBIE:
                    found.add(child.name())
    except psutil.NoSuchProcess:
        return set()
    return found & {"raylet", "gcs_server"}


def _why_left(said: Sequence[str], status: int) -> str:
    """Why a node that has ended by itself did so: in good order, or else bimetal.Error."""
    for line in list(said):
        if line.startswith(node_process.LEFT):
            why = line.removeprefix(node_process.LEFT)
            if why.startswith(node_process.ENDED):
                return why.removeprefix(node_process.ENDED)
            raise error(why.removeprefix(node_process.GONE), "peer_lost")
    raise error(f"the Ray node has ended with status {status}:\n" + "\n".join(said), "system")


def listeners(pid: int) -> list[tuple[str, int, str]]:
    """Addresses, ports and names of all that a process and its descendants listen on."""
    import psutil  # comes with Ray, also where it is not installed by itself

    found = []
    top = psutil.Process(pid)
    for process in [top, *top.children(recursive=True)]:
        try:
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found.append((connection.laddr.ip, connection.laddr.port, process.name()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def listening_elsewhere(host: str, pid: int) -> list[str]:
    """The node's sockets that listen neither on its host's address nor on loopback, as people read them."""
    allowed = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    return [f"{name} on {address}:{port}" for address, port, name in listeners(pid)
            if address.removeprefix("::ffff:") not in allowed and not is_loopback(address.removeprefix("::ffff:"))]


def _read(node: Any, said: deque[str], up: threading.Event) -> None:
    for line in node.stdout:
        said.append(line.rstrip("\n"))
        if _STARTED in line:
            up.set()


def _wait(node: Any, up: threading.Event, stop: threading.Event, said: deque[str]) -> None:
    until = time.monotonic() + _START_SECONDS
    while not up.wait(0.1) and not stop.is_set():
        if node.poll() is not None:
            raise error(f"Ray did not start (status {node.returncode}):\n" + "\n".join(said), "system")
        if time.monotonic() > until:
            raise error(f"Ray did not start within {_START_SECONDS:.0f} s:\n" + "\n".join(said), "timeout")


def _end(node: Any) -> None:
    node.stdin.close()  # the sign to end
    try:
        node.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        node.kill()
        node.wait()


DEFAULT_PORT = 6379


def environment_for_program(address: str | None, token: pathlib.Path | None) -> dict[str, str]:
    """Its variables: Ray lets every program that connects listen on all addresses, unless it is started with these.

    Args:
        address: HEAD or HEAD:PORT; None: RAY_ADDRESS, else this machine's cluster.
        token: the file of the cluster's token; None: RAY_AUTH_TOKEN holds it.

    Raises:
        bimetal.Error: ``system`` if there is no cluster here or no network leads to it.
    """
    head, port = split_port(address or os.environ.get("RAY_ADDRESS") or of_this_machine())
    own = own_address_towards(head, port)
    if is_loopback(own):
        own = loopback_address()
    return {**environment(own, token), "RAY_ADDRESS": with_port(head, port)}


def environment_if_unset(address: str | None) -> dict[str, str] | None:
    """The same for a program that is running already, to start itself anew with; None: it has them. On a cluster
    without tokens, which somebody else has started, it does without one."""
    if "BIMETAL_BIND_ADDRESS" in os.environ or not can_confine():
        return None
    variables = environment_for_program(address, token_file.given_path())
    if not os.environ.get(token_file.TOKEN) and not token_file.given_path().is_file():
        for name in (token_file.MODE, token_file.PATH):
            variables.pop(name, None)
            if name in os.environ:
                variables[name] = os.environ[name]
    return variables


def of_this_machine() -> str:
    """The address of the cluster that a node of this machine belongs to. bimetal.Error if there is none."""
    from ray._private.utils import read_ray_address

    found = read_ray_address()
    if not found:
        raise error("no Ray node runs on this machine: name the cluster's address, or start a node with "
                    "`python -m bimetal.ray up`", "system")
    return found


def split_port(text: str) -> tuple[str, int]:
    """``HEAD``, ``HEAD:PORT`` or ``[IPV6]:PORT``. bimetal.Error if it is none of them."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = text.partition(":") if text.count(":") < 2 else (text, "", "")
    if not host or (port and not port.isdigit()):
        raise error(f"{text!r} is no HEAD or HEAD:PORT", "invalid_argument")
    return host, int(port) if port else DEFAULT_PORT


def with_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
