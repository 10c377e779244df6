"""A running job is watched by all that can: bimetal top, Prometheus' format, TensorBoard's own reader; and bothered."""

import contextlib
import http.server
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request

import harness
from harness import FaultTest

UNEQUAL = ("cpu:threads=1", "cpu:threads=1,speed=0.5")
BATCH = 64


class Monitor(FaultTest):
    # ---- the job ---------------------------------------------------------------------------------

    def watched(self, *arguments, address="127.0.0.1:0", workers=UNEQUAL, **settings):
        job = self.train(self.write_job(train__global_batch=BATCH, **settings), "--monitor", address, *arguments,
                         workers=workers)
        job.wait_for_output("monitor at ")
        job.address = re.search(r"monitor at (\S+);", job.out)[1]
        return job

    def get(self, job, path, token=None):
        request = urllib.request.Request(f"http://{job.address}{path}")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=harness.PATIENCE_S) as answer:
            return answer.headers, answer.read().decode()

    def status(self, job):
        return json.loads(self.get(job, "/status")[1])

    def wait_for_step(self, job, step):
        harness.wait_until(lambda: job.process.poll() is not None or self.status(job)["step"] >= step,
                           f"step {step}", job)
        self.assertIsNone(job.process.poll(), f"the job ended early:\n{job.out}\n{job.err}")

    def stop(self, job):
        job.end()
        self.assert_port_is_free(job.address)
        self.assert_nothing_left()

    def assert_port_is_free(self, address):
        name, port = address.rsplit(":", 1)
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection((name, int(port)), timeout=harness.PATIENCE_S)

    def top(self, job, *arguments, **options):
        return self.start("top", job.address, *arguments, **options)

    def metrics(self, job):
        """Every sample, by name and labels."""
        headers, text = self.get(job, "/metrics")
        self.assertEqual(headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
        samples = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, labels, value = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line).groups()
                rank = re.search(r'rank="(\d+)"', labels or "")
                samples[name, int(rank[1]) if rank else None] = float(value)
        return samples

    # ---- what is shown ---------------------------------------------------------------------------

    def test_all_show_the_same_job(self):
        # Shares by speed could be 0 for a while, on a machine that is busy with something else.
        job = self.watched("--set", "parallel.balance=[3, 1]")
        self.wait_for_step(job, 50)

        status = self.status(job)
        self.assertEqual(status["phase"], "training")
        self.assertEqual([worker["rank"] for worker in status["workers"]], [0, 1])
        self.assertEqual([worker["share"] for worker in status["workers"]], [BATCH * 3 // 4, BATCH // 4])
        self.assertTrue(all(worker["host"] == socket.gethostname() and worker["device"].startswith("cpu")
                            for worker in status["workers"]), status)
        self.assertGreater(status["samples_per_s"], 0)
        for worker in status["workers"]:
            self.assertGreater(worker["samples_per_s"], 0)
            self.assertTrue(0 <= worker["wait_part"] <= 1, worker)
            self.assertGreaterEqual(worker["bytes_per_s"], 0)
            self.assertIsNone(worker["staleness"])
        self.assertEqual(sum(worker["samples"] for worker in status["workers"]) % 32, 0)  # 1024 an epoch

        before, first = self.metrics(job), time.monotonic()
        self.wait_for_step(job, before["bimetal_steps_total", None] + 20)
        after = self.metrics(job)
        for name in ("bimetal_steps_total", "bimetal_training_seconds_total"):
            self.assertGreater(after[name, None], before[name, None])
        trained = lambda samples: sum(samples["bimetal_worker_samples_total", rank] for rank in (0, 1))
        self.assertEqual(trained(after) - trained(before),
                         BATCH * (after["bimetal_steps_total", None] - before["bimetal_steps_total", None]))
        self.assertLessEqual(after["bimetal_training_seconds_total", None] - before["bimetal_training_seconds_total", None],
                             time.monotonic() - first + 1)
        self.assertEqual(after["bimetal_worker_share_samples", 0] + after["bimetal_worker_share_samples", 1], BATCH)
        self.assertGreater(after["bimetal_worker_compute_seconds_total", 1], 0)
        self.assertGreater(after["bimetal_loss", None], 0)

        once = self.top(job, "--once").wait()
        self.assertEqual((once.status, once.err), (0, ""))
        self.assertRegex(once.out, r"(?m)^training  epoch \d+/1000000  step \d+/\d+  loss ")
        self.assertRegex(once.out, r"(?m)^\d+ images/s  efficiency \d+ %$")
        self.assertRegex(once.out, r"(?m)^0     cpu\S* on \S+ +\d+ ")
        self.assertNotIn("staleness", once.out)
        self.assertNotIn("\x1b", once.out)

        as_json = self.top(job, "--once", "--json").done()
        shown = json.loads(as_json.out)
        self.assertEqual(set(shown), set(status))
        self.assertGreater(shown["step"], status["step"])
        self.stop(job)

    def test_watching_ends_with_the_job(self):
        job = self.watched()
        self.wait_for_step(job, 5)
        top = self.top(job, "--interval", 0.1)
        lines = self.top(job, "--interval", 0.1, "--json")
        harness.wait_until(lambda: top.out.count("images/s  efficiency") >= 3 and lines.out.count("\n") >= 3, "figures",
                           top)
        left = self.top(job, "--interval", 0.1)
        harness.wait_until(lambda: "images/s" in left.out, "figures", left)
        left.end()
        job.end()
        top.done()
        self.assertIn(f"the job has ended, or its machine is gone: nothing answers at {job.address} any more", top.out)
        lines.done()
        self.assertIn("the job has ended", lines.err)
        steps = [json.loads(line)["step"] for line in lines.out.splitlines()]
        self.assertEqual(steps, sorted(steps))
        self.assert_one_message(self.top(job, "--once"), harness.PEER_LOST, job.address, "--monitor")

    def test_the_terminal_is_given_back(self):
        job = self.watched()
        self.wait_for_step(job, 5)
        for colours in (True, False):
            environment = {**self.environment, "TERM": "xterm"}
            if colours:
                environment.pop("NO_COLOR")
            controller, terminal = pty.openpty()
            top = subprocess.Popen([harness.BIMETAL, "top", job.address, "--interval", "0.1"], stdin=terminal,
                                   stdout=terminal, stderr=terminal, env=environment, start_new_session=True)
            os.close(terminal)
            seen = self.read_terminal(controller, lambda text: text.count("\x1b[H") >= 3)
            self.assertIn("\x1b[?1049h", seen)
            top.send_signal(signal.SIGINT)
            seen += self.read_terminal(controller, lambda text: False)  # until it ends
            self.assertEqual(top.wait(harness.PATIENCE_S), harness.INTERRUPTED)
            os.close(controller)
            self.assertEqual(seen.count("\x1b[?1049h"), seen.count("\x1b[?1049l"))
            last_screen, after = seen.rsplit("\x1b[?1049l", 1)
            self.assertIn("\x1b[?25h", last_screen)
            self.assertIn("images/s", after)  # the last figures stay
        self.stop(job)

    def read_terminal(self, controller, enough):
        seen = b""
        end = time.monotonic() + harness.PATIENCE_S
        while time.monotonic() < end and not enough(seen.decode(errors="replace")):
            if not select.select([controller], [], [], 1)[0]:
                continue
            try:
                seen += os.read(controller, 65536)
            except OSError:  # the other end is closed
                break
        return seen.decode(errors="replace")

    def test_tensorboard_reads_the_scalars(self):
        self.watched("--tensorboard", self.folder / "scalars", train__epochs=20, train__evaluate=True).done()
        self.assert_nothing_left()
        self.assertEqual(len(list((self.folder / "scalars").iterdir())), 1)
        python = harness.REPOSITORY / ".venv" / "bin" / "python"
        read = ("import json, sys\n"
                "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
                "events = EventAccumulator(sys.argv[1]).Reload()\n"
                "print(json.dumps({tag: [(e.step, e.value) for e in events.Scalars(tag)]\n"
                "                  for tag in events.Tags()['scalars']}))")
        if not python.exists() or subprocess.run([python, "-c", "import tensorboard"], capture_output=True,
                                                 check=False).returncode:
            self.skipTest("the Python package tensorboard is not installed")
        answer = subprocess.run([python, "-c", read, self.folder / "scalars"], capture_output=True, text=True,
                                timeout=harness.PATIENCE_S, check=True)
        scalars = json.loads(answer.stdout)
        last = 20 * 1024 // BATCH
        self.assertEqual(scalars["loss"][0][0], 1)
        self.assertEqual(scalars["loss"][-1][0], last)
        self.assertEqual([step for step, _ in scalars["test_accuracy"]], [16 * epoch for epoch in range(1, 21)])
        self.assertTrue(all(0 <= value <= 1 for _, value in scalars["test_accuracy"]))
        for (step, first), (same, second) in zip(scalars["share/rank_0"], scalars["share/rank_1"], strict=True):
            self.assertEqual((step, first + second), (same, BATCH))
        self.assertTrue(all(value > 0 for _, value in scalars["images_per_s"]))
        self.assertIn("wait_part/rank_1", scalars)

    def test_who_is_stopped_is_marked_until_it_is_heard_again(self):
        for mode in ("all_reduce", "server"):
            with self.subTest(mode=mode):
                job = self.watched(parallel__mode=mode, checkpoint__dir="", workers=("cpu:threads=1",) * 2)
                self.wait_for_step(job, 5)
                silences = lambda: [worker["silent_s"] for worker in self.status(job)["workers"]]
                harness.wait_until(lambda: silences() == [None, None], "two workers that are heard", job)
                pid = self.ranks_of(job)[1]
                os.kill(pid, signal.SIGSTOP)
                harness.wait_until(lambda: silences()[1] is not None, "the silence of worker 1", job)
                first = silences()
                self.assertIsNone(first[0])
                self.assertGreaterEqual(first[1], 3)
                harness.wait_until(lambda: silences()[1] > first[1], "a longer one", job)
                self.assertRegex(self.top(job, "--once").wait().out, r"(?m)^1 +cpu\S* on \S+ +silent ")
                self.assertGreater(self.metrics(job)["bimetal_worker_silent_seconds", 1], 3)
                os.kill(pid, signal.SIGCONT)
                harness.wait_until(lambda: silences() == [None, None], "its voice", job)
                self.wait_for_step(job, self.status(job)["step"] + 5)
                self.stop(job)

    # ---- who may look ----------------------------------------------------------------------------

    def test_beyond_loopback_only_with_the_token(self):
        refused = self.train(self.write_job(), "--monitor", "0.0.0.0:0").wait()
        self.assert_one_message(refused, harness.UNAUTHORIZED, "0.0.0.0", "--token-file")
        token, other = self.folder / "token", self.folder / "other"
        for file in (token, other):
            self.start("token", file).done()
        job = self.watched("--token-file", token, address="0.0.0.0:0")
        harness.wait_until(lambda: self.top(job, "--once", "--token-file", token).wait().out.count(" on ") == 2,
                           "two workers", job)
        for wrong in ((), ("--token-file", other)):
            self.assert_one_message(self.top(job, "--once", *wrong), harness.UNAUTHORIZED, job.address, "--token-file")

        self.start("token", "--monitor", token, self.folder / "monitor.token").done()
        self.assertEqual((self.folder / "monitor.token").stat().st_mode & 0o777, 0o600)
        of_monitor = (self.folder / "monitor.token").read_text().strip()
        secret = token.read_text().strip()
        self.assertIn("bimetal_steps_total", self.get(job, "/metrics", of_monitor)[1])
        for bearer in (None, secret, other.read_text().strip(), of_monitor[:-1], of_monitor + "0"):
            for path in ("/metrics", "/status", "/", "/nothing"):
                with self.assertRaises(urllib.error.HTTPError) as caught:
                    self.get(job, path, bearer)
                self.assertEqual(caught.exception.code, 401)
        for text in (job.out, job.err, *map(command_line, self.processes())):
            self.assertNotIn(secret, text)
            self.assertNotIn(of_monitor, text)
        self.stop(job)

    def test_strangers_do_not_disturb_the_job(self):
        job = self.watched()
        self.wait_for_step(job, 5)
        name, port = job.address.rsplit(":", 1)
        connect = lambda: socket.create_connection((name, int(port)), timeout=harness.PATIENCE_S)
        slow = [connect() for _ in range(60)]
        endless = connect()
        for visit in (b"\x16\x03\x01" + bytes(200), b"\xff" * 100_000, bytes(64), b"G", b"GET / HTTP/1.1\r\n" * 10_000,
                      b"POST /status HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n",
                      b"GET /status HTTP/1.1\r\nContent-Length: -1\r\n\r\n", struct.pack(">IHBB", 0x53484D42, 1, 1, 2)):
            with connect() as stranger, contextlib.suppress(ConnectionError):
                stranger.sendall(visit)
        with connect() as impatient:  # hangs up with a reset in the middle
            impatient.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            impatient.sendall(b"GET /metrics HTT")
        memory = self.memory_of_rank_0(job)
        with contextlib.suppress(ConnectionError, BrokenPipeError):
            for _ in range(2000):
                endless.sendall(b"X-Header: more and more\r\n" * 1000)  # 50 MB in all
        self.assertLess(self.memory_of_rank_0(job), memory + 30_000_000)
        step = self.status(job)["step"]
        self.wait_for_step(job, step + 20)
        self.assertEqual(self.top(job, "--once").wait().status, 0)
        for stranger in slow:  # each has its five seconds
            stranger.settimeout(harness.PATIENCE_S)
            with contextlib.suppress(ConnectionError):
                self.assertEqual(stranger.recv(1), b"")
            stranger.close()
        endless.close()
        self.assertNotIn("error", job.err)
        self.stop(job)

    def memory_of_rank_0(self, job):
        with open(f"/proc/{self.ranks_of(job)[0]}/status") as file:
            return int(re.search(r"VmRSS:\s+(\d+) kB", file.read())[1]) * 1024

    # ---- what goes wrong -------------------------------------------------------------------------

    def test_mistakes_are_told_before_training(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            job = self.train(self.write_job(), "--monitor", f"127.0.0.1:{port}").wait()
            self.assert_one_message(job, harness.SYSTEM, "monitor", str(port), "in use")
        job = self.train(self.write_job(), "--monitor", "127.0.0.1").wait()
        self.assert_one_message(job, harness.INVALID_ARGUMENT, "127.0.0.1", "port")
        job = self.train(self.write_job(), "--tensorboard", self.folder / "job.toml" / "scalars").wait()
        self.assert_one_message(job, harness.SYSTEM, "job.toml/scalars")
        job = self.train(self.write_job(), "--token-file", self.folder / "token").wait()
        self.assert_one_message(job, harness.INVALID_ARGUMENT, "--token-file", "--monitor")
        self.assert_one_message(self.start("top", "127.0.0.1", "--once"), harness.INVALID_ARGUMENT, "127.0.0.1", "port")

    def test_stages_are_shown(self):
        job = self.watched(mesh__stages=2, mesh__micro_batches=4)
        self.wait_for_step(job, 20)
        status = self.status(job)
        self.assertEqual((status["schedule"], status["micro_batches"]), ("1f1b", 4))
        self.assertEqual([worker["stage"] for worker in status["workers"]], ["stage 0 of 2", "stage 1 of 2"])
        self.assertGreater(max(worker["wait_part"] for worker in status["workers"]), 0)
        text = self.get(job, "/metrics")[1]
        self.assertIn('\nbimetal_pipeline_info{schedule="1f1b"} 1\n', text)
        self.assertRegex(text, r'\nbimetal_worker_wait_ratio{rank="1",.*,stage="stage 1 of 2"} [0-9]')
        self.assertEqual(self.metrics(job)["bimetal_micro_batches", None], 4)
        top = self.top(job, "--once").wait()
        self.assertRegex(top.out, r"(?m)efficiency \d+ %  1f1b × 4 micro-batches$")
        self.assertRegex(top.out, r"(?m)^rank  worker .* stage +share .* bubble +sent$")
        self.assertRegex(top.out, r"(?m)^1     cpu\S* on \S+ +1 of 2 +\d+ .* \d+\.\d % ")
        self.stop(job)

    def test_top_tells_what_is_no_monitor(self):
        job = self.train(self.write_job(), "--listen", "127.0.0.1:0", "--world-size", 2, workers=("cpu:threads=1",))
        job.wait_for_output("bimetal join")
        address = re.search(r"bimetal join (\S+)", job.out)[1]
        top = self.start("top", address, "--once").wait()  # the job's own port
        self.assertIn(top.status, (harness.PROTOCOL_MISMATCH, harness.PEER_LOST, harness.TIMEOUT), top.err)
        self.assertIn(address, top.error())
        job.interrupt()
        job.wait()

    def test_what_a_monitor_says_does_nothing_to_the_terminal(self):
        job = self.watched()
        self.wait_for_step(job, 5)
        status = self.status(job)
        self.stop(job)
        evil = "\x1b]0;evil\x07\x9b31m\nrank"
        status.update(phase=evil, notices=[evil], since_step_s=75.5, schedule=evil, micro_batches=3)
        for worker in status["workers"]:  # a server's, too
            worker.update(host=evil, device=evil, stage=evil, staleness=1.25, staleness_max=7, bytes_per_s=3.5 * 2**20)
        top = self.start("top", self.serve(json.dumps(status).encode()), "--once").wait()
        self.assertEqual((top.status, top.err), (0, ""))
        self.assertIn("?]0;evil??31m?rank", top.out)
        self.assertFalse(re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", top.out), repr(top.out))
        self.assertRegex(top.out, r"(?m)^rank  worker .* sent  staleness  most$")
        self.assertEqual(len(re.findall(r"(?m) 3\.5 MiB/s +1\.2 +7$", top.out)), 2, top.out)
        self.assertIn("no step for 1:16", top.out)
        self.assertEqual(top.out.count("\n"), 2 + 3 + 1)
        for strange in (b"{}", b"[" * 100_000, b'{"step": "' + b"x" * 1_000_000):
            top = self.start("top", self.serve(strange), "--once").wait()
            self.assert_one_message(top, harness.PROTOCOL_MISMATCH, "another version")
            self.assertLess(len(top.err), 200)

    def serve(self, page):
        """A monitor that answers everything with `page`; its address."""
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(page)

            def log_message(self, *arguments):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return "127.0.0.1:%d" % server.server_address[1]


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    harness.main()
