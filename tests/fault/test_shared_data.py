"""Data on some machines only: sent to the others, compared, kept, and never half there."""

import os
import resource
import shutil
import signal

import harness
from harness import DataElsewhere, limited

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

    def test_a_machine_without_data_is_sent_it_once(self):
        job_file = self.job()
        host, guest = self.run_both(job_file, ["--encrypt"], ["--encrypt"], guest_workers=2)
        self.assert_trained(host, guest)
        self.assertRegex(host.out, r"note: no data on rank 1 on .*: rank 0 on .* sends 0.9 MiB")
        self.assertNotIn("rank 2", host.out.split("sends")[0])
        self.assert_kept_whole()

        again = self.run_both(job_file)
        self.assert_trained(*again)
        self.assertNotIn("sends", again[0].out)

        labels = self.assert_kept_whole() / "train-labels-idx1-ubyte"
        labels.write_bytes(labels.read_bytes()[:-1] + b"\x07")
        mended = self.run_both(job_file)
        self.assert_trained(*mended)
        self.assertIn("sends", mended[0].out)
        self.assert_kept_whole()

    def test_the_first_machine_may_be_the_one_without(self):
        shutil.move(self.folder / "data", self.elsewhere / "data")
        host, guest = self.run_both(self.job())
        self.assert_trained(host, guest)
        self.assertRegex(host.out, r"no data on rank 0 on .*: rank 1 on .* sends")
        kept, = (self.folder / "cache" / "data").iterdir()
        self.assertEqual(len(list(kept.iterdir())), 4)
        self.assertEqual(self.in_cache(), [])

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

    def test_a_copy_that_differs_is_named(self):
        shutil.copytree(self.folder / "data", self.elsewhere / "data")
        labels = self.elsewhere / "data" / "t10k-labels-idx1-ubyte"
        labels.write_bytes(labels.read_bytes()[:-1] + b"\x09")
        host, guest = self.run_both(self.job())
        for job in (host, guest):
            self.assert_one_message(job, harness.CALL_MISMATCH, "rank 1 on", "another copy",
                                    "136 bytes with checksum", str(labels),
                                    str(self.folder / "data" / labels.name))

    def test_a_data_path_that_is_not_there(self):
        guest = self.start("join", "127.0.0.1:1", "--data-path", "no/such").wait()
        self.assert_one_message(guest, harness.INVALID_ARGUMENT, "no/such", "--data-path")

    # ---- faults while the data is sent -------------------------------------------------------------

    def assert_no_half(self):
        """Leftovers of a killed process may be beside the data set, but never under its name."""
        self.assertEqual([p.name for p in self.in_cache() if not p.name.startswith(".")], [])

    def test_no_room_to_keep_it(self):
        host, guest = self.run_both(self.job(), **limited(resource.RLIMIT_FSIZE, MIB // 2))
        for job in (host, guest):
            self.assert_one_message(job, harness.SYSTEM, "rank 1", str(self.cache),
                                    "train-images-idx3-ubyte", "too large")
        self.assertEqual(self.in_cache(), [])

    def test_a_full_disk(self):
        self.small_disk(self.cache, MIB)
        filler = self.cache / "filler"
        filler.write_bytes(bytes(MIB // 2))
        host, guest = self.run_both(self.job())
        for job in (host, guest):
            self.assert_one_message(job, harness.SYSTEM, "rank 1", str(self.cache), "no room",
                                    "0.9 MiB", "BIMETAL_CACHE")
        self.assertEqual(self.in_cache(), [])
        filler.unlink()
        self.assert_trained(*self.run_both(self.job()))
        self.assert_kept_whole()

    def begin_to_send(self, **settings):
        self.enlarge()
        host = self.host(self.job(**settings))
        return host, *self.stop_while_sending(host)

    def kill_while_sending(self, whose):
        host, guest, receiver = self.begin_to_send()
        victim = self.kill({"host": host, "guest": guest}[whose], 0)
        os.kill(receiver, signal.SIGCONT)
        for job in (host.wait(), guest.wait()):
            self.assert_one_message(job, harness.PEER_LOST, f"pid {victim}) was killed by signal 9")
        self.assert_nothing_left()
        self.assert_no_half()

    @harness.waits
    def test_a_receiver_that_hangs_is_named(self):
        host, guest, receiver = self.begin_to_send(parallel__timeout_s=2)
        self.assert_one_message(host, harness.TIMEOUT, "rank 1")
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
        self.assert_kept_whole()  # and nothing of the earlier try lies beside it


if __name__ == "__main__":
    harness.main()
