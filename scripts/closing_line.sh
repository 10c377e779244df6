# closing_line.sh, to be sourced: how the scripts that run tests end.
#
# closing_line NAME PASSED FAILED SKIPPED: prints the counts, after the name if there is one, and adds
# them to the file that BIMETAL_COUNTS names: .ci/run adds up what several scripts have run. Succeeds
# if something passed and nothing failed.
closing_line() {
  local name=$1 passed=$2 failed=$3 skipped=$4
  printf '\n%s%d passed, %d failed' "${name:+$name: }" "$passed" "$failed"
  if [ "$skipped" -gt 0 ]; then printf ', %d skipped' "$skipped"; fi
  printf '\n'
  if [ -n "${BIMETAL_COUNTS:-}" ]; then echo "$passed $failed $skipped" >>"$BIMETAL_COUNTS"; fi
  [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}
