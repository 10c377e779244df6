"""`python -m bimetal.ray up` and `join`: on loopback, and between two machines made of network namespaces."""

import json
import os
import re
import signal
import subprocess
import unittest

import clusters
from commands import Commands
from harness import free_port

DRIVER = """
import json, subprocess, sys
import bimetal, bimetal.ray, torch, torch.distributed as dist

def loop():
    ones = torch.ones(1000)
    dist.all_reduce(ones)
    bimetal.ray.report({"sum": ones[0].item(), "sent": bimetal.bytes_sent(), "transport": bimetal.transport(),
                        "threads": torch.get_num_threads()})

sockets = []

def quiet(event):
    if event.kind in ("progress", "report"):
        sockets.append(subprocess.run(["ss", "-Hltn"], capture_output=True, text=True, check=True).stdout)

workers = [{"cpu": 1}, {"cpu": 1}]
by_loop = bimetal.ray.Trainer(loop, workers, on_event=quiet).fit()
by_file = bimetal.ray.Trainer(sys.argv[1], workers, on_event=quiet).fit()
by_servers = bimetal.ray.Trainer(sys.argv[1], workers, servers=[{"num_cpus": 1}, {"num_cpus": 1}],
                                 settings={"parallel.mode": "server"}, on_event=quiet).fit()
print("RESULT" + json.dumps({"loop": by_loop.workers, "file": by_file.workers, "steps": by_file.metrics["steps"],
                          "served": by_servers.workers, "server": by_servers.metrics["server"], "sockets": sockets}))
"""


@unittest.skipIf(clusters.WHY_NOT, clusters.WHY_NOT)
class OnLoopback(Commands):
    def test_up_offers_the_devices_to_those_with_the_token(self):
        port = free_port()
        head, said = self.node("up", "--port", str(port))
        self.assertIn(f"runs at 127.0.0.2:{port}", said)
        token = (self.home / ".ray" / "auth_token").read_text().strip()
        self.assertEqual((self.home / ".ray" / "auth_token").stat().st_mode & 0o077, 0)
        self.assertNotIn(token, said)
        self.assertIn("a plain `ray start` that is to join it: export RAY_AUTH_MODE=token first", said)

        import psutil

        from bimetal.ray.run_node import listeners
        listening = listeners(head.pid)
        self.assertTrue(listening)
        places = {address.removeprefix("::ffff:") for address, _, _ in listening}
        self.assertEqual(places - {"127.0.0.1"}, {"127.0.0.2"})
        for process in psutil.Process(head.pid).children(recursive=True):
            self.assertNotIn(token, " ".join(process.cmdline()))

        show = "import bimetal.ray, ray, json; ray.init('auto', logging_level='ERROR'); print(json.dumps(ray.nodes()))"
        answer = self.run_python("-c", show, RAY_ADDRESS=f"127.0.0.2:{port}")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        node = json.loads(answer.stdout)[0]
        self.assertEqual((node["Resources"]["cpu"], node["Resources"]["CPU"]), (1, 1))
        self.assertIn("os", node["Labels"])
        refused = self.run_python("-c", show, RAY_ADDRESS=f"127.0.0.2:{port}", RAY_AUTH_TOKEN="0" * 64,
                                  RAY_AUTH_MODE="token")
        self.assertNotEqual(refused.returncode, 0)
        self.assertRegex(refused.stderr, "(?i)token")

        again = self.run_python("-m", "bimetal.ray", "up", "--port", port)
        self.assertEqual(again.returncode, 13)
        self.assertIn("If a cluster runs there already, join it", again.stderr)
        self.end(head)
        self.await_end()

    def test_the_node_ends_with_its_command(self):
        head, _ = self.node("up", "--port", str(free_port()))
        os.kill(head.pid, signal.SIGKILL)
        head.wait()
        self.await_end()

    def test_what_is_wrong_is_said(self):
        for arguments, status, word in (
                (["join", "127.0.0.1:1"], 7, "there is no token"),
                (["up", "--host", "203.0.113.77"], 13, "cannot listen"),
                (["up", "--host", "0.0.0.0"], 2, "name one address"), (["join", "a:b"], 2, "no HEAD"),
                (["run"], 2, "name the program")):
            answer = self.run_python("-m", "bimetal.ray", *arguments)
            self.assertEqual(answer.returncode, status, answer.stderr)
            self.assertIn(word, answer.stderr)
        self.run_python("-c", "from bimetal.ray import token_file as t; t.make(t.default_path())")
        answer = self.run_python("-m", "bimetal.ray", "join", "127.0.0.1:1")
        self.assertEqual(answer.returncode, 13)
        self.assertIn("nobody answers at 127.0.0.2:1", answer.stderr)


def why_no_hosts():
    if clusters.WHY_NOT:
        return clusters.WHY_NOT
    import namespaces

    return namespaces.why_not()


@unittest.skipIf(why_no_hosts(), why_no_hosts())
class BetweenMachines(Commands):
    """Two hosts with a cable between them, and a second address each that nobody has asked for."""

    def setUp(self):
        super().setUp()
        from namespaces import Host, ip

        self.hosts = [Host(), Host()]
        for host in self.hosts:
            self.addCleanup(host.remove)
        first, second = self.hosts
        ip("link", "add", "cable0", "netns", first.name, "type", "veth", "peer", "name", "cable0", "netns", second.name)
        for number, host in enumerate(self.hosts, 1):
            host.address("cable0", f"10.77.0.{number}/24", f"10.78.0.{number}/24")

    def test_two_commands_and_a_trainer(self):
        first, second = (host.command() for host in self.hosts)
        head, said = self.node("up", "--host", "10.77.0.1", before=first)
        self.assertIn("python -m bimetal.ray join 10.77.0.1:6379", said)
        other, said = self.node("join", "10.77.0.1", before=second)
        self.assertIn("this node (10.77.0.2) has joined", said)

        job = clusters.job("machines.toml", steps=20)
        program = self.home / "driver.py"
        program.write_text(DRIVER)
        answer = self.run_python("-m", "bimetal.ray", "run", program, job, before=first)
        found = re.search("RESULT(.*)", answer.stdout)
        self.assertTrue(found, answer.stdout + answer.stderr)
        result = json.loads(found[1])
        self.assertEqual(sorted(worker["address"] for worker in result["loop"]), ["10.77.0.1", "10.77.0.2"])
        self.assertEqual([worker["metrics"]["sum"] for worker in result["loop"]], [2, 2])
        # The two nodes have addresses of their own and the cores of one machine.
        self.assertLessEqual(sum(worker["metrics"]["threads"] for worker in result["loop"]), max(2, os.cpu_count()))
        self.assertEqual(result["steps"], 20)
        self.assertEqual(len(result["file"]), 2)
        self.assertEqual((result["server"]["servers"], result["server"]["updates"]), (2, 20))  # one on each machine
        self.assertEqual(sum(worker["samples"] for worker in result["served"]), 20 * 64)

        now = [subprocess.run([*host, "ss", "-Hltn"], capture_output=True, text=True, check=True).stdout
               for host in (first, second)]
        self.assertGreaterEqual(len(result["sockets"]), 2)  # while a loop and a job ran
        for listening in (*now, *result["sockets"]):
            places = {line.split()[3].rpartition(":")[0].strip("[]").removeprefix("::ffff:")
                      for line in listening.splitlines()}
            self.assertLessEqual(places, {"10.77.0.1", "10.77.0.2", "127.0.0.1"})
            self.assertTrue(places)
        self.end(other)
        self.end(head)
        self.await_end()


def tearDownModule():
    clusters.remove_temporary()


if __name__ == "__main__":
    unittest.main(verbosity=2)
