"""The documents tell the truth where a program can tell: settings, links, code, no path of one machine."""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker import Broker, Config, ConfigError
from broker import config as settings
from broker.__main__ import changed, flat_settings
from broker.config import Between, Setting, every_setting, load
from broker.transport.listen import DEFAULT_PORTS, UNIX_PATH_MAXIMUM, parse_address

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("*/README.md")]
CONFIGURATION = ROOT / "docs" / "configuration.md"
TRANSPORTS = ROOT / "docs" / "transports.md"
ids = [str(path.relative_to(ROOT)) for path in DOCUMENTS]


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


# ---- docs/configuration.md


def rows() -> dict[str, tuple[str, str, str]]:
    """Key -> (default, allowed, meaning), as the tables have them."""
    cells = [
        line.strip("| \n").split(" | ")
        for line in CONFIGURATION.read_text().splitlines()
        if line[:3] == "| `"
    ]
    assert all(len(row) == 4 for row in cells), "a row has four cells"
    keys = [row[0].strip("`") for row in cells]
    assert len(keys) == len(set(keys)), "a key stands there once"
    return {key: (row[1], row[2], row[3]) for key, row in zip(keys, cells, strict=True)}


def allowed_words(setting: Setting) -> list[str]:
    """What the cell must say of the values that may be."""
    if isinstance(setting.rule, Between):
        return [f"{border:.15g}" for border in setting.rule if border != float("inf")]
    if setting.type is bool:
        return ["true", "false"]
    rule = str(setting.rule or "")
    return re.findall(r'"([^"]+)"', rule) if rule.startswith("one of") else []


def test_every_setting_stands_there_and_nothing_else() -> None:
    assert set(rows()) == set(every_setting())


@pytest.mark.parametrize("key", every_setting())
def test_its_default_and_what_it_may_be(key: str) -> None:
    default, allowed, meaning = rows()[key]
    if key == "capacity.fast_lane" and not Config().capacity.fast_lane:
        default = "`false`"  # tests/conftest.py has switched it off
    assert default == f"`{settings.shown(flat_settings(Config())[key])}`"
    for word in allowed_words(every_setting()[key]):
        assert re.search(rf"(?<![\w.]){re.escape(word)}(?![\w.])", allowed), (
            f"{allowed!r} does not say {word}"
        )
    assert len(meaning) > 10


def test_each_section_has_a_heading_above_its_keys() -> None:
    section, found = "", set()
    for line in CONFIGURATION.read_text().splitlines():
        if line.startswith("## "):
            section = line[3:].strip("[]")
        elif line.startswith("| `") and "." in line.split("`")[1]:
            assert line.split("`")[1].startswith(section + "."), line
            found.add(section)
    assert found == set(settings.sections())


def test_the_ways_to_give_one_are_these(tmp_path: Path) -> None:
    text = CONFIGURATION.read_text()
    flag = re.search(r"`--set (limits\.\S+)`", text)
    variable = re.search(r"`(PYBROKER_LIMITS\w+)=(\d+)`", text)
    assert flag and variable
    assert load(None, {}, [flag[1]]).limits.receive_maximum == 20
    assert load(None, {variable[1]: variable[2]}).limits.receive_maximum == 20
    assert f"`{settings.CONFIG_VARIABLE}`" in text
    for word, value in settings.SWITCH.items():
        assert not value or f"`{word}`" in text
    file = tmp_path / "broker.toml"
    file.write_text("[limits]\nrecieve_maximum = 20\n")
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert f"pybroker: {str(caught.value).replace(str(file), 'broker.toml')}\n" in text


TOML = [(path.name, block) for path in (CONFIGURATION, TRANSPORTS) for block in blocks(path, "toml")]


@pytest.mark.parametrize(("name", "block"), TOML, ids=lambda each: each[:20])
def test_the_files_that_are_shown_can_be_read(name: str, block: str, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(block)
    config = load(file, {})
    assert changed(config).keys() == set(flat(tomllib.loads(block)))


def flat(document: dict[str, object]) -> Iterator[str]:
    for name, value in document.items():
        yield from (f"{name}.{key}" for key in value) if isinstance(value, dict) else [name]


# ---- docs/transports.md


def test_the_addresses_and_their_ports() -> None:
    table = dict(re.findall(r"^\| `(\w+)://\S+` \| .* \| (\d+) \|$", TRANSPORTS.read_text(), re.MULTILINE))
    assert {scheme: int(port) for scheme, port in table.items()} == DEFAULT_PORTS
    assert f"at most {UNIX_PATH_MAXIMUM} bytes" in TRANSPORTS.read_text()
    for url in re.findall(r"`((?:tcp|tls|ws|wss)://[^`/]+)`", TRANSPORTS.read_text()):
        if url != "tcp://host:port" and ":port" not in url:
            parse_address(url)


# ---- every document


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = Path(os.path.normpath(path.parent / file)) if file else path
        assert there.exists() and there.is_relative_to(ROOT), f"{path.name}: {target}"
        assert not anchor or anchor in anchors(there), f"{path.name}: {target}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_python_in_it_is_python(path: Path) -> None:
    for block in blocks(path, "python"):
        compile(block, path.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_documents_name_only_what_a_broker_has() -> None:
    for path in DOCUMENTS:
        for name in re.findall(r"\bbroker\.(\w+)\(", path.read_text()):
            assert hasattr(Broker, name), f"{path.name}: broker.{name}()"


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_keys_that_a_document_names_are_settings(path: Path) -> None:
    names = "|".join(settings.sections())
    for key in re.findall(rf"`(?:--set )?((?:{names})\.[a-z_0-9]+)(?:=[^`]*)?`", path.read_text()):
        assert key in every_setting() or key.endswith("_") or key.split(".")[1] in ("md", "py", "toml"), key


# ---- the whole tree

MADE = {".git", ".venv", "node_modules", "__pycache__", "build", "dist", ".fuzz"}
# Split, so that this file does not find itself.
MACHINE = re.compile(r"(?<![\w.\-~/])/(?:wo" r"rk|ro" r"ot|ho" r"me/\w+|Us" r"ers/\w+)/|/tm" r"p/")


def tree() -> Iterator[Path]:
    """The files of the project, without what its commands make."""
    waiting = [ROOT]
    while waiting:
        for path in waiting.pop().iterdir():
            made = (
                path.name in MADE or path.name.endswith((".egg-info", "_cache")) or path.name == ".hypothesis"
            )
            if not made:
                waiting += [path] if path.is_dir() and not path.is_symlink() else []
                yield from [path] if path.is_file() else []


def test_no_file_has_a_path_of_one_machine() -> None:
    seen = 0
    for path in tree():
        data = path.read_bytes()
        if b"\0" in data[:8192]:
            continue  # a program that was built here
        text = data.decode("utf-8", "replace")
        found = MACHINE.search(text)
        assert found is None, (
            f"{path.relative_to(ROOT)}: {text[max(0, found.start() - 30) : found.end() + 30]!r}"
        )
        seen += 1
    assert seen > 100
