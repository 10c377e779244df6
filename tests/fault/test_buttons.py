"""The requests of the page's buttons are met between steps, on all ranks: without a browser (tests/page has one)."""

import json
import os
import pty
import re
import socket
import time
import urllib.error
import urllib.request

import harness
from harness import FaultTest


class Browser:
    """Follows the job's link, keeps its cookie, and knows what the page sends along with a press."""

    def __init__(self, job):
        job.wait_for_output("page at ")
        self.site, link = re.search(r"page at (http://[^/]+)(/open/\w+)", job.out).groups()
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        self.opener.open(self.site + link, timeout=harness.PATIENCE_S).close()
        self.texts = []  # of all events so far
        self.events = self.opener.open(self.site + "/events", timeout=harness.PATIENCE_S)
        self.hello = self.told("hello")

    def told(self, name, which=lambda data: True):
        """The job's events of that kind that are wanted."""
        kind, end = "", time.monotonic() + harness.PATIENCE_S
        for line in self.events:
            if line.startswith(b"event: "):
                kind = line[7:].strip().decode()
            if line.startswith(b"data: "):
                data = json.loads(line[6:])
                self.texts += [event["text"] for event in data.get("events", ())]
                if kind == name and which(data):
                    return data
            if time.monotonic() > end:
                break
        raise AssertionError(f"the job does not tell that; it did tell: {self.texts}")

    def press(self, **what):
        request = urllib.request.Request(self.site + "/press", json.dumps(what).encode(),
                                         {"X-Bimetal-Press": self.hello["press"], "Origin": self.site})
        self.opener.open(request, timeout=harness.PATIENCE_S).close()

    def event(self, part):
        """Until that has been told."""
        if not any(part in text for text in self.texts):
            self.told("news", lambda _: any(part in text for text in self.texts))


class Buttons(FaultTest):
    def test_save_profile_and_stop(self):
        job = self.train(self.write_job(checkpoint__every_steps=0, parallel__balance="equal"), "--page")
        browser = Browser(job)
        self.assertEqual(browser.hello["can"], ["save", "stop", "profile", "sample"])
        browser.press(ask="profile", steps=3)
        profile = browser.told("news", lambda news: "profile" in news)["profile"]
        self.assertEqual(profile["last_step"] - profile["first_step"], 2)
        self.assertEqual([len(rank) for rank in profile["seconds"]], [len(profile["phases"])] * 2)
        self.assertTrue(all(rank[profile["phases"].index("forward")] > 0 for rank in profile["seconds"]))
        before = self.saved_steps()
        browser.press(ask="save")
        harness.wait_until(lambda: self.saved_steps() != before, "a checkpoint", job)
        with self.assertRaises(urllib.error.HTTPError) as refused:
            browser.press(ask="leave", worker=1)
        self.assertEqual(refused.exception.code, 403)
        browser.press(ask="stop")
        job.done(harness.INTERRUPTED)
        self.assertIn("asked to stop: the job ends after this step", job.out)
        self.assert_saved_where_it_stopped(job)
        self.assert_nothing_left()

    def test_logs_of_all_ranks_reach_whoever_watches_rank_0(self):
        """The library's log lines on each of three ranks come in a little at a time, and rank 0 keeps a bounded part of
        them."""
        job = self.train(self.write_job(), "--page", workers=("cpu:threads=1",) * 3, environment={"BIMETAL_DEBUG": "info"})
        browser, lines = Browser(job), []

        def heard(data):
            lines.extend(data.get("lines", ()))
            return {line["who"].split()[1] for line in lines} == {"0", "1", "2"}

        if not heard(browser.told("history")):
            browser.told("news", heard)
        self.assertTrue(all(line["who"].endswith(f" on {socket.gethostname()}") for line in lines))
        self.assertLessEqual({line["kind"] for line in lines}, {"info", "warning", "notice"})
        self.assertTrue(all(len(line["text"]) <= 501 and line["step"] >= 0 for line in lines))
        for text in {line["text"] for line in lines if line["who"].startswith("rank 2 ")}:
            self.assertIn(f"rank 2: info: {text}", job.err)  # the terminal has it as before
        browser.press(ask="stop")
        job.done(harness.INTERRUPTED)

    def test_workers_of_parameter_servers_are_heard_and_their_job_saves_and_stops(self):
        """The servers themselves, too."""
        job = self.train(self.write_job(parallel__mode="server", servers__count=2, checkpoint__every_steps=0), "--page", environment={"BIMETAL_DEBUG": "info"})
        browser, who = Browser(job), set()

        def heard(data):
            who.update(line["who"] for line in data.get("lines", ()))
            return len(who) == 4

        self.assertEqual(browser.hello["can"], ["save", "stop"])
        if not heard(browser.told("history")):
            browser.told("news", heard)
        self.assertEqual(who, {f"{kind} {number} on {socket.gethostname()}" for kind in ("rank", "server") for number in (0, 1)})
        before = self.saved_steps()
        browser.press(ask="save")
        harness.wait_until(lambda: self.saved_steps() != before, "a checkpoint", job)
        browser.event("saved in")
        browser.press(ask="stop")
        job.done(harness.INTERRUPTED)
        self.assertIn("asked to stop: the job ends after this step", job.out)
        self.assert_saved_where_it_stopped(job)

    def test_the_model_is_tried_with_a_sample_and_training_goes_on_as_if_it_were_not(self):
        ends = []
        for name in ("asked", "alone"):
            job = self.train(self.write_job(train__steps=1000, train__dtype="float64", parallel__balance="equal",
                                            checkpoint__dir=str(self.folder / name), checkpoint__every_steps=0), "--page")
            if name == "asked":
                browser = Browser(job)
                browser.told("status", lambda status: status["step"] > 0)
                browser.press(ask="sample")
                sample = browser.told("news", lambda news: "sample" in news)["sample"]
                self.assertRegex(sample["text"], r"^sample \d+: label \d, taken for \d \(\d+ %\), \d \(\d+ %\), \d \(\d+ %\), loss \d+\.\d{4}$")
                self.assertEqual(sample["shape"], [1, 28, 28])
                label = int(sample["text"].split("label ")[1].split(",")[0])
                expected = [(label * 25 + (label * 7 + p * p) % 11) % 256 for p in range(28 * 28)]  # as the data were written
                self.assertEqual(sample["pixels"], expected)
            job.done()
            ends.append((self.folder / name / "step-00001000" / "model.safetensors").read_bytes())
        self.assertEqual(*ends)

    def test_who_has_not_the_whole_model_says_what_to_do_instead(self):
        job = self.train(self.write_job(zero__level=3), "--page")
        browser = Browser(job)
        browser.told("status", lambda status: status["step"] > 0)
        browser.press(ask="sample")
        browser.event("asked to try a sample, but this rank has not the whole model")
        job.end()

    def test_a_worker_leaves(self):
        job = self.train(self.write_job(elastic__min_workers=1), "--page", workers=("cpu:threads=1",) * 3)
        browser = Browser(job)
        browser.told("status", lambda status: status["step"] > 0)
        browser.press(ask="leave", worker=1)
        browser.event("left: cpu")
        browser.event("2 workers go on")
        status = browser.told("status", lambda status: status["workers"][1]["gone"])
        self.assertEqual([worker["gone"] for worker in status["workers"]], [False, True, False])
        browser.press(ask="leave", worker=1)
        browser.event("worker 1 was asked to leave: it is gone")
        browser.press(ask="leave", worker=2)  # by its number: among the ranks that are left it is 1
        browser.event("1 worker goes on")
        harness.wait_until(lambda: len(self.ranks_of(job)) == 1, "the ends of their processes", job)
        job.end()

    def test_the_first_worker_leaves_and_the_next_one_has_a_page(self):
        job = self.train(self.write_job(elastic__min_workers=1), "--page")
        browser = Browser(job)
        browser.told("status", lambda status: status["step"] > 0)
        browser.press(ask="leave", worker=0)
        harness.wait_until(lambda: job.out.count("page at ") == 2, "another page", job)
        job.end()


class WhereItIs(FaultTest):
    def told(self, *arguments, **settings):
        job = self.train(self.write_job(train__steps=5, **settings), *arguments, workers=("cpu:threads=1",)).wait()
        self.assertEqual(job.status, 0, job.err)
        return job.out

    def test_in_a_file_there_is_no_link_unless_asked_for(self):
        self.assertNotIn("page at", self.told())
        self.assertNotIn("page at", self.told("--monitor", "127.0.0.1:0"))
        self.assertNotIn("monitor at", self.told("--page"))
        self.assertIn("page at http://127.0.0.1:", self.told(monitor__page="on"))
        port = harness.free_port()
        out = self.told("--page", f"127.0.0.1:{port}")
        self.assertIn(f"page at http://127.0.0.1:{port}/open/", out)
        self.assertIn(f"monitor at 127.0.0.1:{port};", out)

    def test_at_a_terminal_there_is_one(self):
        for arguments, there in (((), True), (("--no-page",), False)):
            controller, terminal = pty.openpty()
            job_file = self.write_job(train__steps=5)
            environment = {**self.environment, "TERM": "xterm", "NO_COLOR": ""}
            environment.pop("NO_COLOR")
            job = harness.subprocess.Popen([harness.BIMETAL, "train", job_file, "--worker", "cpu:threads=1", *arguments], stdin=terminal,
                                           stdout=terminal, stderr=terminal, env=environment, cwd=self.folder, start_new_session=True)
            os.close(terminal)
            shown = b""
            try:
                while got := os.read(controller, 4096):
                    shown += got
            except OSError:  # all have closed it
                pass
            os.close(controller)
            self.assertEqual(job.wait(harness.PATIENCE_S), 0, shown)
            self.assertEqual(b"page at http://127.0.0.1:" in shown, there, shown)

    def test_mistakes(self):
        job = self.train(self.write_job(), "--page", "127.0.0.1:1", "--monitor", "127.0.0.1:2").wait()
        self.assert_one_message(job, harness.INVALID_ARGUMENT, "--page 127.0.0.1:1", "--monitor 127.0.0.1:2")
        job = self.train(self.write_job(), "--page", "0.0.0.0:0").wait()
        self.assert_one_message(job, harness.UNAUTHORIZED, "0.0.0.0")
        job = self.train(self.write_job(), "--page", "--no-page").wait()
        self.assertEqual(job.status, harness.INVALID_ARGUMENT, job.err)


if __name__ == "__main__":
    harness.main()
