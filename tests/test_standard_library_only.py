"""`broker` runs on the standard library alone; uvloop is asked for in one place, and may be missing."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

BROKER = Path(__file__).parent.parent / "broker"
OPTIONAL = {"__main__.py": {"uvloop"}}


def packages(tree: ast.AST) -> set[str]:
    """The first name of everything that *tree* imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


def guarded(tree: ast.AST) -> set[str]:
    """The packages that *tree* imports only where it also handles their absence."""
    tries = [node for node in ast.walk(tree) if isinstance(node, ast.Try)]
    handling = [node for node in tries if any(map(is_for_absence, node.handlers))]
    return {name for node in handling for child in node.body for name in packages(child)}


def is_for_absence(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.type, ast.Name) and handler.type.id == "ImportError"


@pytest.mark.parametrize("file", sorted(BROKER.rglob("*.py")), ids=lambda file: str(file.relative_to(BROKER)))
def test_a_module_imports_the_standard_library_and_us(file: Path) -> None:
    tree = ast.parse(file.read_text())
    others = packages(tree) - sys.stdlib_module_names - {"broker"}
    assert others <= OPTIONAL.get(str(file.relative_to(BROKER)), set())
    assert others <= guarded(tree), "an optional package must be imported under `except ImportError`"
