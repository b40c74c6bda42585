#!/usr/bin/env bash
# Runs tests on what tests/compile.sh has made: tests/compiled.sh [what to give to pytest].
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD/build/compiled
cd "$root/tree"
TESTED_BUILD=compiled exec "$root/venv/bin/python" -m pytest -p no:cacheprovider "${@:-tests}"
