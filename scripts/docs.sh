#!/usr/bin/env bash
# docs.sh [FOLDER]: builds the documentation's site in FOLDER/docs, by mkdocs in an environment of its own (FOLDER/docs-venv).
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
git ls-files --cached --others --exclude-standard '*.md' 'docs/*' 'examples/*' LICENSE 'src/bimetal/api/*.h' 'src/bimetal/capi/*.h' \
    src/bimetal/data/text/token_file.h 'tests/accelerator/test_*.py' |
  while read -r file; do
    [ -e "$file" ] || continue
    mkdir -p "$source/$(dirname "$file")"
    ln -s "$PWD/$file" "$source/$file"
  done

NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --strict --site-dir "$(realpath -m "$build/docs")"
echo "$build/docs/index.html"
