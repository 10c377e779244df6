"""Predictions: served from checkpoints and by a job that trains, asked by many, broken in the usual ways."""

import base64
import gzip
import json
import os
import re
import shutil
import signal
import socket
import struct
import time
import urllib.error
import urllib.request
import zlib

import harness
from harness import TwoMachines, wait_until


class ServingTest(TwoMachines):
    def trained(self, **settings):
        """A checkpoint of a short training, in double precision."""
        job_file = self.write_job(**{"train__epochs": 2, "train__dtype": "float64", "train__learning_rate": 0.01, **settings})
        self.train(job_file, workers=("cpu:threads=1",)).done()
        return job_file

    def serve(self, *arguments, worker="cpu:threads=1", **options):
        server = self.start("serve", self.checkpoints, "--listen", "127.0.0.1:0", "--worker", worker, *arguments, **options)
        server.wait_for_output("serving")
        server.address = re.search(r" at (\S+);", server.out)[1]
        return server

    @property
    def images(self):
        return self.folder / "data" / "t10k-images-idx3-ubyte"

    @property
    def labels(self):
        return self.folder / "data" / "t10k-labels-idx1-ubyte"

    def predict(self, address, *arguments, images=None, **options):
        return self.start("predict", address, images or self.images, *arguments, **options).wait()

    def said(self, address, *arguments, **options):
        job = self.predict(address, "--json", *arguments, **options)
        self.assertEqual(job.status, 0, f"{job.out}\n{job.err}")
        return json.loads(job.out)

    def end(self, server):
        server.end()
        self.assert_nothing_left()


def grey_png(pixels, height, width):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    lines = b"".join(b"\0" + pixels[width * row:width * (row + 1)] for row in range(height))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b""))


class Serving(ServingTest):
    """`bimetal serve`."""

    def test_a_file_of_one_image_is_answered(self):
        self.trained(train__epochs=1)
        server = self.serve()
        seventh = self.images.read_bytes()[16 + 7 * 784:][:784]
        cat = self.folder / "cat"
        cat.mkdir()
        (cat / "1.PNG").write_bytes(grey_png(seventh, 28, 28))
        said, expected = self.said(server.address, images=cat / "1.PNG"), self.said(server.address, "--first", 7, "--count", 1)
        self.assertEqual((said["classes"], said["images"]), (expected["classes"], 1))
        self.assertAlmostEqual(said["probabilities"][0], expected["probabilities"][0], places=12)
        self.assert_one_message(self.predict(server.address, "--labels", self.labels, images=cat / "1.PNG"),
                                harness.INVALID_ARGUMENT, "is one image", "--labels")
        self.end(server)

    def test_the_answers_are_those_of_the_checkpoint(self):
        job_file = self.trained()
        report = self.folder / "evaluation.json"
        self.start("evaluate", job_file, "--checkpoint", self.checkpoints, "--worker", "cpu:threads=1", "--report", report).done()
        figures = json.loads(report.read_text())["ensemble"]
        server = self.serve("--max-batch", 48)
        said = self.said(server.address, "--labels", self.labels)
        self.assertEqual(said["accuracy"], figures["test_accuracy"])
        self.assertAlmostEqual(said["loss"], figures["test_loss"], delta=1e-12)
        self.assertEqual(said["step"], self.saved_steps()[-1])
        self.assertEqual(said["images"], 128)

        packed = self.folder / "images.gz"
        packed.write_bytes(gzip.compress(self.images.read_bytes()))
        some = self.said(server.address, "--first", 7, "--count", 5, images=packed)
        self.assertEqual(some["classes"], said["classes"][7:12])
        self.assertEqual(len(some["probabilities"]), 5)
        lines = self.predict(server.address, "--count", 3, "--output", self.folder / "said.safetensors")
        self.assertRegex(lines.out, r"image  class  probability\n +0 +\d")
        self.assertTrue((self.folder / "said.safetensors").exists())
        self.end(server)
        self.assertIn("answered 3 requests of 136 images", server.out)

    def test_by_http_the_answers_are_the_same(self):
        self.trained()
        server = self.serve("--http", "127.0.0.1:0")
        at = re.search(r"by HTTP at (http://\S+)/v1/predict", server.out)[1]
        with urllib.request.urlopen(f"{at}/health", timeout=30) as health:
            self.assertEqual(json.load(health)["status"], "ok")
        pixels = self.images.read_bytes()[16:16 + 5 * 28 * 28]
        rows = [list(pixels[i:i + 28]) for i in range(0, len(pixels), 28)]
        lists = [rows[i:i + 28] for i in range(0, len(rows), 28)]
        said = self.said(server.address, "--count", 5)
        for asked in ({"images": lists}, {"images_base64": base64.b64encode(pixels).decode()}):
            answer = self.by_http(f"{at}/v1/predict", asked)
            self.assertEqual([one["class"] for one in answer["predictions"]], said["classes"])
            for one, probability in zip(answer["predictions"], said["probabilities"]):
                self.assertAlmostEqual(one["probability"], probability, delta=1e-12)
            self.assertEqual(answer["step"], self.saved_steps()[-1])
        with self.assertRaises(urllib.error.HTTPError) as refused:
            self.by_http(f"{at}/v1/predict", {"images": [[1]]})
        self.assertEqual(refused.exception.code, 400)
        self.assertIn("another length", json.load(refused.exception)["error"])
        self.end(server)

    def by_http(self, address, asked):
        request = urllib.request.Request(address, json.dumps(asked).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def test_a_train_loops_checkpoints_are_served_where_they_hold_such_ones(self):
        self.trained()
        loop = self.folder / "loop"
        (loop / "checkpoint_000001").mkdir(parents=True)
        (loop / "checkpoint_000001" / "weights.pt").write_bytes(b"?")
        refused = self.start("serve", loop).wait()
        self.assert_one_message(refused, harness.INVALID_ARGUMENT, "checkpoints of a train loop (checkpoint_000001, with weights.pt)")
        shutil.move(self.checkpoints, loop / "checkpoint_000002")
        self.checkpoints = loop
        server = self.serve()
        self.assertIn("checkpoint_000002/step-", server.out)
        self.end(server)

    def test_a_newer_checkpoint_answers_without_a_stop(self):
        job_file = self.trained()
        server = self.serve("--refresh", 0.1)
        before = self.said(server.address)["step"]
        self.train(job_file, "--resume", self.checkpoints, "--set", "train.epochs=4", workers=("cpu:threads=1",)).done()
        newest = self.saved_steps()[-1]
        self.assertGreater(newest, before)
        server.wait_for_output(f"step-{newest:08} answers now")
        self.assertEqual(self.said(server.address)["step"], newest)
        # A damaged one is passed over, and so is an empty folder.
        broken = self.checkpoints / f"step-{newest + 1:08}"
        shutil.copytree(self.checkpoints / f"step-{newest:08}", broken)
        (broken / "model.safetensors").write_bytes(b"nothing")
        time.sleep(0.5)
        self.assertEqual(self.said(server.address)["step"], newest)
        shutil.rmtree(self.checkpoints)
        time.sleep(0.5)
        self.assertEqual(self.said(server.address)["step"], newest)
        self.end(server)

    def test_what_is_refused_at_the_command_line(self):
        self.trained()
        for arguments, status, part in (
                ((self.folder / "none",), harness.INVALID_ARGUMENT, "no checkpoint"),
                ((self.checkpoints, "--listen", "0.0.0.0:0"), harness.UNAUTHORIZED, "token"),
                ((self.checkpoints, "--worker", "cuda:7"), harness.UNSUPPORTED, "cuda"),
                ((self.checkpoints, "--listen", "nowhere"), harness.INVALID_ARGUMENT, "nowhere")):
            self.assert_one_message(self.start("serve", *arguments).wait(), status, part)
        server = self.serve()
        for arguments, part in (
                (("--count", 129), "has 128 entries"), (("--first", 128), "has 128 entries"),
                (("--labels", self.images), "does not hold one label for each"),
                ):
            self.assert_one_message(self.predict(server.address, *arguments), harness.INVALID_ARGUMENT, part)
        self.assert_one_message(self.predict(server.address, images=self.labels), harness.INVALID_ARGUMENT, "takes images of 1x28x28")
        small = self.folder / "small.idx"
        harness.write_idx(small, (2, 14, 14), bytes(2 * 14 * 14))
        self.assert_one_message(self.predict(server.address, images=small), harness.INVALID_ARGUMENT, "2x14x14", "1x28x28")
        self.end(server)

    def test_only_who_knows_the_token_is_answered(self):
        self.trained()
        server = self.serve("--token-file", self.token)
        other = self.folder / "other"
        self.start("token", other).wait()
        for arguments in ((), ("--token-file", other)):
            self.assert_one_message(self.predict(server.address, *arguments), harness.UNAUTHORIZED, "token")
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        self.assertEqual(self.said(server.address, "--token-file", self.token)["images"], 128)
        self.assertNotIn(self.token.read_text().strip(), server.out + server.err)
        self.end(server)

    @harness.waits
    def test_killed_clients_and_a_killed_server(self):
        self.trained()
        server = self.serve("--max-batch", 4, worker="cpu:threads=1,speed=0.01", environment={"BIMETAL_DEBUG": "info"})

        def client_comes():
            before = server.err.count("has come from")
            client = self.start("predict", server.address, self.folder / "data" / "train-images-idx3-ubyte", "--timeout", 60)
            wait_until(lambda: server.err.count("has come from") > before, "a client", server)
            return client

        for _ in range(3):
            client = client_comes()
            client.process.kill()
            client.process.wait()
        self.assertEqual(self.said(server.address, "--count", 2)["images"], 2)
        client = client_comes()
        server.process.kill()
        server.process.wait()
        self.assert_one_message(client, harness.PEER_LOST, "the server of predictions at", "is gone")
        self.assert_one_message(self.predict(server.address, "--timeout", 1), harness.TIMEOUT, "could not be reached")
        gone = self.predict(server.address, "--timeout", 600)
        self.assertEqual(gone.status, harness.TIMEOUT)
        self.assertIn("does not answer yet: waiting for it, 13 s at most", gone.err)


class ServedByTheJob(ServingTest):
    """Parameter servers answer with the parameters of the moment."""

    def listening(self, *arguments, workers=("cpu:threads=1",), **settings):
        job_file = self.write_job(parallel__mode="server", **settings)
        job = self.train(job_file, "--listen", "127.0.0.1:0", "--token-file", self.token, *arguments, workers=workers)
        job.wait_for_output("bimetal predict")
        job.address = re.search(r"bimetal predict (\S+)", job.out)[1]
        return job

    def ask(self, job, *arguments):
        return self.said(job.address, "--token-file", self.token, *arguments)

    def test_the_answers_follow_the_training_which_takes_no_notice(self):
        settings = {"train__epochs": 40, "train__dtype": "float64", "train__learning_rate": 0.01, "servers__count": 2,
                    "train__evaluate": True, "checkpoint__dir": ""}
        reports = []
        for asked in (False, True):
            job = self.listening("--report", self.folder / "run.json", workers=("cpu:threads=1,speed=0.3",), **settings)
            if asked:
                job.wait_for_output("step ")
                steps = []
                while job.process.poll() is None and len(steps) < 5:
                    said = self.predict(job.address, "--token-file", self.token, "--labels", self.labels, "--json")
                    if said.status == 0:
                        answer = json.loads(said.out)
                        self.assertLessEqual(answer["step"], answer["newest_step"])
                        self.assertEqual(answer["images"], 128)
                        steps.append(answer["step"])
                    else:  # the job has just ended
                        self.assertIn(said.status, (harness.TIMEOUT, harness.PEER_LOST, harness.ABORTED), said.err)
                self.assertGreater(len(steps), 2, job.out)
                self.assertEqual(steps, sorted(steps))
                self.assertGreater(steps[-1], steps[0])
            job.done()
            self.assertNotIn("refused", job.out + job.err)
            reports.append(json.loads((self.folder / "run.json").read_text()))
        self.assertEqual(reports[0]["steps"], reports[1]["steps"])
        self.assertAlmostEqual(reports[0]["train_loss"], reports[1]["train_loss"], delta=1e-12)
        self.assertEqual(reports[0]["test_accuracy"], reports[1]["test_accuracy"])

    def test_what_it_says_is_what_its_checkpoint_says(self):
        job = self.listening(servers__count=3, train__dtype="float64", checkpoint__every_steps=0,
                             train__learning_rate=0.01)
        wait_until(lambda: self.predict(job.address, "--token-file", self.token).status == 0, "an answer", job)
        # The only worker stands still, and with it the parameters; the servers do not.
        worker = self.ranks_of(job)[0]
        os.kill(worker, signal.SIGSTOP)
        job.wait_for_output("says nothing any more")
        live = self.ask(job, "--labels", self.labels)
        self.assertEqual(live["step"], live["newest_step"])
        job.interrupt()
        os.kill(worker, signal.SIGCONT)
        job.done(harness.INTERRUPTED)
        server = self.serve()
        saved = self.said(server.address, "--labels", self.labels)
        if saved["step"] == live["step"]:  # a lease at hand may still have been applied
            self.assertAlmostEqual(saved["loss"], live["loss"], delta=1e-12)
        self.assertLessEqual(saved["step"] - live["step"], 1)
        self.end(server)

    def test_strangers_and_killed_clients_do_not_disturb_it(self):
        job = self.listening(checkpoint__dir="", servers__consistency="bounded")
        job.wait_for_output("step ")
        self.assert_one_message(self.predict(job.address), harness.UNAUTHORIZED, "token")
        images = self.folder / "data" / "train-images-idx3-ubyte"
        for _ in range(5):
            client = self.start("predict", job.address, images, "--token-file", self.token)
            time.sleep(0.1)
            client.process.kill()
            client.process.wait()
        step = self.ask(job)["step"]
        wait_until(lambda: self.ask(job)["step"] > step + 20, "steps", job)
        self.assertIsNone(job.process.poll())
        job.end()

    def test_who_takes_over_answers_too(self):
        job = self.listening(servers__count=2, servers__replicas=2, checkpoint__dir="")
        job.wait_for_output("step ")
        before = self.ask(job)["step"]
        os.kill(self.ranks_of(job)[1], signal.SIGKILL)  # the worker comes first, then server 0
        job.wait_for_output("leads the job from now on")
        wait_until(lambda: self.predict(job.address, "--token-file", self.token).status == 0, "an answer", job)
        self.assertGreaterEqual(self.ask(job)["step"], before)
        job.end()

    def test_a_job_without_servers_says_so(self):
        job_file = self.write_job(checkpoint__dir="")
        job = self.host(job_file, world_size=2)
        self.assert_one_message(self.predict(job.address, "--token-file", self.token), harness.UNSUPPORTED,
                                "serves no predictions", "bimetal serve")
        job.interrupt()
        job.wait()


if __name__ == "__main__":
    harness.main()
