#!/usr/bin/env bash
# vendor_nccl.sh FOLDER: compiles src/bimetal/c10d/vendor_nccl.cpp and device/graph_cuda.cpp, which builds
# on libtorch without CUDA leave out, against the CUDA headers that torch's every wheel has, and NVIDIA's own of the CUDA
# runtime and NCCL (PyPI's packages, by SHA-256). Nothing is linked, and no device is needed.
set -euo pipefail
PACKAGES="
nvidia-cuda-runtime==13.5.37 --hash=sha256:df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d
nvidia-cuda-crt==13.5.37 --hash=sha256:e898b7f73d3035fa89915a3f7bf3b54a73e90249746111aed295822c4729bb29
nvidia-cuda-cccl==13.3.5.0.6 --hash=sha256:d5230098fa2df5021e1a00c0c4eee41797671a91119d31e892463e5ccf3ee326
nvidia-nccl-cu13==2.32.3 --hash=sha256:1459723080ac889d73a26edfa3e04383a7928ab31ac8f0ec43b3ea9548b04ff3
"
folder=$(realpath "$1")
cd "$(dirname "$0")/../.."
target=$folder/cuda
here=$PWD/tests/portability
torch=$(.venv/bin/python -c 'import torch; print(torch.__path__[0])' 2>/dev/null) || {
  echo "no torch in .venv (make setup)"
  exit 77
}

fetch() {
  local version
  version=$(sha256sum <<<"$PACKAGES")
  if [ -e "$target/.unpacked-${version%% *}" ]; then return; fi
  rm -rf "$target"
  mkdir -p "$target/wheels"
  printf '%s' "$PACKAGES" >"$target/packages.txt"
  "$folder/venv/bin/pip" download --quiet --disable-pip-version-check --require-hashes --no-deps \
    --only-binary=:all: --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64 \
    --dest "$target/wheels" -r "$target/packages.txt"
  python3 - "$target" <<'PY'
import glob, sys, zipfile
for name in glob.glob(sys.argv[1] + "/wheels/*.whl"):
    with zipfile.ZipFile(name) as wheel:
        wheel.extractall(sys.argv[1], [entry for entry in wheel.namelist() if "/include/" in entry])
PY
  rm -r "$target/wheels"
  touch "$target/.unpacked-${version%% *}"
}

# What CUDA's libraries for mathematics would bring, and what torch's own build for CUDA generates.
rest() {
  local header
  mkdir -p "$target/rest/c10/cuda/impl"
  for header in cublas_v2 cublasLt cusparse cusolverDn cusolver_common; do
    echo "#include \"$here/cuda_math_types.h\"" >"$target/rest/$header.h"
  done
  echo '#define C10_CUDA_BUILD_SHARED_LIBS' >"$target/rest/c10/cuda/impl/cuda_cmake_macros.h"
}

fetch
rest
include=()
for path in "$torch/include" "$torch/include/torch/csrc/api/include" "$target/rest" \
  "$target"/nvidia/*/include; do
  include+=(-isystem "$path")
done
"${CXX:-c++}" -std=c++20 -fsyntax-only -Wall -Wextra -Wpedantic -Wno-unused-parameter -Werror \
  -DUSE_C10D_NCCL -DUSE_DISTRIBUTED -DASIO_STANDALONE -DFMT_HEADER_ONLY -Isrc "${include[@]}" \
  src/bimetal/c10d/vendor_nccl.cpp src/bimetal/device/graph_cuda.cpp
echo "vendor_nccl.cpp and graph_cuda.cpp compile against NCCL $(sed -n 's/^#define NCCL_\(MAJOR\|MINOR\|PATCH\) *//p' \
  "$target/nvidia/nccl/include/nccl.h" | paste -sd.)"
