"""A program that uses a cluster: where that is, and what keeps it from listening to everybody."""

from __future__ import annotations

import os
import pathlib

from bimetal.ray import run_node, token_file
from bimetal.ray.failure import error

DEFAULT_PORT = 6379


def environment(address: str | None, token: pathlib.Path | None) -> dict[str, str]:
    """Its variables: Ray lets every program that connects listen on all addresses, unless it is started with these.

    Args:
        address: HEAD or HEAD:PORT; None: RAY_ADDRESS, else this machine's cluster.
        token: the file of the cluster's token; None: RAY_AUTH_TOKEN holds it.

    Raises:
        bimetal.Error: ``system`` if there is no cluster here or no network leads to it.
    """
    head, port = split_port(address or os.environ.get("RAY_ADDRESS") or of_this_machine())
    own = run_node.own_address_towards(head, port)
    if run_node.is_loopback(own):
        own = run_node.loopback_address()
    return {**run_node.environment(own, token), "RAY_ADDRESS": with_port(head, port)}


def environment_if_unset(address: str | None) -> dict[str, str] | None:
    """The same for a program that is running already, to start itself anew with; None: it has them. On a cluster
    without tokens, which somebody else has started, it does without one."""
    if "BIMETAL_BIND_ADDRESS" in os.environ or not run_node.can_confine():
        return None
    variables = environment(address, token_file.given_path())
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
