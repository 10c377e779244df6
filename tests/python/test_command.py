"""The command `bimetal` of the package: ranks, two doctors, and what it leaves to the program."""

import contextlib
import io
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

import ranks
from pip._vendor.packaging.markers import Marker

from bimetal.command import doctor, program, two_doctors
from bimetal.command.__main__ import main
from bimetal.command.findings import Findings
from searches import harness

ROOT = pathlib.Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "bimetal.command"]
SECONDS = 120


def environment(*folders):
    """With no program on PATH but in these folders."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("BIMETAL")}
    return own | {"PATH": os.pathsep.join([*folders, str(pathlib.Path(sys.executable).parent), "/usr/bin", "/bin"])}


def run(*words, folders=()):
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=SECONDS, env=environment(*folders))


SAVES = """
import os, signal, sys, time
def stopped(*_): raise KeyboardInterrupt
signal.signal(signal.SIGTERM, stopped)
print("ready", flush=True)
try:
    time.sleep(100)
except KeyboardInterrupt:
    print("saves", flush=True)
    time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 1)
    print("has saved", flush=True)
"""


@unittest.skipUnless(sys.platform == "linux", "ranks end with their launcher")
class Launch(harness.FaultTest):
    """`bimetal launch` of two ranks that run a script."""

    def setUp(self):
        super().setUp()
        self.environment = environment() | {name: self.environment[name] for name in (harness.MARK, "TMPDIR")}

    def launch(self, script, *options, until=None):
        job = self.start("launch", *(options or ("-n", "2")), "--", sys.executable, "-c", script, program=COMMAND)
        if until:
            self.wait_for_both(job, until)
        return job

    def wait_for_both(self, job, word):
        harness.wait_until(lambda: job.out.count(word) == 2 or job.process.poll() is not None, word, job)

    def test_a_loop_gets_its_lost_rank_back(self):
        script = f"import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r}); import test_elastic; test_elastic.launched()"
        self.environment["TORCHINDUCTOR_CACHE_DIR"] = str(self.folder / "inductor")
        job = self.launch(script, "-n", "3", "--elastic=2", "--restart", "1").done()
        ends = [json.loads(text) for text in re.findall(r"\[\d\] end (.*)", job.out)]
        self.assertEqual(sorted(one["rank"] for one in ends), [0, 1, 2])
        for one in ends:
            self.assertLess(one["worst"], 1e-12)
            self.assertEqual([size for size, _ in itertools.groupby(size for size, _ in one["steps"])], [3, 2, 3])

    def test_who_is_interrupted_may_save(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number.name):
                job = self.launch(SAVES, until="ready")
                job.process.send_signal(number)
                job.done(130)
                for rank in range(2):
                    self.assertIn(f"[{rank}] has saved", job.out)

    def test_a_second_interrupt_kills(self):
        job = self.launch(SAVES.replace("else 1", "else 100"), until="ready")
        job.process.send_signal(signal.SIGINT)
        self.wait_for_both(job, "saves")
        job.process.send_signal(signal.SIGINT)
        job.done(130)
        self.assertIn("bimetal: the ranks were killed", job.out + job.err)

    def test_of_nohup_the_end_of_the_terminal_is_nothing(self):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGHUP, before)
        job = self.launch("import time; print('ready', flush=True); time.sleep(1); print('through')", until="ready")
        job.process.send_signal(signal.SIGHUP)
        self.assertEqual(job.done().out.count("through"), 2, job.out)

    def test_who_was_killed_is_the_cause(self):
        script = ("import os, pathlib, sys, time; rank, last = os.environ['RANK'], pathlib.Path(sys.argv[1])\n"
                  "if rank == '2': last.touch(); os.kill(os.getpid(), 9)\n"
                  "while not last.exists(): time.sleep(0.01)\n"  # who starts sooner has not failed of itself
                  "sys.exit(rank == '0')")
        job = self.start("launch", "-n", "3", "--", sys.executable, "-c", script, str(self.folder / "last"), program=COMMAND).done(137)
        self.assertRegex(job.err, r"rank 2 on .* was killed by signal 9 \(Killed\); the other ranks were stopped")

    def test_lines_have_their_ranks(self):
        bar = ("import sys, time\n"
               "for i in range(13): print(f'{i} of 12', end='\\r', flush=True); time.sleep(0.1)\n"
               "print('12 of 12'); sys.stdout.write('last')")
        began = time.monotonic()
        said = self.launch(bar).done().out
        seconds = time.monotonic() - began
        for rank in range(2):
            self.assertIn(f"[{rank}] 12 of 12\n", said)
            self.assertIn(f"[{rank}] last\n", said)
            shown = [line for line in said.splitlines() if line.startswith(f"[{rank}]")]
            self.assertTrue(3 <= len(shown) <= 4 + seconds, "what is rewritten shows once in a second\n" + said)
        self.assertEqual(self.launch("print('x')", "--no-prefix", "-n", "1").done().out, "x\n")


class Program(unittest.TestCase):
    def test_without_it_its_options_say_whose_they_are(self):
        self.assertIn("`bimetal token` knows no --monitor without the program, which is not installed here: "
                      f"{program.how_to_get()}", self.refused("token", "--monitor", "a", "b"))
        self.assertIn("unrecognized arguments: --what", self.refused("doctor", "--what", status=2))

    def refused(self, *words, status=3):
        """In this process, since a start of Python's takes seconds."""
        with mock.patch.dict(os.environ, environment(), clear=True), contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                found = main(list(words))
            except SystemExit as usage:
                found = usage.code
        self.assertEqual(found, status, said.getvalue())
        return said.getvalue()

    @unittest.skipUnless("BIMETAL" in os.environ, "needs the program")
    def test_where_it_is_it_launches(self):
        folder = str(pathlib.Path(os.environ["BIMETAL"]).parent)
        script = "import os; print(os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], os.environ['NODE_RANK'])"
        for options in (("-H", "localhost:2"), ("-n", "2")):
            done = run("launch", *options, "--", sys.executable, "-c", script, folders=[folder])
            self.assertEqual(sorted(done.stdout.splitlines()), ["[0] 0 of 2 0", "[1] 1 of 2 0"], done.stderr)
        for folders in ([folder], []):  # without it by what of it needs no torch
            self.assertIn("--hostfile", run("launch", "--help", folders=folders).stdout)
        self.assertIn("--monitor", run("token", "--help", folders=[folder]).stdout)

    @unittest.skipUnless("BIMETAL" in os.environ, "needs the program")
    def test_it_has_the_doctor(self):
        done = subprocess.run([os.environ["BIMETAL"], "doctor"], capture_output=True, text=True, timeout=SECONDS,
                              env=environment() | {"BIMETAL_PYTHON": sys.executable})
        self.assertIn("devices: ", done.stdout, done.stderr)

    def test_pip_is_asked_for_it_where_its_wheels_are(self):
        with mock.patch.object(sys, "path", [*sys.path, str(ROOT / "scripts")]):
            from make_wheel import MARKER
        for system, machine, there in (("linux", "x86_64", True), ("linux", "aarch64", False), ("darwin", "arm64", True),
                                       ("darwin", "x86_64", False), ("win32", "AMD64", False)):
            self.assertEqual(Marker(MARKER).evaluate({"sys_platform": system, "platform_machine": machine}), there)
            self.assertEqual("pip install" in program.how_to_get(system, machine), there)


class Doctors(unittest.TestCase):
    def test_a_package_that_is_being_built_is_no_traceback(self):
        whole = pathlib.Path(program.__file__).parents[1]
        with tempfile.TemporaryDirectory() as folder:
            cut_off = pathlib.Path(folder, "bimetal")
            cut_off.mkdir()
            for part in whole.iterdir():
                if ".so" in part.suffixes:
                    (cut_off / part.name).write_bytes(b"\x7fELF")
                else:
                    (cut_off / part.name).symlink_to(part)
            done = subprocess.run([sys.executable, "-m", "bimetal.command", "doctor"], capture_output=True, text=True,
                                  timeout=SECONDS, env={**os.environ, "PYTHONPATH": folder})
            self.assertEqual(done.returncode, 1)
            self.assertIn("bimetal: error: the package cannot be imported: ", done.stderr)
            self.assertIn("wait for its end", done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    def two(self, *words):
        """The outputs of the doctor that calls and of the one that listens."""
        address = f"localhost:{ranks.free_port()}"
        listening = []
        listens = threading.Thread(target=lambda: listening.append(run("doctor", "--listen", address, *words)))
        listens.start()
        calling = run("doctor", address, *words)
        listens.join()
        return calling, *listening

    def test_two_meet_on_loopback_without_a_token(self):
        for done in self.two():
            self.assertRegex(done.stdout, r"there: bimetal .*, torch .*; .*cpu with \d+ cores", done.stderr)
            self.assertIn("connections: in both directions", done.stdout, done.stderr)

    def test_as_json(self):
        done = run("doctor", "--json")
        alone = json.loads(done.stdout)
        self.assertEqual({name: alone[name] for name in ("bimetal", "torch", "python", "devices")},
                         {name: doctor.facts()[name] for name in ("bimetal", "torch", "python")} | {"devices": doctor.devices()})
        self.assertEqual([(one["address"], one["interface"]) for one in alone["addresses"]], doctor.addresses())
        self.assertEqual(bool(alone["problems"]), done.returncode != 0, done.stderr)
        for done in self.two("--json"):
            found = json.loads(done.stdout)
            self.assertTrue(found["both_directions"], found)
            self.assertEqual(found["there"]["torch"], alone["torch"])
            self.assertLess(found["clocks_apart_s"], SECONDS)
            self.assertGreater(found["link"]["mbit_per_s_to_here"], 0)
        done = run("doctor", f"127.0.0.1:{ranks.free_port()}", "--wait", "1", "--json")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(f"bimetal: error: {json.loads(done.stdout)['problems'][-1]}", done.stderr.strip())

    def test_one_that_cannot_be_reached_is_told_what_to_type(self):
        address = f"127.0.0.1:{ranks.free_port()}"
        server = two_doctors.made(two_doctors.lib.server_new, address.encode())
        self.addCleanup(two_doctors.lib.server_free, server)
        listening, other = (two_doctors._Store(address, 20) for _ in range(2))
        self.addCleanup(listening.free)
        self.addCleanup(other.free)
        other.set("knock/through", two_doctors.way_through("192.168.1.20"))
        other.set("knock/where", f"127.0.0.1 {ranks.free_port()}")  # where nothing answers
        problem, = two_doctors._knock(listening, address, listens=True, found=Findings(as_json=False))
        self.assertIn("127.0.0.1 cannot be reached from the machine that listens", problem)
        self.assertTrue(problem.endswith(two_doctors.way_through("192.168.1.20")), problem)
        self.assertEqual(other.get("knock/said"), problem)

    def test_what_opens_a_firewall(self):
        self.assertRegex(two_doctors.way_through("192.168.1.20", "win32"), r"^New-NetFirewallRule .* -Program '.+' in PowerShell")
        self.assertIn("socketfilterfw --unblockapp '/", two_doctors.way_through("192.168.1.20", "darwin"))
        with tempfile.TemporaryDirectory() as folder:
            for tool, words in (("iptables", "-s 192.168.1.20"), ("nft", "ip saddr 192.168.1.20"), ("ufw", "from 192.168.1.20")):
                path = pathlib.Path(folder, tool)  # found before those that are here, and those before
                path.write_text("")
                path.chmod(0o755)
                with mock.patch.dict(os.environ, PATH=folder), mock.patch.object(two_doctors, "SYSTEM_TOOLS", ""):
                    self.assertIn(f"sudo {tool} ", two_doctors.way_through("192.168.1.20", "linux"))
                    self.assertIn(words, two_doctors.way_through("192.168.1.20", "linux"))
            with mock.patch.dict(os.environ, PATH="/none"), mock.patch.object(two_doctors, "SYSTEM_TOOLS", ""):
                self.assertIn("the router's", two_doctors.way_through("192.168.1.20", "linux"))

    @unittest.skipUnless(sys.platform == "linux", "compares with Linux' files")
    def test_how_long_packets_may_be(self):
        for folder in pathlib.Path("/sys/class/net").iterdir():
            if (folder / "mtu").exists():
                self.assertEqual(doctor.mtu_of(folder.name), int((folder / "mtu").read_text()))
        self.assertIsNone(doctor.mtu_of("none such"))

    def test_what_is_loopback(self):
        for address, is_one in (("127.0.0.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("127.9.9.9:1", True),
                                ("192.168.1.1:1", False), ("pc127.0.0.1:1", False), ("[fd00::1]:1", False)):
            self.assertEqual(two_doctors.is_loopback(address), is_one, address)
        done = run("doctor", "pc.invalid:29500")
        self.assertEqual(done.returncode, 7, done.stderr)

    def test_addresses_for_firewalls_and_the_newer_of_two_versions(self):
        self.assertEqual(two_doctors.address_of("[::1]"), "::1")
        self.assertIn(two_doctors.address_of("localhost"), ("127.0.0.1", "::1"))
        self.assertEqual(two_doctors.newer("0.9.0", "0.10.0"), "0.10.0")
        self.assertEqual(two_doctors.newer("2.13", "2.4"), "2.13")

    def test_unlike_machines_are_told_apart_and_clocks_fail_nothing(self):
        mine = doctor.facts() | {"core": "0.9.0"}
        theirs = mine | {"core": "0.10.0", "torch": "2.99.0"}
        store = mock.Mock(get=lambda key: two_doctors.json.dumps(theirs) if key == "facts/1" else "60.0")
        with mock.patch("builtins.print") as said:
            problems = two_doctors._compare(store, mine, 0, Findings(as_json=False))
        text = "\n".join(call.args[0] for call in said.call_args_list)
        self.assertEqual(len(problems), 1, problems)
        self.assertIn("pip install bimetal==0.10.0 on both", problems[0])
        self.assertIn("torch: unlike here and there", text)
        self.assertIn("clocks: 60.0 s apart; no job fails by that", text)


if __name__ == "__main__":
    ranks.main(globals())
