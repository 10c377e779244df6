"""Writes a wheel: a zip file of files, with what pip wants to know of them beside (PEP 427). Names, texts and the version are
the project's own, from pyproject.toml and CMakeLists.txt."""

import base64
import hashlib
import pathlib
import sys
import tomllib
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "cmake"))
import torch_tag  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = torch_tag.version()
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # so that the same files make the same wheel


def write(folder, name, tag, files, *, version=VERSION, executable=(), needs=(), extras=(), entry_points="", summary=PROJECT["description"]):
    """NAME-VERSION-py3-none-TAG.whl in `folder`.

    Args:
        files: pairs of a path in the wheel and its bytes.
        executable: the paths of those that are loaded or run.
        needs: other packages, as Requires-Dist has them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    about = f"{module}-{version}.dist-info"
    target = folder / f"{module}-{version}-py3-none-{tag}.whl"
    files = [*files, (f"{about}/METADATA", metadata(name, version, summary, needs, extras).encode()),
             (f"{about}/WHEEL", f"Wheel-Version: 1.0\nGenerator: bimetal\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n".encode()),
             (f"{about}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes())]
    if entry_points:
        files.append((f"{about}/entry_points.txt", entry_points.encode()))
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for path, data in files:
            wheel.writestr(entry(path, path in executable), data)
        lines = [record_line(path, data) for path, data in files]
        wheel.writestr(entry(f"{about}/RECORD", False), "".join([*lines, f"{about}/RECORD,,\n"]))
    return target


def metadata(name, version, summary, needs, extras):
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", f"Summary: {summary}",
             f"License: {PROJECT['license']}", "License-File: LICENSE", f"Requires-Python: {PROJECT['requires-python']}",
             *(f"Requires-Dist: {need}" for need in needs), *(f"Provides-Extra: {extra}" for extra in extras),
             "Description-Content-Type: text/markdown", "", (ROOT / "README.md").read_text()]
    return "\n".join(lines)


def record_line(path, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}\n"


def entry(path, executable):
    info = zipfile.ZipInfo(path, LONG_AGO)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = (0o100755 if executable else 0o100644) << 16
    return info
