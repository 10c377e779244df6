"""Data at a URL, fetched by Python's fsspec from a real HTTP server and by file://."""

import functools
import http.server
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import harness
from harness import DataElsewhere, wait_until, waits

PYTHON = harness.REPOSITORY / ".venv" / "bin" / "python"
HAS_FSSPEC = subprocess.run([PYTHON, "-c", "import fsspec, aiohttp"], capture_output=True,
                            check=False).returncode == 0
SECRET = "pa55word"
SIGNATURE = "5ignature"


class Handler(http.server.SimpleHTTPRequestHandler):
    """Counts what is fetched; sends the images only as far as the server lets it."""

    def do_GET(self):
        if self.server.demand_password and "Authorization" not in self.headers:
            self.send_error(401)
            return
        self.server.fetched.append(pathlib.Path(self.path).name)
        self.server.open.wait(harness.PATIENCE_S)
        super().do_GET()

    def copyfile(self, source, outputfile):
        if self.server.stalls:
            outputfile.write(source.read(1000))
            outputfile.flush()
            self.server.released.wait(harness.PATIENCE_S)
        else:
            super().copyfile(source, outputfile)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    demand_password = stalls = False

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), functools.partial(Handler, directory=folder))
        self.fetched = []
        self.released = threading.Event()
        self.open = threading.Event()
        self.open.set()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self):
        self.released.set()
        self.open.set()
        self.shutdown()
        self.server_close()

    def url(self, path="data", user=""):
        return f"http://{user}127.0.0.1:{self.server_port}/{path}"


class DataAtUrl(DataElsewhere):
    def setUp(self):
        super().setUp()
        self.environment["BIMETAL_PYTHON"] = str(PYTHON)
        self.cache = self.folder / "cache"
        (self.folder / "site").mkdir()
        shutil.move(self.folder / "data", self.folder / "site" / "data")
        self.data = self.folder / "site" / "data"
        self.server = Server(self.folder / "site")
        self.addCleanup(self.server.close)

    def job(self, url, **settings):
        return self.write_job(data__path=url, checkpoint__dir="", checkpoint__every_steps=0,
                              **{"train__steps": 3, **settings})

    def run_one(self, url, **settings):
        return self.train(self.job(url, **settings), workers=("cpu:threads=1",)).wait()

    def assert_trained(self, *jobs):
        super().assert_trained(*jobs)
        for job in jobs:
            self.assert_no_secret(job)

    def assert_no_secret(self, job):
        for secret in (SECRET, SIGNATURE):
            self.assertNotIn(secret, job.out + job.err)

    def assert_kept_whole(self):
        kept, = (self.cache / "urls").iterdir()
        for path in self.data.iterdir():
            self.assertEqual((kept / path.name).read_bytes(), path.read_bytes(), path.name)

    def test_http_fetches_what_has_changed(self):
        url = self.server.url(f"data?key={SIGNATURE}", user=f"anna:{SECRET}@")
        self.server.demand_password = True
        self.assert_trained(self.run_one(url))
        self.assertEqual(sorted(f.split("?")[0] for f in self.server.fetched),
                         sorted(p.name for p in self.data.iterdir()))
        self.assert_kept_whole()

        self.server.fetched.clear()
        self.assert_trained(self.run_one(url))
        self.assertEqual(self.server.fetched, [], "nothing has changed")

        labels = self.data / "train-labels-idx1-ubyte"
        labels.write_bytes(labels.read_bytes()[:-1] + b"\x07")
        later = time.time() + 10
        os.utime(labels, (later, later))
        self.assert_trained(self.run_one(url))
        self.assert_kept_whole()

    def test_each_machine_fetches_for_itself(self):
        job_file = self.job(self.data.as_uri())
        host = self.host(job_file, world_size=3)
        theirs = self.folder / "their cache"
        guest = self.join(host, workers=("cpu:threads=1",) * 2,
                          environment={"BIMETAL_CACHE": str(theirs)})
        self.assert_trained(host.wait(), guest.wait())
        self.assertNotIn("sends", host.out)
        for cache in (self.cache, theirs):
            kept, = (cache / "urls").iterdir()
            self.assertEqual(len(list(kept.iterdir())), 5, "four files, and where they are from")

    def test_a_machine_that_cannot_fetch_is_sent_the_data(self):
        bare = self.folder / "bare"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
        for begin, sender in ((lambda: self.host(self.job(self.data.as_uri())), "rank 0"), (self.serve, "server 0")):
            host = begin()
            guest = self.join(host, environment={"BIMETAL_CACHE": str(self.folder / f"cache of {sender}"),
                                                 "BIMETAL_PYTHON": str(bare / "bin" / "python")})
            self.assert_trained(host, guest)
            self.assertRegex(host.out, rf"no data on .*needs fsspec.*{sender} on .* sends")

        job = self.train(self.job(self.data.as_uri()), workers=("cpu:threads=1",),
                         environment={"BIMETAL_PYTHON": str(bare / "bin" / "python"),
                                      "BIMETAL_CACHE": str(self.folder / "third cache")}).wait()
        self.assert_one_message(job, harness.UNSUPPORTED, "needs fsspec",
                                f"{bare}/bin/python -m pip install fsspec")

    def test_what_cannot_be_fetched(self):
        for url, status, *parts in (
                (f"quux://{SECRET}@host/a", harness.INVALID_ARGUMENT, "Protocol not known: quux"),
                (f"abfs://key:{SECRET}@host/a", harness.UNSUPPORTED, "nstall adlfs"),
                ("memory://nowhere", harness.INVALID_ARGUMENT, "has no train-images-idx3-ubyte"),
                (self.server.url(f"none?key={SIGNATURE}", user=f"anna:{SECRET}@"),
                 harness.INVALID_ARGUMENT, "has no train-images-idx3-ubyte", "***@127.0.0.1")):
            with self.subTest(url):
                job = self.run_one(url)
                self.assert_one_message(job, status, "cannot fetch the data from", *parts)
                self.assert_no_secret(job)
                self.assertEqual(list((self.cache / "urls").iterdir()), [])

    @waits
    def test_a_server_that_falls_silent(self):
        self.server.stalls = True
        job = self.run_one(self.server.url(), parallel__timeout_s=1)
        self.assert_one_message(job, harness.TIMEOUT, f"nothing has come for {harness.patient(1)} s", self.server.url())
        self.assertEqual(list((self.cache / "urls").iterdir()), [])

    def fetching(self):
        self.server.stalls = True
        job = self.train(self.job(self.server.url()))
        wait_until(lambda: self.server.fetched or job.process.poll() is not None, "the fetch", job)
        return job

    @waits
    def test_ctrl_c_while_fetching(self):
        job = self.fetching()
        job.end()
        self.assertIn("stopped before training began", job.out)
        self.assertEqual(list((self.cache / "urls").iterdir()), [])

    @waits
    def test_a_killed_rank_takes_its_fetch_along(self):
        job = self.fetching()
        self.kill(job, 0)
        self.assert_one_message(job, harness.PEER_LOST, "was killed by signal 9")
        self.assert_nothing_left()
        self.server.stalls = False
        self.server.released.set()
        self.assert_trained(self.run_one(self.server.url()))
        self.assert_kept_whole()  # and nothing of the killed fetch lies beside it

    # ---- with parameter servers, whose processes start for themselves ---------------------------------

    def serve(self):
        return self.lead(self.job(self.server.url(), parallel__mode="server"))

    @waits
    def test_servers_and_workers_of_one_cache_fetch_once(self):
        self.server.open.clear()
        job = self.train(self.job(self.server.url(), parallel__mode="server", servers__count=2))
        wait_until(lambda: self.server.fetched or job.process.poll() is not None, "the first fetch", job)
        time.sleep(5)  # the others have started, and want the data, too
        self.server.open.set()
        self.assert_trained(job.wait())
        self.assertEqual(sorted(self.server.fetched), sorted(p.name for p in self.data.iterdir()))
        self.assert_kept_whole()

    def test_a_worker_that_joins_fetches_for_its_machine(self):
        host = self.serve()
        theirs = self.folder / "their cache"
        guest = self.join(host, workers=("cpu:threads=1",) * 2, environment={"BIMETAL_CACHE": str(theirs)})
        self.assert_trained(host.wait(), guest.wait())
        self.assertNotIn("sends", host.out + guest.out)
        self.assertEqual(len(self.server.fetched), 8, "four files for each of two machines")
        kept, = (theirs / "urls").iterdir()
        self.assertEqual(len(list(kept.iterdir())), 5, "four files, and where they are from")

    def test_another_one_fetches_when_a_worker_is_killed_at_it(self):
        host = self.serve()
        wait_until(lambda: len(self.server.fetched) == 4 or host.process.poll() is not None, "the data there", host)
        self.server.stalls = True
        guest = self.join(host, workers=("cpu:threads=1",) * 2,
                          environment={"BIMETAL_CACHE": str(self.folder / "their cache")})
        wait_until(lambda: len(self.server.fetched) > 4 or guest.process.poll() is not None, "the fetch", guest)
        fetching, = [rank for rank in self.ranks_of(guest)
                     if any(harness.parent_of(pid) == rank for pid in self.processes())]
        os.kill(fetching, signal.SIGKILL)
        self.server.stalls = False
        self.server.released.set()
        host.done()
        guest.wait()


if __name__ == "__main__":
    if not HAS_FSSPEC:
        print("skipped: needs fsspec and aiohttp in .venv (make setup)")
        sys.exit(77)
    harness.main()
