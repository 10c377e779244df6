"""Run by the program (fetch_url.cpp) as `python -c`: brings a data set's files from a URL with fsspec.

BIMETAL_FETCH holds {"url", "names", "into", "current"} as JSON. What happens is told in lines of JSON:
{"event": "total", "bytes"}, and last {"event": "complete"}, {"event": "unchanged"} or
{"event": "error", "code", "message"}.
"""

import json
import os
import pathlib
import sys

# What the file systems say of a file that changes with it. The size alone is no proof.
STAMPS = ("ETag", "etag", "Last-Modified", "last_modified", "LastModified", "mtime", "updated", "generation",
          "md5Hash", "Content-MD5", "Digest", "ino")
ORIGIN = "origin.json"


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
        except Exception as error:  # some servers forbid what they do not have
            trouble = trouble or error
    if trouble is not None:
        raise trouble
    fail("invalid_argument", f"{root} has no {name} (nor {name}.gz)")


def stamp(info):
    return {key: str(info[key]) for key in ("size", *STAMPS) if info.get(key) is not None}


def is_current(folder, stamps):
    """Whether an earlier fetch brought just these files, and something other than the size says so."""
    try:
        earlier = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (earlier == stamps and all(len(known) > 1 for known in stamps.values())
            and all((folder / name).is_file() for name in stamps))


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
    for name, path, _ in found:
        files.get_file(path, str(into / name))
    (into / ORIGIN).write_text(json.dumps(stamps), encoding="utf-8")
    tell(event="complete")


try:
    main()
except Exception as error:
    fail("system", f"{type(error).__name__}: {error}")
