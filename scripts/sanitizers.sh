#!/usr/bin/env bash
# sanitizers.sh: the torch-free core built and tested under ThreadSanitizer and under AddressSanitizer with
# UndefinedBehaviorSanitizer, and its parsers fuzzed for a minute. Ends with a line that counts the tests.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=0 skipped=0
counts=$(mktemp)
trap 'rm -f "$counts"' EXIT
. scripts/closing_line.sh
. scripts/install_packages.sh

# sanitized PRESET TARGET [options of run_tests.py]: builds a preset of the core and runs its tests, each once.
sanitized() {
  local preset=$1 target=$2
  shift 2
  printf '\n== building %s\n' "$preset"
  mkdir -p "build-$preset"
  if scripts/build.sh "build-$preset" "$preset" "$target" >"build-$preset/build.log" 2>&1; then
    BIMETAL_COUNTS=$counts scripts/run_tests.py all "build-$preset" --once --name "core under $preset" "$@"
  else
    tail -n 40 "build-$preset/build.log"
    echo "failed: build of $preset"
    failed=$((failed + 1))
  fi
}

# libFuzzer comes with clang alone; here it is installed where that takes no more than saying so.
have_clang() {
  can_fuzz && return
  [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || return
  install_packages clang && install_packages "libclang-rt-$(clang++ -dumpversion | cut -d. -f1)-dev"
  can_fuzz
}

can_fuzz() {
  echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
    clang++ -fsanitize=fuzzer -x c++ -o /dev/null - 2>/dev/null
}

sanitized tsan all
sanitized asan-ubsan all
if have_clang; then
  sanitized fuzz fuzz_programs --label fuzz
else
  echo "skipped: fuzzing the parsers needs clang++ (the corpus has run as test Fuzz/Replay)"
  skipped=$((skipped + 1))
fi

read -r passed f s < <(awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }' "$counts")
failed=$((failed + f)) skipped=$((skipped + s))
closing_line sanitizers "$passed" "$failed" "$skipped"
