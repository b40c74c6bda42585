"""The compiled build: with PYBROKER_COMPILE=1 a wheel has modules named in pyproject.toml as C extensions.

Without it nothing more is needed than hatchling, and the wheel is pure Python. See docs/compiled.md.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

REQUIRES = ["mypy[mypyc]>=2.0"]


class CompileHook(BuildHookInterface):
    """Compiles with mypyc, and adds what comes out to the wheel, next to the sources."""

    @property
    def wanted(self) -> bool:
        return os.environ.get("PYBROKER_COMPILE", "0") not in ("", "0")

    def dependencies(self) -> list[str]:
        return REQUIRES if self.wanted else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not self.wanted:
            return
        if version == "editable":
            raise RuntimeError("PYBROKER_COMPILE=1: an editable install is not compiled")
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        for file in compile_modules(self.config["modules"], folder):
            build_data["force_include"][str(file)] = str(file.relative_to(folder / "lib"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self.wanted:
            self._folder.cleanup()


def compile_modules(modules: list[str], folder: Path) -> list[Path]:
    """The extensions of *modules*, globs from the root of the tree; they are made in `lib` below *folder*."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    paths = sorted(str(path) for each in modules for path in Path().glob(each) if path.name != "__init__.py")
    # mypy's own settings are for `make check`; here it need only know the types.
    options = ["--config-file=", f"--cache-dir={folder / 'types'}"]
    sources = str(folder / "c")
    extensions = mypycify([*options, *paths], debug_level="0", target_dir=sources, group_name="pybroker")
    command = build_ext(Distribution({"name": "pybroker", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(folder / "lib"), str(folder / "objects")
    command.ensure_finalized()
    command.run()
    return [Path(name) for name in command.get_outputs()]
