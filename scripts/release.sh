#!/usr/bin/env bash
# release.sh BUILD_FOLDER [TORCH…]: the files of a release, into dist/: the source archive and the wheels, each installed into a clean
# environment and used there (scripts/test_wheels.sh: Linux, with Windows' library under Wine and ARM64's under qemu beside it; those for
# macOS are read), and SHA256SUMS. The program's wheel for Linux fits the torch of .venv; there is one for each other release of torch that
# is named, too. Of what is committed. Nothing is published. Ends with a line that counts the tests.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/closing_line.sh
. scripts/unittest_suite.sh

version=$(python3 scripts/check_release.py) || { echo "$version"; exit 1; }
if [ -n "$(git status --porcelain)" ]; then
  echo "error: there are changes that are not committed; a release is made of what is" >&2
  exit 1
fi
rm -rf dist
mkdir dist
archive=dist/bimetal-$version.tar.gz
# Without a time of its own, so that the same commit makes the same archive.
git archive --format=tar --prefix="bimetal-$version/" HEAD | gzip -n -9 >"$archive" || exit 1

counts=$(mktemp)
trap 'rm -f "$counts"' EXIT
# How a script ends that counts for itself; one that has failed before it could count is a failure.
part() {
  local before
  before=$(wc -l <"$counts")
  BIMETAL_COUNTS=$counts "$@" && return
  if [ "$(wc -l <"$counts")" -eq "$before" ]; then failed=$((failed + 1)); echo "failed: $*"; fi
}
part scripts/test_wheels.sh
part scripts/test_program_wheel.sh "$1"
if [ $# -gt 1 ]; then part scripts/program_wheels.sh "${@:2}"; fi
part scripts/portability.sh program
.venv/bin/python -m pip install --quiet --disable-pip-version-check 'scikit-build-core>=0.11' || exit 1
BIMETAL_SOURCE_ARCHIVE=$archive unittest_file 6000 tests/install/test_wheel.py

read -r p f s < <(awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }' "$counts")
if closing_line "release $version" $((passed + p)) $((failed + f)) $((skipped + s)); then
  (cd dist && sha256sum -- *.tar.gz *.whl >SHA256SUMS && cat SHA256SUMS)
else
  echo "no SHA256SUMS: what failed above is not to be released" >&2
  exit 1
fi
