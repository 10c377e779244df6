#!/usr/bin/env bash
# test_page.sh BUILD_FOLDER: the page of a running job (docs/monitoring.md) in Debian's Chromium, driven by Selenium and
# looked at by axe-core, which it installs below the build folder. Ends with a line that counts the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
SELENIUM_VERSION=4.51.0 AXE_VERSION=0.1.8
. scripts/install_packages.sh
install_packages chromium chromium-driver fonts-dejavu-core
packages=$PWD/$1/page
if [ ! -d "$packages/selenium-$SELENIUM_VERSION.dist-info" ]; then
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --target "$packages" "selenium==$SELENIUM_VERSION"
fi
# A package that carries axe-core, which checks accessibility; without it that is left out.
if [ ! -d "$packages/axe_playwright_python-$AXE_VERSION.dist-info" ]; then
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target "$packages" "axe-playwright-python==$AXE_VERSION" || true
fi

set +e
. scripts/closing_line.sh
. scripts/unittest_suite.sh
export PYTHONPATH=$packages BIMETAL=$PWD/$1/bimetal BIMETAL_AXE=$packages/axe_playwright_python/axe.min.js
unittest_file 900 tests/page/test_page.py
closing_line "${BIMETAL_COUNTS:+tests in a browser}" "$passed" "$failed" "$skipped"
