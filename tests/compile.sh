#!/usr/bin/env bash
# Builds a wheel with compiled modules and installs it in an environment of its own, which borrows what the
# tests need from .venv, beside a folder where `broker` is what was installed: the sources of this tree are
# not in the way there. tests/compiled.sh runs tests in that folder.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD/build/compiled
venv=$root/venv

rm -rf "$root"
mkdir -p "$root/tree"
PYBROKER_COMPILE=1 .venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w "$root/dist" .
.venv/bin/python -m venv --without-pip "$venv"
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
.venv/bin/python -m pip --python "$venv/bin/python" install --quiet --disable-pip-version-check --no-deps "$root"/dist/*.whl
.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$packages/tests.pth"

cp -a tests docs examples benchmarks ./*.md ./*.py pyproject.toml Makefile "$root/tree"
ln -s "$packages/broker" "$packages/spark" "$root/tree"
