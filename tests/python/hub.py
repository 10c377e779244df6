"""A stand-in for a Hugging Face hub: the part of its HTTP interface by which the library huggingface_hub uploads, after the
library's own source. It keeps what it is given, and answers as a hub does, also where somebody may not write."""

import base64
import hashlib
import http.server
import json
import threading
import urllib.parse

TOKEN = "hf_of_the_test"


class Hub:
    """``with Hub() as hub``: listens at ``hub.address``. ``hub.repositories``: their files by name."""

    def __init__(self):
        self.repositories, self.hidden, self.blobs, self.commits = {}, set(), {}, []
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def may_write(self):
        if self.headers.get("Authorization") == f"Bearer {TOKEN}":
            return True
        self.answer(401, {"error": "Invalid credentials"}, **{"X-Error-Message": "Invalid credentials"})
        return False

    def do_PUT(self):
        data = self.body()
        self.hub.blobs[hashlib.sha256(data).hexdigest()] = data
        self.answer(200)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        repo, _, file = urllib.parse.unquote(self.path).lstrip("/").partition("/resolve/main/")
        data = self.hub.repositories.get(repo, {}).get(file)
        if data is None:
            self.answer(404, {"error": "Entry not found"}, **{"X-Error-Code": "EntryNotFound"})
        else:
            self.answer(200, data, ETag=hashlib.sha256(data).hexdigest(), **{"X-Repo-Commit": "0" * 40})

    def do_POST(self):
        data = self.body()
        path = urllib.parse.urlparse(self.path).path
        if not self.may_write():
            return
        if path == "/api/repos/create":
            self.create(json.loads(data))
        elif path == "/api/validate-yaml":  # of a model's card
            self.answer(200, {"errors": [], "warnings": []})
        elif path.endswith(".git/info/lfs/objects/batch"):
            objects = [{"oid": one["oid"], "size": one["size"],
                        "actions": {"upload": {"href": f"{self.hub.address}/blob/{one['oid']}", "header": {}}}}
                       for one in json.loads(data)["objects"]]
            self.answer(200, {"transfer": "basic", "objects": objects}, **{"Content-Type": "application/vnd.git-lfs+json"})
        elif "/preupload/" in path:
            files = [{"path": one["path"], "shouldIgnore": False, "oid": None,
                      "uploadMode": "lfs" if one["path"].endswith(".safetensors") else "regular"}
                     for one in json.loads(data)["files"]]
            self.answer(200, {"files": files})
        elif "/commit/" in path:
            self.commit(path.removeprefix("/api/models/").partition("/commit/")[0], data)
        else:
            self.answer(404, {"error": path})

    def create(self, wanted):
        name = wanted["name"] if wanted.get("organization") is None else f"{wanted['organization']}/{wanted['name']}"
        there = name in self.hub.repositories
        self.hub.repositories.setdefault(name, {})
        if wanted.get("private") or wanted.get("visibility") == "private":
            self.hub.hidden.add(name)
        self.answer(409 if there else 200, {"url": f"{self.hub.address}/{name}", "name": name})

    def commit(self, repo, data):
        lines = [json.loads(line) for line in data.splitlines()]
        files = self.hub.repositories[repo]
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.hub.commits.append(value["summary"])
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.blobs[value["oid"]]
        self.answer(200, {"commitUrl": f"{self.hub.address}/{repo}/commit/{'1' * 40}", "commitOid": "1" * 40,
                          "success": True})
