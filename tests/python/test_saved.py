"""Folders that are copied, and checkpoints in the order of their saving: processes are killed, clocks set back."""

import os
import shutil
import signal
import tempfile
import time
from unittest import mock

import bimetal
from bimetal.runs import folders, saved
from searches import harness

DAY_S = 24 * 3600


class Child:
    """A process that does something and then waits to be killed."""

    def __init__(self, test, body):
        self.done = test.folder / f"done-{os.urandom(4).hex()}"
        self.pid = os.fork()
        if self.pid == 0:
            try:
                body()
                self.done.touch()
                while True:
                    signal.pause()
            finally:
                os._exit(1)
        test.addCleanup(self.kill)

    def kill(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = None


class Folders(harness.FaultTest):
    def setUp(self):
        super().setUp()
        self.place = self.folder / "place"
        self.source = self.folder / "source"
        (self.source / "inner").mkdir(parents=True)
        (self.source / "inner" / "file").write_bytes(os.urandom((2 << 20) + 5))
        self.target = self.place / "step-00000001"

    def hidden(self):
        return [path for path in self.place.iterdir() if path.name.startswith(".")]

    def begin_to_copy(self, target):
        """A process that has copied half of the source."""
        begun = self.folder / "begun"

        def half(name, offset):
            if offset:
                begun.touch()
                time.sleep(3600)
            return folders.read(self.source, name, offset)

        child = Child(self, lambda: folders.receive_whole(folders.listing(self.source), half, target))
        harness.wait_until(begun.exists, "half a copy")
        return child

    def test_a_killed_copy_leaves_the_old_one_and_is_cleared_away(self):
        folders.copy_whole(self.source, self.target)
        before = (self.target / "inner" / "file").read_bytes()
        (self.source / "inner" / "file").write_bytes(os.urandom(3 << 20))
        child = self.begin_to_copy(self.target)
        at_work = self.hidden()
        self.assertEqual(len(at_work), 1)
        folders.copy_whole(self.source, self.place / "step-00000002")
        self.assertEqual(self.hidden(), at_work, "a living process's work is not cleared away")
        child.kill()
        self.assertEqual((self.target / "inner" / "file").read_bytes(), before)
        folders.copy_whole(self.source, self.place / "step-00000003")
        self.assertEqual(self.hidden(), [])

    def test_a_folder_that_is_replaced_is_never_missing(self):
        folders.copy_whole(self.source, self.target)
        (self.source / "inner" / "file").write_bytes(b"small")

        def replace_often():
            for _ in range(100):
                folders.copy_whole(self.source, self.target)

        child = Child(self, replace_often)
        end = time.monotonic() + harness.PATIENCE_S
        while not child.done.exists():
            self.assertTrue(self.target.is_dir(), "it was missing for a moment")
            self.assertLess(time.monotonic(), end)
        self.assertEqual((self.target / "inner" / "file").read_bytes(), b"small")

    def test_a_removed_folder_is_removed_as_a_whole(self):
        folders.copy_whole(self.source, self.target)
        folders.remove_whole(self.target)
        self.assertEqual(list(self.place.iterdir()), [])

    def test_scratch_folders_go_with_their_process(self):
        with mock.patch.object(tempfile, "tempdir", str(self.temporary)):
            child = Child(self, lambda: setattr(self, "kept", folders.scratch("bimetal-test")))
            harness.wait_until(child.done.exists, "a scratch folder")
            theirs, = self.temporary.iterdir()
            with folders.scratch("bimetal-test") as mine:
                self.assertEqual(mine.stat().st_mode & 0o777, 0o700)
                self.assertTrue(theirs.exists(), "its process lives")
                child.kill()
                with folders.scratch("bimetal-test"):
                    self.assertFalse(theirs.exists())
                    self.assertTrue(mine.exists())
            self.assertEqual(list(self.temporary.iterdir()), [])

    def test_a_forked_process_leaves_its_parents_scratch_folder_alone(self):
        with mock.patch.object(tempfile, "tempdir", str(self.temporary)):
            with folders.scratch("bimetal-test") as mine:
                made = folders.scratch("bimetal-test")
                child = Child(self, made.remove)
                harness.wait_until(child.done.exists, "its end")
                self.assertTrue(made.path.exists())
                made.remove()
                self.assertTrue(mine.exists())


class Saved(harness.FaultTest):
    def trained(self, place, steps, every):
        """A folder of checkpoints, as the program leaves it."""
        self.job = self.write_job(train__dtype="float64", train__global_batch=16)  # an epoch has 64 steps
        self.train(self.job, "--set", f"checkpoint.dir={place}", "--set", f"train.steps={steps}", "--set",
                   f"checkpoint.every_steps={every}", "--set", "checkpoint.keep=9", workers=("cpu:threads=1",)).done()
        return place

    def set_clock_back(self, place):
        """As if each had been saved a day before the one before it."""
        for number, path in enumerate(sorted(path for path in place.iterdir() if path.is_dir())):
            for inner in (*path.iterdir(), path):
                os.utime(inner, (time.time() - number * DAY_S,) * 2)

    def names(self, place):
        return sorted(path.name for path in place.iterdir() if path.is_dir())

    def test_a_clock_that_was_set_back_does_not_make_the_newest_the_oldest(self):
        place = self.trained(self.folder / "a", 30, 10)
        self.set_clock_back(place)
        self.assertEqual(saved.newest(place).name, "step-00000030")
        saved.prune(saved.of_job(place), 2)
        self.assertEqual(self.names(place), ["step-00000020", "step-00000030"])
        loops = self.folder / "loops"
        for number in (9, 10, 11):
            (loops / saved.loop_name(number)).mkdir(parents=True)
        self.set_clock_back(loops)
        self.assertEqual(saved.newest(loops).name, "checkpoint_000011")
        saved.prune(saved.of_loop(loops), 1)
        self.assertEqual(self.names(loops), ["checkpoint_000011"])

    def test_what_comes_from_elsewhere_is_the_newest_here(self):
        """Also for the program, which believes no manifest that has been changed without its checksum."""
        here, there = self.trained(self.folder / "a", 30, 10), self.trained(self.folder / "b", 7, 7)
        source, target = there / "step-00000007", here / "step-00000007"
        places = [place for place, _ in saved.of_job(here)]
        self.assertEqual(places, [3, 2, 1])

        def adopt(arrived):
            saved.adopt(arrived, 4)

        folders.receive_whole(folders.listing(source), lambda *piece: folders.read(source, *piece), target, adopt)
        self.assertEqual(saved.newest(here), target)
        self.train(self.job, "--resume", here, "--set", f"checkpoint.dir={here}", "--set", "train.steps=9",
                   workers=("cpu:threads=1",)).done()
        self.assertEqual(saved.newest(here).name, "step-00000009", "it has gone on from another one")
        self.assertEqual(saved.sequence(here / "step-00000009"), 5)

    def test_what_was_changed_on_its_way_is_not_kept(self):
        here, there = self.folder / "a", self.trained(self.folder / "b", 7, 7)
        source = there / "step-00000007"
        for name in ("model.safetensors", "state.json"):
            def flipped(file, offset, name=name):
                piece = folders.read(source, file, offset)
                return piece[:-20] + bytes([piece[-20] ^ 1]) + piece[-19:] if file == name else piece

            with self.assertRaises(ValueError):
                folders.receive_whole(folders.listing(source), flipped, here / source.name,
                                      lambda arrived: saved.adopt(arrived, 1))
            self.assertEqual(list(here.iterdir()), [])

    def test_what_cannot_be_told_is_left_alone(self):
        place = self.trained(self.folder / "a", 20, 10)
        (place / "step-00000020" / "state.json").write_text("{}")
        (place / "step-00000099").mkdir()
        self.assertEqual(saved.newest(place).name, "step-00000010")
        saved.prune(saved.of_job(place), 1)
        self.assertEqual(self.names(place), ["step-00000010", "step-00000020", "step-00000099"])
        (place / saved.loop_name(3)).mkdir()
        with self.assertRaisesRegex(bimetal.Error, "step-00000010.*checkpoint_000003"):
            saved.newest(place)
        shutil.rmtree(place)
        self.assertIsNone(saved.newest(place))


if __name__ == "__main__":
    harness.main()
