"""The files that fetch_url.py keeps of a URL: whole files alone, on a real HTTP server that cuts connections, and after
damage."""

import http.server
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

SCRIPT = pathlib.Path(__file__).parents[3] / "src" / "bimetal" / "launch" / "fetch_url.py"
CONTENTS = bytes(range(256)) * 400


class Handler(http.server.BaseHTTPRequestHandler):
    """Says how long a file is when asked for its head; sends it until the end of the connection."""

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENTS)))
        self.send_header("ETag", "the same")
        self.end_headers()

    def do_GET(self):
        self.server.fetched += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(CONTENTS[:self.server.sends])

    def log_message(self, *_):
        pass


class FetchUrl(unittest.TestCase):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.sends, self.server.fetched = len(CONTENTS), 0
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.current = pathlib.Path(folder.name) / "current"
        self.current.mkdir()

    def fetch(self):
        """The last event; into `current`, as the program puts it there."""
        with tempfile.TemporaryDirectory(dir=self.current.parent) as into:
            request = {"url": f"http://127.0.0.1:{self.server.server_port}/data", "names": ["x"], "into": into,
                       "current": str(self.current)}
            told = subprocess.run([sys.executable, "-c", SCRIPT.read_text()], check=True, capture_output=True, text=True,
                                  env={**os.environ, "BIMETAL_FETCH": json.dumps(request)}).stdout
            self.events = [json.loads(line) for line in told.splitlines()]
            if self.events[-1]["event"] == "complete":
                for path in pathlib.Path(into).iterdir():
                    path.rename(self.current / path.name)
        return self.events[-1]

    def test_a_cut_download_is_an_error(self):
        self.server.sends = 1000
        told = self.fetch()
        self.assertEqual(told["event"], "error")
        self.assertIn(f"1000 of {len(CONTENTS)} bytes of x came", told["message"])

    def test_what_is_whole_is_kept_and_what_was_damaged_comes_anew(self):
        self.assertEqual(self.fetch()["event"], "complete")
        self.assertEqual(self.fetch()["event"], "unchanged")
        self.assertEqual(self.server.fetched, 1)
        kept = self.current / "x"
        os.utime(kept, (1, 1))  # touched, but what it was
        self.assertEqual(self.fetch()["event"], "unchanged")
        for damaged in (CONTENTS[:500], CONTENTS[:-1] + b"?"):
            kept.write_bytes(damaged)
            self.assertEqual(self.fetch()["event"], "complete")
            self.assertIn({"event": "damaged", "name": "x"}, self.events)
            self.assertEqual(kept.read_bytes(), CONTENTS)
        (self.current / "origin.json").write_text('{"x": {"size": "3"}}')  # of an older release
        self.assertEqual(self.fetch()["event"], "complete")


if __name__ == "__main__":
    if not all(importlib.util.find_spec(needed) for needed in ("fsspec", "aiohttp")):
        print("skipped: needs fsspec and aiohttp in .venv (make setup)")
        sys.exit(77)
    unittest.main()
