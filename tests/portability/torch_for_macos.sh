#!/usr/bin/env bash
# torch_for_macos.sh FOLDER: torch's wheel for macOS on Apple silicon, checked against the sum below;
# its headers, libraries and CMake files go to FOLDER/torch-macos/torch.
set -euo pipefail
TORCH_VERSION=2.13.0
TORCH_SHA256=e76f9bcecc52b8ff711239a2f7547d5353df95878ab232f0773c1d95928b92f8
folder=$(realpath "$1")
target=$folder/torch-macos

if [ ! -e "$target/.unpacked-$TORCH_VERSION" ]; then
  rm -rf "$target"
  mkdir -p "$target"
  printf 'torch==%s --hash=sha256:%s\n' "$TORCH_VERSION" "$TORCH_SHA256" >"$target/wheel.txt"
  "$folder/venv/bin/pip" download --quiet --disable-pip-version-check --require-hashes --no-deps \
    --only-binary=:all: --platform macosx_14_0_arm64 --python-version 3.11 --implementation cp --abi cp311 \
    --dest "$target" -r "$target/wheel.txt"
  python3 - "$target" <<'PY'
import glob, re, sys, zipfile
target = sys.argv[1]
wanted = re.compile(r"torch/(include/|share/cmake/|lib/.*\.dylib$)")
with zipfile.ZipFile(glob.glob(target + "/*.whl")[0]) as wheel:
    wheel.extractall(target, [name for name in wheel.namelist() if wanted.match(name)])
PY
  rm "$target"/*.whl
  touch "$target/.unpacked-$TORCH_VERSION"
fi
echo "torch $TORCH_VERSION for macOS"
