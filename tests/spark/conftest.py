"""Fixtures: `spark`, one session for all tests that run one after the other in this process."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
EXTRAS = ("pyspark", "pyarrow", "deltalake")


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One group of all that use one session: `--dist loadgroup` gives it to one process, with one JVM.

    Those that start a JVM of their own, or none, may run beside them.
    """
    for item in items:
        if HERE in item.path.parents:
            if "spark" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group("spark"))
            slow = item.get_closest_marker("slow") is not None
            item.add_marker(pytest.mark.timeout(900 if slow else 300))


@pytest.fixture(autouse=True, scope="session")
def extras() -> None:
    for name in EXTRAS:
        try:
            importlib.import_module(name)
        except ImportError as error:
            pytest.exit(f"tests/spark need {name}: pip install 'pybroker[test]' ({error})", 1)


@pytest.fixture(scope="session")
def spark(extras: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of spark.session, its warehouse and temporary files in a folder of this run."""
    from spark.session import Refused, build

    folder = tmp_path_factory.mktemp("spark")
    conf = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder)}
    conf |= {"spark.driver.extraJavaOptions": jvm.options(), **jvm.INTERPRETED}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYSPARK_PYTHON", "PYTHONPATH"):
            if name in os.environ:
                patch.setenv(name, os.environ[name])
            else:
                patch.delenv(name, raising=False)
        try:
            session = build("tests", conf=conf)
        except Refused as refused:
            pytest.fail(f"{refused}. tests/install.sh installs it", pytrace=False)
        yield session
        session.stop()
