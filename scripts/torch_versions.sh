# torch_versions.sh, to be sourced: releases of torch as people install them, each by pip into an environment of its own, which is
# removed afterwards (a CUDA build takes up to 8 GB). After closing_line.sh and unittest_suite.sh.

places=build-torch-versions

# install_torch VERSION PLACE [PACKAGE…]
install_torch() {
  local version=$1 place=$2
  shift 2
  "${base:-python3}" -m venv "$place" || return
  # An exact release is asked for: a constraint of the environment is not meant. Nothing is kept in pip's cache.
  PIP_CONSTRAINT=/dev/null "$place/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
    "torch==$version" numpy "$@" ${BIMETAL_TORCH_INDEX:+--extra-index-url "$BIMETAL_TORCH_INDEX"}
}

# with_torches NAME COMMAND VERSION…: COMMAND VERSION PLACE in each one's turn, with PYTHON set, which adds to passed, failed and skipped
# (unittest_file). Ends with a table and the line that counts, called NAME.
with_torches() {
  local name=$1 use=$2 version place before table=()
  shift 2
  base=${PYTHON:-python3}
  mkdir -p "$places"
  for version in "$@"; do
    printf '\n==== torch %s\n' "$version"
    place=$places/$version
    rm -rf "$place"
    before=("$passed" "$failed" "$skipped")
    if install_torch "$version" "$place" "${beside_torch[@]}"; then
      PYTHON=$place/bin/python "$use" "$version" "$place"
    else
      echo "failed: torch $version could not be installed for $("$base" --version)"
      failed=$((failed + 1))
    fi
    rm -rf "$place"
    table+=("torch $version: $((passed - before[0])) passed, $((failed - before[1])) failed, $((skipped - before[2])) skipped")
  done
  rm -rf "$places"
  printf '\n'
  printf '%s\n' "${table[@]}"
  closing_line "${BIMETAL_COUNTS:+$name}" "$passed" "$failed" "$skipped"
}
