"""Parametrizations that the tests of several files share."""

import pytest

both_qos = pytest.mark.parametrize("qos", [1, 2])  # those that are acknowledged
every_qos = pytest.mark.parametrize("qos", [0, 1, 2])
either_version = pytest.mark.parametrize("version", [4, 5])
both_versions = pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5.0"])
