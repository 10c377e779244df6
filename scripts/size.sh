#!/usr/bin/env bash
# size.sh [DETAIL]: how large the tree is, in lines that are neither blank nor comment, files, and the median of their lines (all
# lines counted). DETAIL "rooms" shows each folder of src/bimetal by itself, with the share of its files below 60 lines.
set -euo pipefail
cd "$(dirname "$0")/.."

# code PATTERN COMMENT FOLDER...: lines of code, files, median length of a file.
code() {
  local pattern=$1 comment=$2
  shift 2
  git ls-files -z -- "$@" | grep -zE "$pattern" | xargs -0r awk -v comment="^[ \t]*($comment.*)?$" '
    { lines[FILENAME]++ }
    $0 !~ comment { code[FILENAME]++ }
    END { for (i = 1; i < ARGC; i++) print lines[ARGV[i]] + 0, code[ARGV[i]] + 0 }' | sort -n | awk '
    { lines[NR] = $1; code += $2; small += $1 < 60 }
    END { printf "%7d lines %5d files, median %3d, %3d %% below 60\n", code, NR, lines[int((NR + 1) / 2)], NR ? 100 * small / NR : 0 }'
}
cpp='\.(h|cpp|c|mm)$'
for folder in src tests bench examples; do printf '%-22s' "$folder C++" && code "$cpp" // "$folder"; done
for folder in python tests bench examples scripts; do printf '%-22s' "$folder Python" && code '\.py$' '#' "$folder"; done
if [ "${1:-}" = rooms ]; then
  echo
  for room in src/bimetal/*/; do printf '%-22s' "$(basename "$room")" && code "$cpp" // "$room"; done
fi
