"""Which build is tested: TESTED_BUILD says "compiled", or nothing when the sources are meant.

tests/compile.sh makes the compiled one.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import broker

ROOT = Path(__file__).parent.parent
COMPILED = os.environ.get("TESTED_BUILD") == "compiled"
EXTENSIONS = tuple(importlib.machinery.EXTENSION_SUFFIXES)
WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
MODULES = WHEEL["hooks"]["custom"]["modules"]  # globs

FILES = sorted(path for path in (ROOT / "broker").rglob("*.py") if path.name != "__main__.py")
LISTED = {path for each in MODULES for path in ROOT.glob(each)}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_the_modules_are_those_of_the_build_that_is_meant(path: Path) -> None:
    module = importlib.import_module(name_of(path))
    compiled = COMPILED and path in LISTED and path.name != "__init__.py"
    assert (module.__file__ or "").endswith(EXTENSIONS) is compiled


def test_every_glob_finds_something() -> None:
    assert [each for each in MODULES if not list(ROOT.glob(each))] == []


def test_another_process_has_the_same_build(tmp_path: Path) -> None:
    """Also where the current folder is not that of the tests, as long as it is told where they are."""
    command = [sys.executable, "-c", "import broker.packet.wire as wire; print(wire.__file__)"]
    environment = {**os.environ, "PYTHONPATH": str(Path(broker.__file__).parents[1])}
    for folder in (ROOT, tmp_path):
        said = subprocess.check_output(command, cwd=folder, env=environment, text=True, timeout=30)
        assert said.strip().endswith(EXTENSIONS) is COMPILED


# By tests.
REPLACED = {
    "CACHED_SUBSCRIPTIONS", "ENOUGH", "ENOUGH_BYTES", "KNOWN", "MOST_FAST", "SHARE", "_FIRST_BYTES", "_HEADS",
}  # fmt: skip


@pytest.mark.parametrize("path", sorted(LISTED), ids=name_of)
def test_constants_of_compiled_modules_are_final(path: Path) -> None:
    """Else each use is a look into a dictionary."""
    plain = [
        target.id
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) or (isinstance(node, ast.AnnAssign) and node.value)
        if not (isinstance(node, ast.AnnAssign) and "Final" in ast.unparse(node.annotation))
        for targets in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for target in ast.walk(targets)
        if isinstance(target, ast.Name) and re.fullmatch(r"_?[A-Z][A-Z0-9_]+", target.id)
    ]
    assert set(plain) <= REPLACED
