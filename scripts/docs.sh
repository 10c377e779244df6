#!/usr/bin/env bash
# docs.sh [FOLDER]: builds the documentation's site in FOLDER/docs, by mkdocs in an environment of its own (FOLDER/docs-venv), and
# the reference of the public headers in it, by Doxygen.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
venv=$build/docs-venv source=build/docs-source

if ! cmp -s docs/requirements.txt "$venv/requirements.txt"; then
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
  cp docs/requirements.txt "$venv/"
fi

# The pages and what they link to, at the paths that they have in the repository.
rm -rf "$source"
mkdir -p "$source"
git ls-files --cached --others --exclude-standard '*.md' 'bench/*' 'docs/*' 'examples/*' LICENSE 'src/bimetal/api/*.h' 'src/bimetal/capi/*.h' \
    src/bimetal/data/text/token_set.h 'tests/accelerator/test_*.py' 'tests/unit/train/waits*_test.cpp' |
  while read -r file; do
    [ -e "$file" ] || continue
    mkdir -p "$source/$(dirname "$file")"
    ln -s "$PWD/$file" "$source/$file"
  done

NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --strict --site-dir "$(realpath -m "$build/docs")"

# The public headers, as they are installed.
command -v doxygen > /dev/null || { . scripts/install_packages.sh && install_packages doxygen; }
headers=$(realpath -m "$build/docs-headers") reference=$build/docs/docs/reference/doxygen
version=$(sed -n 's/^project(bimetal VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
rm -rf "$headers"
mkdir -p "$headers/binary/include/bimetal" "$reference"
IFS=. read -r major minor patch <<< "$version"
sed -e "s/@PROJECT_VERSION@/$version/; s/@PROJECT_VERSION_MAJOR@/$major/; s/@PROJECT_VERSION_MINOR@/$minor/; s/@PROJECT_VERSION_PATCH@/$patch/" \
  src/bimetal/version.h.in > "$headers/binary/include/bimetal/version.h"
cmake -DCMAKE_INSTALL_PREFIX="$headers" "-DBIMETAL_HEADERS=bimetal/capi/bimetal_c.h;bimetal/core.h;bimetal/bimetal.h" -DBIMETAL_SOURCES="$PWD/src" \
  -DBIMETAL_BINARY="$headers/binary" -DBIMETAL_INCLUDEDIR=include -P cmake/install_headers.cmake > /dev/null
{ cat docs/reference/Doxyfile; printf '%s\n' "INPUT = $headers/include" "STRIP_FROM_PATH = $headers/include" "OUTPUT_DIRECTORY = $reference"; } | doxygen -
echo "$build/docs/index.html"
