#!/usr/bin/env bash
# stamped.sh SUITE COMMAND…: runs a suite of tests whose result depends on few files.
#
# .ci/inputs/SUITE names these files, one git pathspec a line, ":!PATH" for what is none. Where the suite passes whole (nothing failed,
# nothing skipped) their hash is written to .ci/stamps/SUITE, with what was counted: commit it. With
# STAMPS=use, as in .ci/run, a suite whose stamp holds is left out and counts as skipped. Every suite's inputs
# include this script and its own list, so that changing what counts is a change, too. What no hash can know
# (newer Debian packages, another machine) is for CI_ALL=1 .ci/run.
set -uo pipefail
cd "$(dirname "$0")/.."
suite=$1
shift
stamp=.ci/stamps/$suite

if ! git rev-parse --git-dir >/dev/null 2>&1; then exec "$@"; fi  # sources without their history

mapfile -t specs < <(grep -Ev '^(#|$)' ".ci/inputs/$suite")
for spec in "${specs[@]}"; do
  if [ -z "$(git ls-files --cached --others --exclude-standard -- "${spec#:!}" | head -n 1)" ]; then
    echo "error: .ci/inputs/$suite names $spec, which is no file here: was it moved?" >&2
    exit 2
  fi
done

# The hash of the inputs as they lie here, committed or not.
inputs_hash() {
  git ls-files -z --cached --others --exclude-standard -- ".ci/inputs/$suite" scripts/stamped.sh "${specs[@]}" |
    sort -zu | while IFS= read -r -d '' file; do
      if [ -f "$file" ]; then sha256sum "$file"; fi
    done | sha256sum | cut -d' ' -f1
}

before=$(inputs_hash)
if [ "${STAMPS:-}" = use ] && [ "$(sed -n 's/^inputs: //p' "$stamp" 2>/dev/null)" = "$before" ]; then
  echo "left out: $suite, since nothing that it depends on (.ci/inputs/$suite) has changed since it passed:" \
    "$(sed -n 's/^passed: //p' "$stamp") tests"
  if [ -n "${BIMETAL_COUNTS:-}" ]; then echo "0 0 1" >>"$BIMETAL_COUNTS"; fi
  exit 0
fi

counts=$(mktemp)
trap 'rm -f "$counts"' EXIT
BIMETAL_COUNTS=$counts "$@"
status=$?
if [ -n "${BIMETAL_COUNTS:-}" ]; then cat "$counts" >>"$BIMETAL_COUNTS"; fi

read -r passed failed skipped < <(awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }' "$counts")
if [ "$status" -ne 0 ] || [ "$failed" -ne 0 ] || [ "$passed" -eq 0 ]; then exit "$status"; fi
if [ "$skipped" -ne 0 ]; then
  echo "no stamp for $suite: $skipped of its tests were skipped"
elif [ "$(inputs_hash)" != "$before" ]; then
  echo "no stamp for $suite: files that it depends on changed while it ran"
else
  mkdir -p .ci/stamps
  printf 'inputs: %s\npassed: %d\n' "$before" "$passed" >"$stamp"
fi
