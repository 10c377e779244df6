"""python -m bimetal.ray up | join | run: Ray nodes that say what devices they have, and ask for a token."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import pathlib
import socket
import sys

from bimetal._errors import EXIT_STATUSES, Error
from bimetal.command import network
from bimetal.ray import run_node, share, token_file
from bimetal.ray.result import error

_REACH_SECONDS = 10.0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bimetal.ray", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Starts this machine's node of a Ray cluster, tagged with its devices, until Ctrl-C.",
        epilog="Two machines:\n"
               "  bimetal ray up --share              # on the first: shows a code, and the line for the second\n"
               "  bimetal ray join                    # on the second: shows the clusters that it sees, and asks for the code\n"
               "  bimetal ray run train.py            # a program with a Trainer, on either\n\n"
               "docs/ray.md tells more.")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start the first node of a cluster")
    up.add_argument("--share", action="store_true",
                    help="let other machines in by a code that is shown here, so that nobody has to carry the token")
    up.add_argument("--host", metavar="ADDR",
                    help="the address of this machine by which the others reach it (default: with --share that of the default "
                         "route, else loopback, this machine alone)")
    up.add_argument("--port", type=int, default=run_node.DEFAULT_PORT, help=f"default: {run_node.DEFAULT_PORT}")
    join = commands.add_parser("join", help="start one more node")
    join.add_argument("head", metavar="HEAD[:PORT]", nargs="?",
                      help="where `up` runs (default: the one that is seen; with --share there a code lets in)")
    join.add_argument("--host", metavar="ADDR", help="this machine's address for the others (default: the one on the "
                                                     "way to HEAD)")
    run = commands.add_parser("run", help="run a Python program that uses a cluster and listens on one address alone")
    run.add_argument("--address", metavar="HEAD[:PORT]", help="the cluster (default: RAY_ADDRESS, else this machine's)")
    run.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM.py …", help="and its arguments")
    for command in (up, join, run):
        command.add_argument("--token-file", type=pathlib.Path, metavar="FILE",
                             help="the cluster's token (default: ~/.ray/auth_token, where programs look for it, too)")
    for command in (up, join):
        command.add_argument("--resources", type=_resources, default={}, metavar="JSON",
                             help='tags of your own beside the devices\', as {"fast": 1}: workers ask for them')
        command.add_argument("--labels", type=_labels, default={}, metavar="NAME=VALUE,…",
                             help="labels of your own beside os and arch")
        command.add_argument("--num-cpus", type=int, metavar="N", help="cores to offer (default: all)")
        command.add_argument("--object-store-mb", type=int, metavar="MB",
                             help="memory for Ray's objects (default: Ray's own; training needs about 100)")
    return parser


def _resources(text: str) -> dict[str, float]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    own = set(run_node.RESERVED) & set(found if isinstance(found, dict) else ())
    if own:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(own))}: how many there are is found out, or said by "
                                         "--num-cpus")
    if not isinstance(found, dict) or not all(isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
                                              for value in found.values()):
        raise argparse.ArgumentTypeError(f'{text} is no JSON object of numbers above 0, as {{"fast": 1}}')
    return found


def _labels(text: str) -> dict[str, str]:
    found = dict(part.partition("=")[::2] for part in text.split(","))
    if not all(name and value for name, value in found.items()):
        raise argparse.ArgumentTypeError(f"{text}: expected NAME=VALUE, parted by commas, as room=attic,rack=2")
    return found


def _offered(arguments: argparse.Namespace) -> list[str]:
    """Arguments of `ray start`: the node's resources."""
    return run_node.common_arguments(arguments.num_cpus, arguments.object_store_mb, arguments.resources,
                                     arguments.labels)


def _up(arguments: argparse.Namespace) -> None:
    if arguments.host is None and arguments.share:
        arguments.host = run_node.own_address_towards(*network.ANYWHERE)
    if arguments.host is None or run_node.is_loopback(arguments.host):
        arguments.host = run_node.loopback_address()
    if arguments.share:
        share.encrypt_unless_told()
    run_node.require_own(arguments.host, arguments.port)
    token = _token(arguments)
    made = token is not None and token_file.make(token)
    _check(token)
    address = run_node.with_port(arguments.host, arguments.port)
    shared = contextlib.ExitStack()

    def started(elsewhere: list[str]) -> None:
        _say(f"Ray {importlib.metadata.version('ray')} runs at {address} and offers {_offer(arguments)}")
        if token is not None:
            _say(f"token: {token}{' (made just now)' if made else ''}; whoever has it may run programs here")
        if arguments.share:
            secret = token.read_text().strip() if token else os.environ[token_file.TOKEN]
            found = shared.enter_context(share.Share(secret, arguments.host, arguments.port))
            _say(f"this cluster is shared. On the other machine run: bimetal ray join {found.place}\n"
                 f"and type there, within two minutes: {found.code}")
        elif run_node.is_loopback(arguments.host):
            _say("this machine alone can reach it; give --host its address for others to join")
        else:
            _say("on each other machine, with the same versions of Python, Ray and Bimetal:\n"
                 f"    scp -p {arguments.host}:{_remote_path(token)} ~/.ray/\n"
                 f"    python -m bimetal.ray join {address}")
        _say_how_to_connect(address, token)
        _warn(elsewhere)

    with shared:
        run_node.run("head", address, ["--head", f"--port={arguments.port}", "--include-dashboard=false",
                                       "--dashboard-host=127.0.0.1", *_place(arguments.host), *_offered(arguments)],
                     run_node.environment(arguments.host, token), arguments.host, started, _say_end)


def _join(arguments: argparse.Namespace) -> None:
    token = _token(arguments)
    head, port = run_node.split_port(arguments.head) if arguments.head else ("", 0)
    if _wants_code(arguments, head, token):
        admission = share.ask(arguments.head)
        head, port = admission.head, admission.port
        share.encrypt_unless_told(admission.encryption)
        share.keep(admission, token or token_file.given_path())
        _say(f"{admission.machine} lets this machine in")
    _check(token)
    own = arguments.host or run_node.own_address_towards(head, port)
    if run_node.is_loopback(head) is not run_node.is_loopback(own):
        raise error(f"{own} and {head}: a node on loopback and one on the network cannot reach each other",
                    "invalid_argument")
    if run_node.is_loopback(head):
        head = own = run_node.loopback_address()
    _require_answer(head, port)
    address = run_node.with_port(head, port)

    def started(elsewhere: list[str]) -> None:
        _say(f"this node ({own}) has joined {address} and offers {_offer(arguments)}")
        _say_how_to_connect(address, token)
        _warn(elsewhere)

    run_node.run("joined", address, [f"--address={address}", *_place(own), *_offered(arguments)],
                 run_node.environment(own, token), own, started, _say_end)


def _wants_code(arguments: argparse.Namespace, head: str, token: pathlib.Path | None) -> bool:
    """Whether the cluster's token has to be asked for: it is not here, or the user says a code, or no machine."""
    if not head or os.environ.get(share.CODE):
        return True
    return token is not None and not token.exists() and share.is_shared(head)


def _run(arguments: argparse.Namespace) -> None:
    """Becomes the program, with what keeps it to one address."""
    if not arguments.program:
        raise error("name the program to run: python -m bimetal.ray run PROGRAM.py …", "invalid_argument")
    token = _token(arguments)
    _check(token)
    os.execve(sys.executable, [sys.executable, *arguments.program], run_node.environment_for_program(arguments.address, token))


def _place(address: str) -> list[str]:
    """The option of `ray start` for it; none where Ray would read it as something else (see loopback_address)."""
    return [] if address == "127.0.0.1" else [f"--node-ip-address={address}"]


def _token(arguments: argparse.Namespace) -> pathlib.Path | None:
    """The token's file; None where RAY_AUTH_TOKEN holds the token itself."""
    if arguments.token_file is not None:
        os.environ.pop(token_file.TOKEN, None)
        return arguments.token_file.absolute()
    return None if os.environ.get(token_file.TOKEN) else token_file.given_path()


def _check(token: pathlib.Path | None) -> None:
    if token is not None and (wrong := token_file.complaint(token)):
        raise error(wrong, "unauthorized")


def _require_answer(head: str, port: int) -> None:
    try:
        socket.create_connection((head, port), timeout=_REACH_SECONDS).close()
    except OSError as nobody:
        raise error(f"nobody answers at {head}:{port}: {nobody}. Does `python -m bimetal.ray up --host {head}` run "
                    "there, and do firewalls let the machines reach each other's ports?", "system") from nobody


def _remote_path(token: pathlib.Path | None) -> str:
    return str(token) if token and token != token_file.default_path() else ".ray/auth_token"


def _offer(arguments: argparse.Namespace) -> str:
    return ", ".join(f"{name} {count:g}" for name, count in {**run_node.device_tags(), **arguments.resources}.items())


def _say_how_to_connect(address: str, token: pathlib.Path | None) -> None:
    if token is not None and token != token_file.default_path():
        _say(f"for programs that use it: export RAY_ADDRESS={address} RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={token}")
    else:
        _say("programs on this machine find it by themselves")
    _say("a plain `ray start` that is to join it: export RAY_AUTH_MODE=token first; it says nothing of that, and fails")
    if sys.platform in ("darwin", "win32") and not address.startswith("127."):
        _say(f"Ray holds clusters with macOS and Windows for experimental and asks to opt in: this node does; for "
             f"programs on this machine: export {run_node.CLUSTER_VARIABLE}=1")
    _say("Ctrl-C ends this node")


def _say_end(why: str) -> None:
    _say(f"this node ends: {why}")


def _warn(elsewhere: list[str]) -> None:
    if elsewhere:
        _say(f"note: Ray itself listens on all addresses of this machine ({', '.join(elsewhere)}); it lets nobody in "
             "without the token, but a firewall should keep others away")


def _say(text: str) -> None:
    print(f"bimetal.ray: {text}", flush=True)


def main() -> int:
    arguments = _arguments().parse_args()
    try:
        {"up": _up, "join": _join, "run": _run}[arguments.command](arguments)
    except Error as failed:
        print(f"bimetal.ray: error: {failed}", file=sys.stderr)
        return EXIT_STATUSES[failed.code]
    return 0


if __name__ == "__main__":
    sys.exit(main())
