#!/usr/bin/env python3
"""make_wheel.py TAG LIBRARY FOLDER: the Python package around one shared library of the C interface, as a wheel that any
torch fits: bimetal-VERSION-py3-none-TAG.whl in FOLDER. `make wheels` builds the libraries and calls this.

What needs the compiled extension (docs/install.md lists it) is left out.
"""

import base64
import hashlib
import pathlib
import sys
import zipfile

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "cmake"))
import torch_tag  # noqa: E402

PACKAGE = ROOT / "python" / "bimetal"
PARTS = ["__init__.py", "_core.py", "_errors.py", "_torch_check.py", "device.py", "process_group.py", "py.typed",
         "balance", "command", "hf", "library"]
OLDEST_TORCH = "2.4"
MOST_BYTES = 2 << 20
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # so that the same files make the same wheel


def package_files():
    for part in PARTS:
        path = PACKAGE / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield f"bimetal/{file.relative_to(PACKAGE).as_posix()}", file.read_bytes()


def metadata(version):
    readme = (ROOT / "README.md").read_text()
    return (f"Metadata-Version: 2.1\nName: bimetal\nVersion: {version}\n"
            "Summary: Trains one PyTorch model on unlike machines: a torch.distributed backend, and balanced unequal work\n"
            "License: Apache-2.0\nLicense-File: LICENSE\nRequires-Python: >=3.10\n"
            f"Requires-Dist: torch>={OLDEST_TORCH}\nDescription-Content-Type: text/markdown\n\n{readme}")


def files_of(tag, library):
    version = torch_tag.version()
    about = f"bimetal-{version}.dist-info"
    yield from package_files()
    yield "bimetal/_build.py", (f'"""What this package was built from. There is no extension in it."""\n\n'
                                f'VERSION = "{version}"\nTORCH = ""\n').encode()
    yield f"bimetal/{library.name}", library.read_bytes()
    yield f"{about}/METADATA", metadata(version).encode()
    yield f"{about}/WHEEL", ("Wheel-Version: 1.0\nGenerator: bimetal\nRoot-Is-Purelib: false\n"
                             f"Tag: py3-none-{tag}\n").encode()
    yield f"{about}/entry_points.txt", b"[console_scripts]\nbimetal = bimetal.command.__main__:main\n"
    yield f"{about}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes()


def record_line(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def make(tag, library, folder):
    version = torch_tag.version()
    target = folder / f"bimetal-{version}-py3-none-{tag}.whl"
    record = f"bimetal-{version}.dist-info/RECORD"
    lines = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, data in files_of(tag, library):
            wheel.writestr(entry(name, library), data)
            lines.append(record_line(name, data))
        wheel.writestr(entry(record, library), "".join(lines) + f"{record},,\n")
    return target


def entry(name, library):
    info = zipfile.ZipInfo(name, LONG_AGO)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = (0o100755 if name.endswith(library.name) else 0o100644) << 16
    return info


def main():
    tag, library, folder = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    wheel = make(tag, library, folder)
    size = wheel.stat().st_size
    print(f"{wheel}: {size} bytes")
    if size > MOST_BYTES:
        sys.exit(f"{wheel} is larger than {MOST_BYTES} bytes")


if __name__ == "__main__":
    main()
