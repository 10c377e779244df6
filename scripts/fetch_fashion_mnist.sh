#!/usr/bin/env bash
# Downloads Fashion-MNIST to ~/.cache/bimetal/fashion-mnist and checks it against the MD5 sums that
# the data set's README publishes. Needed only where Debian's package dataset-fashion-mnist is not.
set -euo pipefail
target=${BIMETAL_DATA:-$HOME/.cache/bimetal}/fashion-mnist
base=http://fashion-mnist.s3-website.eu-central-1.amazonaws.com
mkdir -p "$target"

md5() { if command -v md5sum >/dev/null; then md5sum "$1" | cut -d' ' -f1; else command md5 -q "$1"; fi; }

while read -r sum name; do
  file=$target/$name
  if [ -e "$file" ] && [ "$(md5 "$file")" = "$sum" ]; then continue; fi
  echo "Downloading $name" >&2
  curl --fail --silent --show-error --location --retry 3 --max-time 300 -o "$file.part" "$base/$name"
  if [ "$(md5 "$file.part")" != "$sum" ]; then
    rm -f "$file.part"
    echo "error: $name from $base does not have the published checksum $sum; try again, or put the file into $target yourself" >&2
    exit 1
  fi
  mv "$file.part" "$file"
done <<'SUMS'
8d4fb7e6c68d591d4c3dfef9ec88bf0d train-images-idx3-ubyte.gz
25c81989df183df01b3e8a0aad5dffbe train-labels-idx1-ubyte.gz
bef4ecab320f06d8554ea6380940ec79 t10k-images-idx3-ubyte.gz
bb300cfdad3c16e7a12a480ee83cd310 t10k-labels-idx1-ubyte.gz
SUMS
