"""Data on some machines only: sent to the others, compared, kept, and never half there."""

import gzip
import os
import resource
import shutil
import signal
import subprocess
import unittest

import harness
from harness import DataElsewhere, wait_until

MIB = 1 << 20


class SharedData(DataElsewhere):
    def job(self, **settings):
        return self.write_job(data__path="data", train__steps=3, checkpoint__dir="",
                              **{"checkpoint__every_steps": 0, **settings})

    def run_both(self, job_file, host_arguments=(), guest_arguments=(), guest_workers=1, **options):
        host = self.host(job_file, *host_arguments, world_size=1 + guest_workers)
        guest = self.join_elsewhere(host, *guest_arguments, workers=("cpu:threads=1",) * guest_workers,
                                    **options)
        return host.wait(), guest.wait()

    def assert_trained(self, *jobs):
        for job in jobs:
            self.assertEqual(job.status, 0, f"{job.out}\n{job.err}")
        self.assert_nothing_left()

    def cached(self):
        """The one data set in the second machine's cache."""
        folders = self.in_cache()
        self.assertEqual(len(folders), 1, folders)
        self.assertFalse(folders[0].name.startswith("."), "half a data set is left")
        return folders[0]

    def assert_same_files(self, folder):
        ours = sorted((self.folder / "data").iterdir())
        self.assertEqual([p.name for p in ours], sorted(p.name for p in folder.iterdir()))
        for path in ours:
            self.assertEqual(path.read_bytes(), (folder / path.name).read_bytes(), path.name)

    def test_a_machine_without_data_is_sent_it_once(self):
        job_file = self.job()
        host, guest = self.run_both(job_file, ["--encrypt"], ["--encrypt"], guest_workers=2)
        self.assert_trained(host, guest)
        self.assertRegex(host.out, r"note: no data on rank 1 on .*: rank 0 on .* sends 0.9 MiB")
        self.assertNotIn("rank 2", host.out.split("sends")[0])
        self.assert_same_files(self.cached())

        again = self.run_both(job_file)
        self.assert_trained(*again)
        self.assertNotIn("sends", again[0].out)

        labels = self.cached() / "train-labels-idx1-ubyte"
        labels.write_bytes(labels.read_bytes()[:-1] + b"\x07")
        mended = self.run_both(job_file)
        self.assert_trained(*mended)
        self.assertIn("sends", mended[0].out)
        self.assert_same_files(self.cached())

    def test_the_first_machine_may_be_the_one_without(self):
        shutil.move(self.folder / "data", self.elsewhere / "data")
        host, guest = self.run_both(self.job())
        self.assert_trained(host, guest)
        self.assertRegex(host.out, r"no data on rank 0 on .*: rank 1 on .* sends")
        kept, = (self.folder / "cache" / "data").iterdir()
        self.assertEqual(len(list(kept.iterdir())), 4)
        self.assertEqual(self.in_cache(), [])

    def test_nobody_has_the_data(self):
        shutil.rmtree(self.folder / "data")
        host, guest = self.run_both(self.job())
        for job in (host, guest):
            self.assert_one_message(job, harness.INVALID_ARGUMENT, "in none of these folders: data")
        self.assert_nothing_left()

    def test_serving_can_be_forbidden_or_limited(self):
        host, guest = self.run_both(self.job(data__send=False))
        for job in (host, guest):
            self.assert_one_message(job, harness.INVALID_ARGUMENT, "rank 1 on", "no copy",
                                    "[data] send = false")
        host, guest = self.run_both(self.job(data__send_max_gb=0.0005))
        for job in (host, guest):
            self.assert_one_message(job, harness.INVALID_ARGUMENT, "rank 1 on", "0.9 MiB",
                                    "send_max_gb = 0.0005")
        self.assertEqual(self.in_cache(), [])
        self.assert_nothing_left()

    def test_a_copy_that_differs_is_named(self):
        shutil.copytree(self.folder / "data", self.elsewhere / "data")
        labels = self.elsewhere / "data" / "t10k-labels-idx1-ubyte"
        labels.write_bytes(labels.read_bytes()[:-1] + b"\x09")
        host, guest = self.run_both(self.job())
        for job in (host, guest):
            self.assert_one_message(job, harness.CALL_MISMATCH, "rank 1 on", "another copy",
                                    "136 bytes with checksum", str(labels),
                                    str(self.folder / "data" / labels.name))
        self.assert_nothing_left()

    def test_a_compressed_copy_is_the_same(self):
        theirs = self.elsewhere / "data"
        theirs.mkdir()
        for path in (self.folder / "data").iterdir():
            (theirs / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        host, guest = self.run_both(self.job())
        self.assert_trained(host, guest)
        self.assertNotIn("sends", host.out)

    def test_a_data_path_that_is_not_there(self):
        guest = self.start("join", "127.0.0.1:1", "--data-path", "no/such").wait()
        self.assert_one_message(guest, harness.INVALID_ARGUMENT, "no/such", "--data-path")

    # ---- faults while the data is sent -------------------------------------------------------------

    def assert_no_half(self):
        """What a killed process leaves may lie aside, but never under the data set's name."""
        self.assertEqual([p.name for p in self.in_cache() if not p.name.startswith(".")], [])

    def test_no_room_to_keep_it(self):
        limit = MIB // 2

        def limit_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        host, guest = self.run_both(self.job(), preexec_fn=limit_files)
        for job in (host, guest):
            self.assert_one_message(job, harness.SYSTEM, "rank 1", str(self.cache),
                                    "train-images-idx3-ubyte", "too large")
        self.assertEqual(self.in_cache(), [])
        self.assert_nothing_left()

    @unittest.skipUnless(os.geteuid() == 0, "only root can mount a small disk")
    def test_a_full_disk(self):
        self.cache.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", self.cache],
                                 capture_output=True, check=False)
        if mounted.returncode != 0:
            self.skipTest("mounting is not allowed here")
        self.addCleanup(subprocess.run, ["umount", "-l", self.cache], check=False)
        filler = self.cache / "filler"
        filler.write_bytes(bytes(MIB // 2))
        host, guest = self.run_both(self.job())
        for job in (host, guest):
            self.assert_one_message(job, harness.SYSTEM, "rank 1", str(self.cache), "no room",
                                    "0.9 MiB", "BIMETAL_CACHE")
        self.assertEqual(self.in_cache(), [])
        filler.unlink()
        self.assert_trained(*self.run_both(self.job()))
        self.assert_same_files(self.cached())

    def stop_while_sending(self, **settings):
        """The receiver is stopped when it begins, so that the sending is under way and stays so."""
        self.enlarge()
        host = self.host(self.job(**settings))
        guest = self.join_elsewhere(host)
        wait_until(lambda: self.in_cache() or guest.process.poll() is not None, "the sending", guest)
        receiver, = self.ranks_of(guest)
        os.kill(receiver, signal.SIGSTOP)
        return host, guest, receiver

    def kill_while_sending(self, whose):
        host, guest, receiver = self.stop_while_sending()
        victim, = self.ranks_of({"host": host, "guest": guest}[whose])
        os.kill(victim, signal.SIGKILL)
        os.kill(receiver, signal.SIGCONT)
        for job in (host.wait(), guest.wait()):
            self.assert_one_message(job, harness.PEER_LOST, f"pid {victim}) was killed by signal 9")
        self.assert_nothing_left()
        self.assert_no_half()

    @harness.waits
    def test_a_receiver_that_hangs_is_named(self):
        host, guest, receiver = self.stop_while_sending(parallel__timeout_s=2)
        self.assert_one_message(host.wait(), harness.TIMEOUT, "rank 1")
        os.kill(receiver, signal.SIGCONT)
        self.assertNotEqual(guest.wait().status, 0)
        self.assert_nothing_left()
        self.assertEqual(self.in_cache(), [])

    def test_the_sender_is_killed(self):
        self.kill_while_sending("host")
        self.assertEqual(self.in_cache(), [], "the receiver cleans up")

    def test_the_receiver_is_killed(self):
        self.kill_while_sending("guest")
        host, guest = self.run_both(self.job())
        self.assert_trained(host, guest)
        self.assert_same_files(self.cached())  # and nothing of the earlier try lies beside it


if __name__ == "__main__":
    harness.main()
