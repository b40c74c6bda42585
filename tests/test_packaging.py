"""What an installed pybroker needs and says."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import broker

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_nothing_is_needed_at_run_time(project: dict[str, Any]) -> None:
    assert project["project"]["dependencies"] == []
    assert project["project"]["requires-python"] == ">=3.11"


def test_what_spark_needs_is_an_extra_and_the_tests_bring_it(project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    assert "pyspark>=4.2,<4.4" in extras["spark"]
    assert extras["delta"] == ["deltalake>=1.6"]
    assert "pybroker[delta,spark]" in extras["test"]


def test_the_version_is_told_once(project: dict[str, Any]) -> None:
    assert broker.__version__ == project["project"]["version"]


def test_types_are_published(project: dict[str, Any]) -> None:
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["broker", "spark"]
    assert (ROOT / "broker" / "py.typed").is_file()


def test_the_command_is_the_entry_point(project: dict[str, Any]) -> None:
    module, _, name = project["project"]["scripts"]["pybroker"].partition(":")
    assert (module, name) == ("broker.__main__", "main")


def test_the_lock_file_of_the_end_to_end_tests_names_no_registry() -> None:
    lock = (ROOT / "tests" / "end_to_end" / "js" / "package-lock.json").read_text()
    assert '"resolved"' not in lock


def test_names_of_the_front_door() -> None:
    assert [name for name in broker.__all__ if not hasattr(broker, name)] == []
