"""Run by the program (fetch_url.cpp) as `python -c`: brings a data set's files from a URL with fsspec.

BIMETAL_FETCH holds {"url", "names", "into", "current"} as JSON. What happens is told in lines of JSON:
{"event": "total", "bytes"}, {"event": "checking"} now and then while nothing is fetched, {"event": "damaged", "name"}
for a file of an earlier fetch, and last {"event": "complete"}, {"event": "unchanged"} or
{"event": "error", "code", "message"}.
"""

import hashlib
import json
import os
import pathlib
import sys

# The facts by which file systems show that a file has changed. The size alone is no proof.
STAMPS = ("ETag", "etag", "Last-Modified", "last_modified", "LastModified", "mtime", "updated", "generation",
          "md5Hash", "Content-MD5", "Digest", "ino")
ORIGIN = "origin.json"
READ_AT_ONCE = 1 << 26


def tell(**event):
    print(json.dumps(event), flush=True)


def fail(code, message):
    tell(event="error", code=code, message=" ".join(str(message).split()))
    sys.exit(0)


def open_url(url):
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        fail("unsupported", f"data at a URL needs fsspec: {sys.executable} -m pip install fsspec")
    try:
        return url_to_fs(url)
    except ImportError as missing:  # fsspec's advice: "Install s3fs to access S3"
        fail("unsupported", f"{missing} (for {sys.executable})")
    except ValueError as unknown:
        fail("invalid_argument", unknown)


def path_of(root, name):
    """NAME in the folder; a URL's query (a signature, say) stays at its end."""
    folder, mark, query = root.partition("?")
    return f"{folder.rstrip('/')}/{name}{mark}{query}"


def find(files, root, name):
    """(name there, path, info) of a file that may be compressed."""
    trouble = None
    for there in (name, f"{name}.gz"):
        path = path_of(root, there)
        try:
            return there, path, files.info(path)
        except FileNotFoundError:
            pass
        except Exception as error:  # some servers forbid names that they do not have
            trouble = trouble or error
    if trouble is not None:
        raise trouble
    fail("invalid_argument", f"{root} has no {name} (nor {name}.gz)")


def stamp(info):
    return {key: str(info[key]) for key in ("size", *STAMPS) if info.get(key) is not None}


def fetch(files, path, size, into):
    """Brings one file whole: a connection that is cut need not look like an error."""
    files.get_file(path, str(into))
    came = into.stat().st_size
    if size is not None and came != size:
        fail("system", f"the connection was cut: {came} of {size} bytes of {into.name} came; try again")
    with open(into, "rb+") as file:
        os.fsync(file.fileno())


def contents(path):
    """The note on a file: its digest, and the facts that show whether anybody has written to it since."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(READ_AT_ONCE):
            digest.update(piece)
            tell(event="checking")
        status = os.fstat(file.fileno())
    return {"sha256": digest.hexdigest(), "bytes": status.st_size, "written": [status.st_ino, status.st_mtime_ns]}


def is_whole(path, known):
    """Whether an earlier fetch's file is still what came. It is read where it may not be."""
    try:
        status = path.stat()
        if status.st_size != known["bytes"]:
            return False
        return [status.st_ino, status.st_mtime_ns] == known["written"] or contents(path)["sha256"] == known["sha256"]
    except OSError:
        return False


def is_current(folder, stamps):
    """Whether an earlier fetch brought just these files, something other than the size says so, and all are whole."""
    try:
        earlier = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
        known = earlier["contents"]
        if earlier["stamps"] != stamps or any(len(stamp) < 2 for stamp in stamps.values()):
            return False
        damaged = [name for name in stamps if not is_whole(folder / name, known[name])]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    for name in damaged:
        tell(event="damaged", name=name)
    return not damaged


def keep_origin(folder, stamps):
    with open(folder / ORIGIN, "w", encoding="utf-8") as file:
        json.dump({"stamps": stamps, "contents": {name: contents(folder / name) for name in stamps}}, file)
        file.flush()
        os.fsync(file.fileno())


def main():
    request = json.loads(os.environ.pop("BIMETAL_FETCH"))
    into = pathlib.Path(request["into"])
    files, root = open_url(request["url"])
    found = [find(files, root, name) for name in request["names"]]
    stamps = {name: stamp(info) for name, _, info in found}
    if is_current(pathlib.Path(request["current"]), stamps):
        tell(event="unchanged")
        return
    tell(event="total", bytes=sum(info.get("size") or 0 for _, _, info in found))
    for name, path, info in found:
        fetch(files, path, info.get("size"), into / name)
    keep_origin(into, stamps)
    tell(event="complete")


try:
    main()
except Exception as error:
    fail("system", f"{type(error).__name__}: {error}")
