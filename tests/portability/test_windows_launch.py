#!/usr/bin/env python3
"""`bimetal launch` on Windows, by Wine: ranks start, meet, are interrupted, crash, are killed; nothing is left of them,
whatever ends; names and line ends as Windows has them.

The programs come from the environment: BIMETAL_LITE_WINDOWS (of a wheel, beside its library and capi_peer.exe) and
WINDOWS_TEST_PROGRAMS (a folder with launched_rank.exe and console_user.exe), run by the Wine of WINE_FOLDER.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from peers import PATIENCE_S, WINE, Kind, Peer, main

LAUNCHER = Kind("Windows", "BIMETAL_LITE_WINDOWS", WINE)
PROGRAMS = pathlib.Path(os.environ.get("WINDOWS_TEST_PROGRAMS", ""))
RANK, USER = str(PROGRAMS / "launched_rank.exe"), str(PROGRAMS / "console_user.exe")
RANKS_LAST_S = 60
UTF8 = {"LC_ALL": "C.UTF-8"}  # by which Wine reads this system's arguments


def processes(name):
    """Numbers of the processes of this Wine whose command line has `name` in it, by that. Others may run the same."""
    prefix = f"WINEPREFIX={os.path.realpath(os.environ['WINE_FOLDER'])}/wine".encode()
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            ours = prefix in (folder / "environ").read_bytes().split(b"\0")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue
        if ours and name in line and state not in "ZX":
            found[int(folder.name)] = line
    return found


class WindowsLaunch(unittest.TestCase):
    def setUp(self):
        if LAUNCHER.missing:
            self.skipTest(LAUNCHER.missing)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def peer(self, command):
        peer = Peer(command, UTF8)
        self.addCleanup(peer.out.close)
        self.addCleanup(peer.kill)
        return peer

    def launch(self, *arguments, ranks=2, options=(), rank=RANK, before=(USER,)):
        """In a console in which somebody may press Ctrl-C. With nobody `before` it, the peer is the launcher itself."""
        place = ["-n", str(ranks)] if ranks else []
        return self.peer([*WINE, *before, LAUNCHER.program, "launch", *place, *options, "--", rank, *arguments])

    def ends(self, peer, status):
        self.assertEqual(peer.wait(), status, peer.output())
        self.gone()
        return peer.output()

    def gone(self):
        """No rank and no launcher is left, of any test: sooner than the ranks would end by themselves."""
        end = time.monotonic() + RANKS_LAST_S / 2
        while left := processes("launched_rank.exe") | processes("bimetal_lite.exe launch-agent"):
            self.assertLess(time.monotonic(), end, left)
            time.sleep(0.05)

    def pid_in_windows(self, peer, rank):
        peer.expect(f"rank {rank} waits as ")
        return re.search(rf"rank {rank} waits as (\d+)\n", peer.output())[1]

    def waiting(self, *arguments, ranks=2, **options):
        """Launched ranks that all wait; their numbers in Windows are `pids`."""
        peer = self.launch(*arguments, ranks=ranks, **options)
        self.pids = [self.pid_in_windows(peer, rank) for rank in range(ranks)]
        return peer

    def end_in_windows(self, pid):
        """As the Task Manager does."""
        subprocess.run([*WINE, RANK, "end", pid], check=True, timeout=PATIENCE_S, stdout=subprocess.DEVNULL)

    # ---- what ranks get

    def test_ranks_know_their_places(self):
        output = self.ends(self.launch("say", ranks=3), 0)
        for rank in range(3):
            self.assertIn(f"[{rank}] rank {rank} of 3, {rank} on its host, meets at 127.0.0.1\n", output)
        self.assertEqual(output.count("token of 64 characters"), 3)

    def test_words_folders_and_variables_of_every_kind(self):
        folder = self.folder / "Ein Ördner, 日本 & mehr"
        folder.mkdir()
        shutil.copy(RANK, folder)
        words = ["a b", 'quo"ted', "back\\slash\\", 'ends in \\"', "ü 日本", "", "%PATH%", "a&b|c>d", "x^y"]
        output = self.ends(self.launch("say", *words, ranks=1, rank=str(folder / "launched_rank.exe"),
                                       options=["--chdir", f"Z:{folder}", "--env", "LAUNCHED_RANK_SAYS=Grüße, 日本"]), 0)
        for word in words:
            self.assertIn(f"word <{word}>\n", output)
        self.assertIn("variable <Grüße, 日本>\n", output)
        self.assertRegex(output, r"folder <Z:.*\\Ein Ördner, 日本 & mehr>")

    def test_line_ends(self):
        output = self.ends(self.launch("lines", ranks=1), 0)
        self.assertIn("[0] unix\n[0] dos\n[0] bar 1\n", output)
        self.assertIn("[0] bar 3\n", output)
        self.assertIn("[0] no end\n", output)
        self.assertIn("[0] an error\n", output)

    def test_a_host_file_written_on_windows(self):
        hosts = self.folder / "Rechner ä.txt"
        hosts.write_bytes(b"\xef\xbb\xbf# mine\r\nlocalhost slots=2\r\n")
        output = self.ends(self.launch("say", ranks=None, options=["--hostfile", f"Z:{hosts}"]), 0)
        self.assertIn("[1] rank 1 of 2", output)

    def test_a_program_is_found_by_its_name(self):
        output = self.ends(self.launch("/c", "echo", "found", ranks=1, rank="cmd"), 0)
        self.assertIn("[0] found", output)
        output = self.ends(self.launch(rank="no_such_program"), 2)
        self.assertIn("has no program no_such_program in its PATH", output)

    def test_ranks_meet_by_the_library_of_the_wheel(self):
        peer = str(pathlib.Path(LAUNCHER.program).with_name("capi_peer.exe"))
        output = self.ends(self.launch("brief", rank=peer), 0)
        for rank in range(2):
            self.assertRegex(output, rf"\[{rank}\] rank {rank} of 2: .*, 0 wrong")

    # ---- how it ends

    def test_the_status_of_the_first_that_fails(self):
        output = self.ends(self.launch("/c", "exit", "7", rank="cmd"), 7)
        self.assertRegex(output, r"bimetal: error: rank \d on localhost \(pid \d+\) ended with exit status 7; the other "
                                 r"ranks were stopped")

    def test_a_crash_is_named(self):
        output = self.ends(self.launch("crash"), 128 + signal.SIGSEGV)
        self.assertRegex(output, r"rank 1 on localhost \(pid \d+\) was killed by signal 11 \(Access violation\)")

    def test_a_killed_rank_ends_the_others(self):
        peer = self.waiting("grandchild", ranks=3)
        self.end_in_windows(self.pids[2])
        self.assertRegex(self.ends(peer, 1), rf"rank 2 on localhost \(pid {self.pids[2]}\) ended with exit status 1")

    def press_ctrl_c(self, peer):
        peer.process.stdin.write(b"\n")
        peer.process.stdin.flush()

    def test_ctrl_c_reaches_every_rank(self):
        peer = self.waiting("orderly")
        self.press_ctrl_c(peer)
        output = self.ends(peer, 130)
        for rank in range(2):
            self.assertIn(f"[{rank}] stops in an orderly way\n", output)
        self.assertIn("bimetal: interrupted\n", output)

    def test_a_second_ctrl_c_kills(self):
        peer = self.waiting("stubborn")
        self.press_ctrl_c(peer)
        peer.expect("Ctrl-C again kills them")
        self.press_ctrl_c(peer)
        self.assertIn("bimetal: the ranks were killed\n", self.ends(peer, 130))

    def test_a_killed_launcher_leaves_nobody(self):
        peer = self.waiting("grandchild", before=())
        self.assertGreaterEqual(len(processes("launched_rank.exe")), 4)
        os.kill(peer.process.pid, signal.SIGKILL)
        self.gone()

    def test_a_killed_agent_leaves_nobody(self):
        peer = self.waiting("grandchild", before=())
        [agent] = processes("bimetal_lite.exe launch-agent")
        os.kill(agent, signal.SIGKILL)
        self.assertNotEqual(peer.wait(), 0, peer.output())
        self.gone()

    def test_launcher_and_agent_killed_at_once_leave_nobody(self):
        peer = self.waiting("grandchild", before=())
        for pid in [peer.process.pid, *processes("bimetal_lite.exe launch-agent")]:
            os.kill(pid, signal.SIGKILL)
        self.gone()

    def test_it_ends_with_the_process_before_it(self):
        front = self.peer([*WINE, RANK, "wait"])
        pid = self.pid_in_windows(front, "alone")
        peer = self.waiting("grandchild", options=["--front", pid], before=())
        self.end_in_windows(pid)
        self.assertEqual(peer.wait(), 1, peer.output())
        self.gone()


if __name__ == "__main__":
    main()
