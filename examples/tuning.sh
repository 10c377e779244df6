#!/usr/bin/env bash
# Searches learning rate and momentum of the example's CNN, most trials stopped early, and trains an ensemble with the best
# of them (docs/tuning.md):
#
#     examples/tuning.sh runs/tuned
#     examples/tuning.sh runs/tuned --worker cuda:0 --ray    options for both commands follow the folder
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${1:?usage: $0 FOLDER [OPTION…], the folder being new}
shift
bimetal=${BIMETAL_PROGRAM:-build/bimetal}
mkdir -p "$folder"

"$bimetal" tune examples/fashion_mnist.toml --set train.epochs=4 \
  --random train.learning_rate=log:1e-3..2e-1 train.momentum=0.5..0.98 --trials 8 \
  --asha --reduction 2 --report "$folder/search.json" "$@"

# One --set for each key of the best trial.
best=$(sed -n '/^  "best": {/,/^  },\{0,1\}$/p' "$folder/search.json" |
  sed -n 's/^ *"\(train\.[a-z_]*\)": \(.*[^,]\),\{0,1\}$/--set \1=\2/p')

# shellcheck disable=SC2086  # words, of which none has a blank
"$bimetal" ensemble examples/fashion_mnist.toml --set train.epochs=4 $best --members 3 \
  --dir "$folder/ensemble" --report "$folder/ensemble.json" "$@"
