"""Users' values of ``workers=`` and ``target``, and the messages when they are wrong. Needs no cluster."""

import contextlib
import importlib.util
import io
import json
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

import clusters

if not clusters.WHY_NOT:
    import bimetal
    import bimetal.ray
    from bimetal.ray import token_file
    from bimetal.ray.cluster import Node, label_matches, what_fits, what_is_missing, with_gpus
    from bimetal.ray.result import Failure, root_cause
    from bimetal.ray.cluster import parse
    from bimetal.ray.target import JobFile
    from bimetal.runs import folders


def node(name, **resources):
    return Node(name, name, "10.0.0.1", {key: float(value) for key, value in resources.items()}, {"os": "Linux"})


@unittest.skipIf(clusters.WHY_NOT, clusters.WHY_NOT)
class Requests(unittest.TestCase):
    def test_what_a_worker_runs_on(self):
        for asked, worker, resources in (
                ({"cuda": 1}, "cuda:0", {"cuda": 1}), ("mps", "mps", {"mps": 1}), ({"cpu": 1}, "cpu", {"cpu": 1}),
                ({"num_cpus": 2}, "cpu:threads=2", {"CPU": 2}),
                ({"GPU": 1, "num_cpus": 4}, "gpu", {"GPU": 1, "CPU": 4}),
                ({"big": 1}, "cpu", {"big": 1}), ({"labels": {"os": "Linux"}}, "cpu:threads=1", {"CPU": 1}),
                ({"num_cpus": 1, "worker": "cpu:threads=1,speed=0.5"}, "cpu:threads=1,speed=0.5", {"CPU": 1})):
            request = parse(asked)
            self.assertEqual((request.worker, request.resources), (worker, resources), asked)

    def test_requests_that_make_no_sense(self):
        for asked, word in (({"cuda": 2}, "drives one device"), ({"num_cpus": 0}, "above 0"),
                            ({"num_cpus": "two"}, "above 0"), ({"fast": True}, "above 0")):
            with self.assertRaisesRegex(bimetal.Error, word) as failed:
                parse(asked)
            self.assertEqual(failed.exception.code, "invalid_argument")
        with self.assertRaisesRegex(bimetal.Error, "no workers"):
            bimetal.ray.Trainer(print, [])

    def test_what_a_job_file_says_beside_the_program(self):
        job = clusters.TEMPORARY / "kept.toml"
        for text, changed, folder in (
                ("", {}, "runs/kept"), ('dir = "there"', {}, "there"), ('dir = ""', {}, None),
                ("", {"checkpoint.dir": ""}, None), ('dir = "there"', {"checkpoint.dir": "here"}, "here")):
            job.write_text(f'[model]\nname = "mlp"\n[checkpoint]\n{text}\n')
            found = JobFile.read(job, changed).storage()
            self.assertEqual(found, pathlib.Path.cwd() / folder if folder else None, (text, changed))
        with self.assertRaisesRegex(bimetal.Error, "elastic.min_workers=3: workers= has 2"):
            bimetal.ray.Trainer(job, ["a", "b"], settings={"elastic.min_workers": 3})

    def test_nodes_take_tags_and_labels_of_ones_own(self):
        from bimetal.ray.__main__ import _arguments, _offered

        arguments = _arguments().parse_args(["join", "10.0.0.1", "--resources", '{"fast": 1}', "--labels", "room=attic,rack=2"])
        offered = _offered(arguments)
        resources = next(word for word in offered if word.startswith("--resources="))
        self.assertEqual({"fast": 1, "cpu": 1}.items() - json.loads(resources.partition("=")[2]).items(), set())
        labels = next(word for word in offered if word.startswith("--labels="))
        self.assertRegex(labels, "^--labels=os=.*,arch=.*,room=attic,rack=2$")
        for wrong in (["--resources", "fast"], ["--resources", '{"fast": 0}'], ["--resources", '{"cuda": 2}'],
                      ["--labels", "attic"]):
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                _arguments().parse_args(["up", *wrong])

    def test_a_number_of_workers_is_no_list_of_them(self):
        with self.assertRaisesRegex(bimetal.Error, "workers=2 says how many.*\\* 2") as failed:
            bimetal.ray.Trainer(print, workers=2)
        self.assertEqual(failed.exception.code, "invalid_argument")

    def test_checkpoints_are_told_by_the_driver_alone(self):
        from bimetal.ray.target import JobFile

        job = JobFile("job.toml", "", [], pathlib.Path("."), _keeps=True)
        for text in ("checkpoint /tmp/x/step-00000012",
                     "checkpoint /tmp/x/step-00000012; go on with --resume /tmp/x/step-00000012"):
            self.assertIsNone(job.event(0, 0, {"kind": "line", "text": text}))
        said = job.event(0, 0, {"kind": "line", "text": "checkpoint of yours: nowhere"})
        self.assertEqual(said.text, "checkpoint of yours: nowhere")

    def test_arguments_that_do_not_go_together(self):
        with self.assertRaisesRegex(bimetal.Error, "pass config="):
            bimetal.ray.Trainer(print, ["cpu"], settings={"train.epochs": 1})
        with self.assertRaisesRegex(bimetal.Error, "pass settings="):
            bimetal.ray.Trainer(clusters.job(), ["cpu"], config={"lr": 1})
        with self.assertRaisesRegex(bimetal.Error, "cannot read the job file nowhere.toml"):
            bimetal.ray.Trainer("nowhere.toml", ["cpu"])
        with self.assertRaisesRegex(bimetal.Error, "min_workers=3"):
            bimetal.ray.Trainer(print, ["cpu", "cpu"], min_workers=3)
        with self.assertRaisesRegex(bimetal.Error, "there is no checkpoint nowhere"):
            bimetal.ray.Trainer(print, ["cpu"], resume="nowhere")
        for call in (lambda: bimetal.ray.report({}), bimetal.ray.get_checkpoint):
            with self.assertRaisesRegex(bimetal.Error, "for the train loop"):
                call()

    def test_what_fits_where(self):
        nodes = [node("pc", CPU=4, GPU=1, cuda=1), node("mac", CPU=8, mps=1)]
        requests = with_gpus([parse("cuda"), parse("mps"), parse({"num_cpus": 8}), parse("cuda")], nodes)
        self.assertEqual(requests[0].resources, {"cuda": 1, "GPU": 1})
        self.assertEqual(what_fits(requests, nodes), [0, 1, 2])
        self.assertEqual(what_is_missing(requests[:3], nodes), "")
        self.assertIn("2 × 'cuda' are asked for in all, of 1", what_is_missing(requests, nodes))
        self.assertIn("no node offers all of that at once", what_is_missing([parse({"cuda": 1, "mps": 1})], nodes))
        twins = [Node(f"{digit}" * 56, "pc", "10.0.0.1", {"CPU": 4.0}, {}) for digit in "ab"]
        missing = what_is_missing([parse("xpu")], [*twins, nodes[1]])
        self.assertIn("\n  10.0.0.1 (pc, aaaaaa): CPU 4\n  10.0.0.1 (pc, bbbbbb): CPU 4\n  10.0.0.1 (mac): ", missing)
        self.assertIn("the others take up its place", what_is_missing([parse({"num_cpus": 5}), parse({"num_cpus": 5})],
                                                                      nodes))

    def test_ranks_of_one_machine_at_several_addresses_share_its_cores(self):
        from bimetal.ray.worker import Place

        place = Place(1, 2, 1, 2, ("cpu", "cpu:speed=0.5"), "10.0.0.1", 7, "10.0.0.2")
        told = place.apart(8)
        self.assertEqual((told.rank, told.local_rank, told.local_world_size, told.workers),
                         (1, 0, 1, ("cpu:speed=0.5,threads=4",)))
        for other in (Place(1, 2, 1, 2, ("cpu", "cpu"), "127.0.0.1", 7, None),
                      Place(1, 3, 1, 2, ("cpu", "cpu"), "10.0.0.1", 7, "10.0.0.2")):
            self.assertIs(other.apart(8), other)
        newcomer = Place(1, 2, 1, 2, ("cpu", "cpu"), "127.0.0.1", 7, None, door="127.0.0.1:7").apart(8)
        self.assertEqual((newcomer.local_rank, newcomer.local_world_size, newcomer.workers), (0, 1, ("cpu:threads=4",)))
        self.assertEqual(newcomer.variables("")["BIMETAL_DOOR"], "127.0.0.1:7")

    def test_labels(self):
        for value, rule, fits in (("Linux", "Linux", True), ("Linux", "!Linux", False), (None, "!Linux", True),
                                  ("a", "in(a, b)", True), ("c", "in(a,b)", False), ("c", "!in(a,b)", True)):
            self.assertIs(label_matches(value, rule), fits, (value, rule))

    def test_the_first_cause_is_told(self):
        lost = Failure(0, "lost", "peer_lost", 1)
        memory = Failure(1, "no memory", "out_of_memory")
        gone = Failure(2, "gone", "peer_lost", 2, died=True)
        self.assertIs(root_cause([lost, memory]), memory)
        self.assertIs(root_cause([lost, memory, gone]), gone)

    def test_what_an_elastic_job_survives(self):
        from bimetal.ray.watch import Losses

        gone = [Failure(rank, "gone", "peer_lost", rank, died=True) for rank in range(2)]
        own = Failure(1, "ValueError", "aborted", own=True)
        for elastic, come, failures, fatal in ((False, (), gone[:1], True), (True, (), gone[:1], False), (True, (), gone, True),
                                               (True, (), [own], True), (True, (1,), [own], False), (True, (1,), [gone[0], own], True)):
            losses = Losses(2, 0)
            losses.elastic = elastic
            for rank in come:
                losses.come(rank)
            for failure in failures:
                losses.add(failure)
            self.assertIs(losses.fatal(), fatal, (elastic, come, failures))

    def test_tokens_are_private_and_kept(self):
        with tempfile.TemporaryDirectory() as place:
            path = pathlib.Path(place, "inner", "token")
            self.assertIn("scp", token_file.complaint(path))
            self.assertTrue(token_file.make(path))
            self.assertFalse(token_file.make(path))
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
            self.assertIsNone(token_file.complaint(path))
            path.chmod(0o644)
            self.assertIn("chmod 600", token_file.complaint(path))
            path.chmod(0o600)
            for encoding in ("utf-8-sig", "utf-16"):  # as Windows' programs write, and Ray does not read
                path.write_text("0123456789abcdef\n", encoding=encoding)
                self.assertIn("byte order mark", token_file.complaint(path))
            path.write_text("\n")
            self.assertIn("is empty", token_file.complaint(path))


class WithoutRay(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not installed")
    def test_the_message_says_what_to_type(self):
        program = ("import importlib.util as u, sys; f = u.find_spec; "
                   "u.find_spec = lambda name, *a: None if name == 'ray' else f(name, *a); import bimetal.ray")
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn('bimetal.ray needs Ray, which is not installed here: pip install "ray>=2.52"', run.stderr)


def tearDownModule():
    clusters.remove_temporary()


if __name__ == "__main__":
    unittest.main(verbosity=2)
