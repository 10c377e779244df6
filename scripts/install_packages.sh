# install_packages.sh, to be sourced.
#
# install_packages PACKAGE…: installs those of Debian's packages that are missing; nothing is asked of
# the network where none is.
install_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  printf 'Installing Debian packages: %s\n' "${missing[*]}" >&2
  local as_root=() lock=(-o DPkg::Lock::Timeout=300)
  if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
  "${as_root[@]}" apt-get "${lock[@]}" update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get "${lock[@]}" install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}
