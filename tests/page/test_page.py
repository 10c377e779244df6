"""The page in a real browser, of real jobs: what it shows, what its buttons do, and what it does not do.

BIMETAL_PICTURES=docs/images has the pictures of the manual written there."""

import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import sys
import threading
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "fault"))

import harness
from browser import PHONE, Browser
from harness import TwoMachines

UNEQUAL = ("cpu:threads=1", "cpu:threads=1,speed=0.6", "cpu:threads=1,speed=0.3")
SCRIPT = "<script>x=1</script>"


class Page(TwoMachines):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def setUp(self):
        super().setUp()
        self.pictures = pathlib.Path(os.environ.get("BIMETAL_PICTURES") or self.folder)
        self.browser.look()

    def shown(self, job):
        """The link that the job has printed."""
        job.wait_for_output("page at ")
        job.link = re.search(r"page at (\S+) ", job.out)[1]
        job.site = job.link[:job.link.index("/open/")]
        return job

    def elastic_job(self, **options):
        harness.write_dataset(self.folder / "more", train=12_800)
        job_file = self.write_job(data__path=str(self.folder / "more"), train__evaluate=True, checkpoint__every_steps=0,
                                  train__learning_rate=0.02, train__global_batch=256, train__epochs=1000)
        return self.shown(self.host(job_file, "--page", world_size=3, workers=UNEQUAL, **options))

    def rows(self):
        return [row.text for row in self.browser.all("#workers tbody tr")]

    def events(self, kind):
        return self.browser.text(f"#events .k-{kind}")

    def assert_no_complaints(self):
        self.assertEqual(self.browser.complaints(), [])

    # ---- a job from its begin to its end ---------------------------------------------------------

    def test_workers_are_lost_come_and_are_sent_away_and_buttons_do_what_they_say(self):
        job, browser = self.elastic_job(), self.browser
        browser.open(job.link)
        self.assertEqual(browser.driver.current_url, job.site + "/")
        browser.wait_for_text("#phase", "training")
        browser.wait(lambda: len(self.rows()) == 3, "three workers")
        browser.wait_for_text("#where", "step ")
        self.assertRegex(browser.text("#where"), r"epoch \d+/1000 +step [\d,]+/")
        self.assertRegex(browser.text("[data-figure=loss]"), r"\d\.\d+")
        self.assertRegex(browser.text("[data-figure='images/s']"), r"\d+")
        self.assertRegex(browser.text("[data-figure='time left']"), r"\d+:\d\d")
        self.assertEqual(browser.text("[data-figure='learning rate']"), "0.02")
        self.assertIn("speed=0.3", self.rows()[2])
        self.assertRegex(self.rows()[0], r"[GM]iB")
        painted = sorted(self.first_paint(job) for _ in range(9))
        print(f"first paint after {painted[0]:.0f} ms at best, {painted[4]:.0f} ms in the middle of nine")  # a figure for docs/monitoring.md
        browser.wait(lambda: len(browser.all("#bars .stack")) == 3, "three bars")
        browser.wait_for_text("#events", "test accuracy")
        self.assertGreater(len(browser.all("[data-chart=Loss] path.line")), 0)
        self.assertGreater(len(browser.all("[data-chart=Loss] circle")), 0)
        self.assertIn("of the fastest alone", browser.text("[data-chart=Efficiency] .legend"))
        self.assertIn("the job", browser.text("#planned"))

        self.lose_and_join(job)
        self.press_buttons(job)
        self.use_keys()
        self.take_pictures()
        self.assert_no_complaints()

        browser.click("#stop")
        browser.click("#sure-no")
        self.assertIsNone(job.process.poll())
        browser.click("#stop")
        browser.click("#sure-yes")
        job.done(harness.INTERRUPTED)  # whatever has become of the worker that was killed
        self.guest.wait()
        self.assertIn("asked to stop: the job ends after this step", job.out)
        self.assert_saved_where_it_stopped(job)
        browser.wait_for_text("#phase", "no answer")

    def first_paint(self, job):
        """In milliseconds, of the page loaded anew. The job, which has both cores, is in the way of some."""
        self.browser.open(job.site)
        painted = "const [entry] = performance.getEntriesByName('first-contentful-paint'); return entry ? entry.startTime : 0"
        self.browser.wait(lambda: self.browser.run(painted) > 0, "a first paint")
        return self.browser.run(painted)

    def lose_and_join(self, job):
        browser = self.browser
        self.kill(job, 2)
        browser.wait_for_text("#events", "lost: ")
        browser.wait(lambda: "(gone)" in self.rows()[2], "the lost worker's row")
        browser.wait(lambda: browser.all("[data-chart=Loss] [data-mark=lost]"), "its mark")
        self.guest = self.join(job, workers=("cpu:threads=1,speed=0.5",))
        browser.wait(lambda: len(self.rows()) == 4, "the new worker")
        browser.wait_for_text("#members", "joined: ")
        self.assertIn("speed=0.5", self.rows()[3])

    def press_buttons(self, job):
        browser = self.browser
        before = self.saved_steps()
        browser.click("#save")
        harness.wait_until(lambda: self.saved_steps() != before, "a checkpoint", job)
        browser.wait_for_text("#told", "A checkpoint is saved")
        browser.wait_for_text("#events", "saved in")
        browser.click("#profile")
        browser.wait_for_text("#step-of", "Profile of steps")
        for phase in ("data", "forward", "backward", "wait", "update"):
            self.assertIn(phase, browser.text("#phases"))
        self.assertEqual(len(browser.all("#bars .stack")), 3)
        self.assertGreaterEqual(len(browser.all("#timeline [data-span=backward]")), 3)

    def use_keys(self):
        browser = self.browser
        chart, = browser.all("[data-chart=Loss] svg")
        browser.run("arguments[0].focus()", chart)
        chart.send_keys("\ue012")  # left
        self.assertRegex(browser.text("[data-chart=Loss] .tip"), r"step [\d,]+\n")
        chart.send_keys("\ue00c")  # escape
        self.assertEqual(browser.text("[data-chart=Loss] .tip"), "")
        browser.click("#by-time")
        self.assertEqual(browser.all("#by-time")[0].get_attribute("aria-pressed"), "true")
        browser.click("#by-step")
        browser.all("#search")[0].send_keys("SAVED IN")
        browser.wait(lambda: "saved in" in browser.text("#events") and "lost:" not in browser.text("#events"), "what is searched")
        browser.all("#search")[0].clear()
        browser.run("document.getElementById('search').dispatchEvent(new Event('input'))")
        # Every button has a name, and the headings are in order.
        unnamed = browser.run("return [...document.querySelectorAll('button')].filter(b => !b.textContent && !b.ariaLabel).length")
        self.assertEqual(unnamed, 0)
        self.assertEqual(browser.run("return [...document.querySelectorAll('h1,h2')].map(h => h.tagName).join('')"), "H1" + 6 * "H2")
        for scheme in ("light", "dark"):
            browser.look(scheme=scheme)
            self.assertEqual(browser.inaccessible(), [], scheme)
        browser.look()

    def take_pictures(self):
        browser = self.browser
        browser.run("scrollTo(0, 0)")
        time.sleep(1)
        browser.run("document.getElementById('told').hidden = true")
        browser.look((1000, 1300))
        time.sleep(1)
        browser.picture(self.pictures / "page.png")
        browser.look(PHONE, "dark")
        time.sleep(1)
        self.assertLessEqual(browser.overflow(), 0)
        self.assertEqual(browser.run("return getComputedStyle(document.body).backgroundColor"), "rgb(14, 17, 22)")
        browser.picture(self.pictures / "page_phone.png")
        browser.look()
        for picture in ("page.png", "page_phone.png"):
            self.assertLess((self.pictures / picture).stat().st_size, 200_000)

    def test_a_worker_is_let_go(self):
        job, browser = self.elastic_job(environment={"BIMETAL_DEBUG": "info"}), self.browser
        browser.open(job.link)
        browser.wait(lambda: len(self.rows()) == 3, "three workers")
        self.look_into_logs()
        self.try_a_sample()
        self.stop_one_for_a_while(job)
        browser.wait(lambda: browser.all("[data-leave='1']"), "its button")
        browser.click("[data-leave='1']")
        self.assertIn("Let worker 1", browser.text("#sure"))
        browser.click("#sure-yes")
        browser.wait_for_text("#events", "left: ")
        browser.wait(lambda: "(gone)" in self.rows()[1], "its row")
        self.assertNotIn("lost: ", browser.text("#events"))
        job.wait_for_output("2 workers go on")
        harness.wait_until(lambda: len(self.ranks_of(job)) == 2, "the end of its process", job)
        guest = self.join(job, workers=UNEQUAL[1:2])  # it comes back
        browser.wait_for_text("#members", "joined: ")
        browser.wait(lambda: len(self.rows()) == 4 and "(gone)" not in self.rows()[3], "its new row")
        job.end()
        guest.wait()

    def look_into_logs(self):
        """The logs of three ranks, and of one alone where they are searched; urgent lines come first."""
        browser = self.browser
        for rank in range(3):
            browser.wait_for_text("#events", f"rank {rank} on ")
        browser.picture(self.pictures / "page_log.png", "#log")
        self.search("RANK 2 is connected to")
        browser.wait(lambda: {element.text.split(" on ")[0] for element in browser.all("#events .who")} == {"rank 2"}, "rank 2's log")
        self.search("")
        kinds = browser.run("return [...document.querySelectorAll('#events .kind')].map(element => element.textContent)")
        urgent = [kind in ("notice", "warning", "error", "lost", "left") for kind in kinds]
        self.assertEqual(urgent, sorted(urgent, reverse=True), kinds)

    def stop_one_for_a_while(self, job):
        """A word says so in its row and on its machine, and no colour alone."""
        pid = self.ranks_of(job)[1]
        os.kill(pid, signal.SIGSTOP)
        self.browser.wait(lambda: re.search(r"\(silent for \d+ s\)", self.rows()[1]), "its silence")
        self.assertIn("silent", self.browser.text("#hosts"))
        self.assertFalse(any("silent" in self.rows()[other] for other in (0, 2)))
        self.assertEqual(self.browser.inaccessible(), [])
        os.kill(pid, signal.SIGCONT)
        self.browser.wait(lambda: "silent" not in self.rows()[1] + self.browser.text("#hosts"), "its voice")

    def search(self, text):
        self.browser.run("const box = document.getElementById('search'); box.value = arguments[0]; box.dispatchEvent(new Event('input'))", text)

    def try_a_sample(self):
        browser = self.browser
        browser.click("#sample")
        browser.wait_for_text("#sample-text", "taken for")
        self.assertRegex(browser.text("#sample-text"), r"^sample \d+: label \d, taken for \d \(\d+ %\)")
        canvas, = browser.all("#sample-picture")
        painted = browser.run("const {width, height} = arguments[0]; return [width, height, ...arguments[0].getContext('2d').getImageData(3, 4, 1, 1).data]", canvas)
        label = int(re.search(r"label (\d)", browser.text("#sample-text"))[1])
        grey = (label * 25 + (label * 7 + (4 * 28 + 3) ** 2) % 11) % 256  # as the harness has written the images
        self.assertEqual(painted, [28, 28, grey, grey, grey, 255])
        self.assertEqual(browser.inaccessible(), [])

    # ---- a step, and other runs ------------------------------------------------------------------

    def test_the_stages_of_a_pipeline(self):
        job_file = self.write_job(mesh__stages=2, mesh__micro_batches=4, checkpoint__every_steps=0, model__hidden=800, train__global_batch=512)
        job, browser = self.shown(self.train(job_file, "--page", workers=UNEQUAL[:2])), self.browser
        browser.open(job.link)
        browser.wait_for_text("#workers", "stage 1 of 2")
        browser.wait_for_text("#where", "step ")
        browser.click("#profile")
        browser.wait_for_text("#timeline-of", "the numbers are those of micro-batches")
        for phase, rows in (("forward", 8), ("backward", 8), ("bubble", 1)):
            self.assertGreaterEqual(len(browser.all(f"#timeline [data-span={phase}]")), rows, phase)
        self.assertEqual({rect.get_attribute("data-micro-batch") for rect in browser.all("#timeline [data-span=forward]")}, set("0123"))
        self.assertIn("stage 0 of 2", browser.text("#timeline"))
        browser.picture(self.pictures / "page_step.png", "#step")
        self.assertEqual(browser.inaccessible(), [])
        self.assert_no_complaints()
        job.end()

    def test_runs_side_by_side(self):
        other = self.write_job("other.toml", checkpoint__dir=str(self.folder / "faster"), train__steps=200,
                               train__evaluate=True, train__learning_rate=0.02)
        self.train(other, workers=UNEQUAL[:1]).done()
        job, browser = self.shown(self.train(self.write_job(), "--page", workers=UNEQUAL[:1])), self.browser
        browser.open(job.link)
        browser.wait_for_text("#where", "step ")
        record = self.checkpoints / "training.json"
        harness.wait_until(lambda: record.exists() and json.loads(record.read_text())["step"] > 100, "its record", job)
        browser.click("#runs-load")
        browser.wait(lambda: len(browser.all("#run-list tbody tr")) == 2, "two runs")
        mine, theirs = (row.text for row in browser.all("#run-list tbody tr"))
        self.assertIn("(this one)", mine)
        self.assertIn("running", mine)
        self.assertIn("faster", theirs)
        self.assertIn("done", theirs)
        self.assertIn("200/200", theirs)
        self.assertRegex(theirs, r"test accuracy \d")
        self.assertEqual(len(browser.all("#run-chart path.line")), 2)
        self.assertRegex(browser.text("#run-keys"), r"train.learning_rate +0.001 +0.02")
        self.assertNotIn("train.global_batch", browser.text("#run-keys"))
        for axis in ("samples", "elapsed_s"):
            browser.click(f"#runs-{axis}")
            self.assertEqual(len(browser.all("#run-chart path.line")), 2)
        browser.click("#runs-step")
        browser.picture(self.pictures / "page_runs.png", "#runs")
        browser.all("#run-list input")[1].click()
        self.assertEqual(len(browser.all("#run-chart path.line")), 1)
        (self.folder / "faster").rename(self.folder / SCRIPT.replace("/", ""))
        browser.click("#runs-load")
        browser.wait_for_text("#run-list", SCRIPT.replace("/", ""))
        self.assertEqual(len(browser.all("script")), 1)
        self.assertEqual(browser.inaccessible(), [])
        self.assert_no_complaints()
        job.end()
        self.assertEqual(json.loads(record.read_text())["state"], "stopped")

    # ---- who may do what -------------------------------------------------------------------------

    def test_without_the_link_one_may_look(self):
        job, browser = self.shown(self.train(self.write_job(), "--page", workers=UNEQUAL[:1])), self.browser
        browser.driver.delete_all_cookies()
        browser.open(job.site)
        browser.wait_for_text("#phase", "training")
        self.assertEqual(browser.text("#buttons"), "")
        self.assertIn("Buttons are for the browser that has opened the link", browser.text("footer"))
        self.assertEqual(len(self.rows()), 1)
        browser.open(job.link)
        browser.wait_for_text("#buttons", "Stop after this step")
        self.assertEqual(browser.run("return document.cookie"), "")  # no script sees it
        browser.open(job.link)
        self.assertIn("has been used", browser.text("body"))
        self.assert_no_page_of_another_place_gets_in(job)
        browser.open("about:blank")
        browser.complaints()
        job.end()

    def assert_no_page_of_another_place_gets_in(self, job):
        """Neither reads nor presses, though this browser has the cookie."""
        with Served({"/": ("text/html", b"<!doctype html><title>elsewhere</title>")}) as elsewhere:
            self.browser.open(elsewhere.replace("127.0.0.1", "localhost"))
            for arguments in ("{}", "{method: 'POST', credentials: 'include', body: '{\"ask\":\"stop\"}'}"):
                told = self.browser.driver.execute_async_script(
                    f"const done = arguments[1]; fetch(arguments[0], {arguments})"
                    ".then(a => done('read ' + a.status), e => done('refused'))",
                    job.site + ("/press" if "POST" in arguments else "/status"))
                self.assertEqual(told, "refused")
        time.sleep(1)
        self.assertIsNone(job.process.poll())

    def test_a_host_named_as_a_script_is_a_text(self):
        if os.geteuid() != 0 or not shutil.which("unshare"):
            self.skipTest("only root may give a host such a name")
        rename = "import os, socket, sys; socket.sethostname(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"
        named = ["unshare", "--uts", sys.executable, "-c", rename, SCRIPT, harness.BIMETAL]
        job = self.shown(self.train(self.write_job(), "--page", workers=UNEQUAL[:1], program=named))
        self.browser.open(job.link)
        self.browser.wait_for_text("#workers", SCRIPT)
        self.assertIn(SCRIPT, self.browser.text("#hosts"))
        self.assertEqual(len(self.browser.all("script")), 1)
        self.assertIsNone(self.browser.run("return window.x ?? null"))
        self.assert_no_complaints()
        job.end()

    # ---- many --------------------------------------------------------------------------------------

    def test_64_workers(self):
        job = self.shown(self.train(self.write_job(), "--page", workers=UNEQUAL[:1]))
        with urllib.request.urlopen(job.site) as answer:
            page, policy = answer.read(), answer.headers["Content-Security-Policy"]

        def status_now():
            with urllib.request.urlopen(job.site + "/status") as answer:
                return json.load(answer)

        harness.wait_until(lambda: status_now()["step"] > 5, "a step", job)
        status = status_now()
        job.end()
        worker, = status["workers"]
        status["workers"] = [{**worker, "rank": rank, "host": f"node{rank // 8}", "share": rank + 1} for rank in range(64)]
        columns = ("step", "at", "elapsed_s", "loss", "samples_per_s", "efficiency", "of_fastest", "learning_rate", "loss_scale")
        history = {"points": {**{name: list(range(1, 2001)) for name in columns}, "shares": [[rank + 1 for rank in range(64)]] * 2000},
                   "evaluations": [], "events": [], "lines": [], "sample": None,
                   "profile": {"first_step": 1, "last_step": 2, "phases": ["data", "forward"], "seconds": [[1, 2]] * 64,
                               "spans": [[[1, -1, 0, 1000]]] * 64, "latency_s": [0.001 * (rank // 8) for rank in range(64)]},
                   "plan": {"shares": [1] * 64, "alone": [1] * 64}}
        events = b"".join(f"event: {name}\ndata: {json.dumps(what)}\n\n".encode()
                          for name, what in (("hello", {"version": "1", "can": [], "press": None}), ("history", history),
                                             ("status", status)))
        with Served({"/": ("text/html", page, policy), "/events": ("text/event-stream", events)}) as site:
            self.browser.open(site)
            self.browser.wait(lambda: len(self.rows()) == 64, "64 workers")
            self.assertEqual(len(self.browser.all(".host")), 8)
            self.assertEqual(len(self.browser.all("#links line.link")), 7)
            self.assertRegex(self.browser.text("#links"), r"bit/s, 7 ms")
            self.assertEqual(len(self.browser.all("#timeline rect")), 16)
            self.assertLessEqual(self.browser.overflow(), 0)
            self.browser.look(PHONE)
            self.assertLessEqual(self.browser.overflow(), 0)
            self.assert_no_complaints()
            self.browser.open("about:blank")


class Served:
    """Files of a site of their own: by path their kind, bytes and policy."""

    def __init__(self, files):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                kind, body, *policy = files.get(self.path, ("text/plain", b""))
                self.send_response(200)
                self.send_header("Content-Type", kind)
                if policy:
                    self.send_header("Content-Security-Policy", policy[0])
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}/"

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
