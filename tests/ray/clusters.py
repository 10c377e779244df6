"""Real Ray clusters of several nodes on this machine, with token authentication on, and jobs for them.

Import this before anything of Ray: it decides on tokens and reports when it is imported.
"""

import importlib.util
import json
import os
import pathlib
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "fault"), str(ROOT / "tests" / "network")]

WHY_NOT = None if importlib.util.find_spec("ray") else "Ray is not installed: scripts/install_ray.sh"
ADDRESS = "127.0.0.2"  # loopback; from 127.0.0.1 Ray goes over to the address of the default route
PATIENCE_S = 180  # a busy machine of two cores

TEMPORARY = pathlib.Path(tempfile.mkdtemp(prefix="bmr"))  # short: Ray's sockets lie in it
RAY_TOKEN = secrets.token_hex(32)
(TEMPORARY / "token").write_text(RAY_TOKEN)
(TEMPORARY / "token").chmod(0o600)
(TEMPORARY / "ray").mkdir()
os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(TEMPORARY / "token"), RAY_USAGE_STATS_ENABLED="0",
                  RAY_DEDUP_LOGS="0", RAY_TMPDIR=str(TEMPORARY), OMP_NUM_THREADS="1",
                  RAY_worker_niceness="0")  # Ray's own is 15, which starves workers where compilers run beside them
os.environ.pop("RAY_ADDRESS", None)


def start(*nodes, object_store_mb=80):
    """A cluster whose head offers nothing but the driver's place; each of ``nodes`` is what one more offers."""
    import ray
    from ray.cluster_utils import Cluster

    common = {"object_store_memory": object_store_mb << 20, "node_ip_address": ADDRESS, "include_dashboard": False}
    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=0, **common)
        made = [cluster.add_node(num_cpus=node.get("CPU", 1),
                                 resources={name: amount for name, amount in node.items() if name != "CPU"}, **common)
                for node in nodes]
        ray.init(address=cluster.address, _node_ip_address=ADDRESS, log_to_driver=False)
    except BaseException:
        cluster.shutdown()
        raise
    return cluster, made


def cluster_nodes():
    """Ids of living nodes."""
    import ray

    return [node["NodeID"] for node in ray.nodes() if node["Alive"]]


def joined(test, cluster, tag):
    """A node as a user starts it, with that tag; ended after the test."""
    before = len(cluster_nodes())
    node = subprocess.Popen(
        [sys.executable, "-m", "bimetal.ray", "join", cluster.address, "--token-file", str(TEMPORARY / "token"),
         "--num-cpus", "1", "--object-store-mb", "80", "--resources", json.dumps({tag: 1})],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    test.addCleanup(node.wait)
    test.addCleanup(node.kill)
    until(lambda: node.poll() is not None or len(cluster_nodes()) > before, what="the node")
    test.assertIsNone(node.poll())
    return node


def stop(cluster):
    """Ends the cluster and removes what it has written."""
    import ray

    ray.shutdown()
    cluster.shutdown()


def remove_temporary():
    shutil.rmtree(TEMPORARY, ignore_errors=True)


@unittest.skipIf(WHY_NOT, WHY_NOT)
class OnCluster(unittest.TestCase):
    """Tests on one cluster, whose nodes beside the head offer OFFERED."""

    OFFERED = ()

    @classmethod
    def setUpClass(cls):
        cls.cluster, cls.nodes = start(*cls.OFFERED)

    @classmethod
    def tearDownClass(cls):
        stop(cls.cluster)
        remove_temporary()

    def refused(self, code, words, *arguments, **options):
        """The message of a trainer of these that does not begin."""
        import bimetal.ray

        with self.assertRaisesRegex(bimetal.Error, words) as failed:
            bimetal.ray.Trainer(*arguments, **{"on_event": lambda event: None, **options}).fit()
        self.assertEqual(failed.exception.code, code)
        return str(failed.exception)


def dataset():
    """A small data set that anything learns."""
    from harness import write_dataset

    folder = TEMPORARY / "data"
    if not folder.exists():
        write_dataset(folder)
    return folder


def job(name="job.toml", steps=20, **keys):
    """A small job file in double precision."""
    path = TEMPORARY / name
    settings = {"checkpoint.every_steps": 0, **keys}
    path.write_text(f"""
[model]
name = "mlp"
[data]
name = "mnist"
path = "{dataset()}"
[train]
epochs = 1000
steps = {steps}
global_batch = 64
dtype = "float64"
evaluate = {str(settings.get("evaluate", False)).lower()}
learning_rate = 0.05
[parallel]
timeout_s = 20
[checkpoint]
dir = "{settings.get("dir", "")}"
every_steps = {settings["checkpoint.every_steps"]}
""")
    return path


RANKS = "bimetal-ray-"  # on the command line of each rank of a job file, and of nothing else: its scratch folder


def command_lines():
    """The command line of each living process, by its id."""
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            found[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
    return found


def processes(word):
    """Ids of living processes on whose command line a word stands."""
    return [pid for pid, command in command_lines().items() if word in command]


def trials():
    """Ids of programs that run as tasks of a search: each works in a folder of such a name."""
    found = []
    for pid in processes("train"):
        try:
            command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if command[1:2] == [b"train"] and "bimetal-run-" in os.readlink(f"/proc/{pid}/cwd"):
                found.append(pid)
        except OSError:
            continue
    return found


def until(condition, seconds=PATIENCE_S, what="it"):
    """The value of a condition once it is true; AssertionError after so long."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come about within {seconds} s")
        time.sleep(0.1)
