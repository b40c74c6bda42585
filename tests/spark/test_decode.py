"""bronze -> silver, on tables of a few rows: rules, types that widen, quarantine, batches done again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark.silver.rules import rules_of
from spark.silver.sparkplug import CODES, Metric, Payload, encode
from tests.spark import jvm
from tests.spark.bronze import NOON, SECOND, gap, said
from tests.spark.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.decode import Decoder


class Decoded(Lake):
    """What became of the messages that were put in."""

    def decoder(self, *rules: dict[str, Any], max_records: int = 1000) -> Decoder:
        from spark.decode import Decoder

        return Decoder(self.spark, self.out, rules_of({"rule": list(rules)}), self.layout, max_records)

    def values(self, rule: str) -> list[Any]:
        """`value` of the newest type, by offset; structs as dictionaries."""
        from spark.silver.tables import read_wide

        wide = read_wide(self.spark, self.out, rule)
        rows = [] if wide is None else wide.orderBy("node", "epoch", "offset").collect()
        return [row.value.asDict(True) if hasattr(row.value, "asDict") else row.value for row in rows]

    def quarantined(self) -> dict[int, str]:
        """Reasons by offset."""
        from spark.silver.tables import PAYLOADS, payloads_table

        found = payloads_table(self.out).read(self.spark, PAYLOADS).collect()
        assert len({row.offset for row in found}) == len(found)
        return {row.offset: row.reason for row in found}

    def points(self, topic: str) -> dict[str, tuple[float | None, str | None]]:
        from spark.silver.tables import POINTS, points_table

        found = points_table(self.out).read(self.spark, POINTS).filter(f"topic = '{topic}'").collect()
        assert len({(row.field, row.offset) for row in found}) == len(found)
        return {row.field: (row.number, row.text) for row in found}

    def types(self, rule: str) -> list[str]:
        folder = self.out / "_schemas" / rule
        return [(folder / f"{n}.ddl").read_text().strip() for n in range(1, len(list(folder.iterdir())) + 1)]


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Decoded]:
    yield Decoded(spark, tmp_path)


RULE = {"name": "r", "filter": "#", "format": "json"}
DEEP = "[" * 10_000 + "]" * 10_000
DEEP_OBJECT = '{"a":' * 10_000 + "1" + "}" * 10_000
MISFIT = "JSON that does not fit the schema"
QUARANTINE = [  # payload, reason in an inferred rule, reason in a declared rule; None: it is read
    pytest.param(b"\xff\xfe{}", "not UTF-8", "not UTF-8", id="not UTF-8"),
    pytest.param(b"", "empty", "empty", id="empty"),
    pytest.param(b" ", "not JSON", "not JSON", id="blank"),
    pytest.param(b'{"v":"' + b"x" * 5_000 + b'"}', "more than 4000 bytes", "more than 4000 bytes", id="huge"),
    pytest.param(b'{"v":1,"v":2}', None, None, id="duplicate keys"),
    pytest.param(b'{"v":NaN}', "not JSON", "not JSON", id="NaN"),
    pytest.param(DEEP.encode()[:3_900], "not JSON", "not JSON", id="deep and torn"),
    pytest.param(b'{"v":18446744073709551617}', None, MISFIT, id="over 2^63"),
    pytest.param(b'{"v":1e999}', None, MISFIT, id="over a double"),
    pytest.param(b'{"v":', "not JSON", "not JSON", id="torn"),
    pytest.param(b"[1]", MISFIT, MISFIT, id="an array"),
    pytest.param(b"null", MISFIT, MISFIT, id="null"),
    pytest.param(b'{"__bad":1}', None, None, id="a field of ours"),
]


@pytest.fixture(scope="module")
def quarantined(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All cases at once, each for both kinds of rules, beside good payloads: reasons and values by offset."""
    lake = Decoded(spark, tmp_path_factory.mktemp("quarantine"))
    cases = {str(case.id): case.values[0] for case in QUARANTINE}
    rows = [said(2 * n, "inferred", raw) for n, raw in enumerate(cases.values())]
    rows += [said(2 * n + 1, "declared", raw) for n, raw in enumerate(cases.values())]
    rows += [said(100, "inferred", '{"v":1}'), said(101, "declared", '{"v":1}')]
    rows += [said(102, "deep", DEEP), said(103, "deep", DEEP_OBJECT), said(104, "deep", '{"v":1}')]
    lake.put(*rows)
    small = {"max_bytes": 4_000}
    inferred = {"name": "inferred", "filter": "inferred", "format": "json", **small}
    declared = {"name": "declared", "filter": "declared", "format": "json", "schema": "v BIGINT", **small}
    with jvm.compiled(spark):
        assert lake.decoder(inferred, declared, {**RULE, "name": "deep", "filter": "deep"}).step()
    offsets = {name: 2 * n for n, name in enumerate(cases)}
    return {"lake": lake, "offsets": offsets, "reasons": lake.quarantined()}


@pytest.mark.parametrize(("payload", "inferred", "declared"), QUARANTINE)
def test_quarantine(
    request: pytest.FixtureRequest,
    quarantined: dict[str, Any],
    payload: bytes,
    inferred: str | None,
    declared: str | None,
) -> None:
    offset = quarantined["offsets"][request.node.callspec.id]
    assert quarantined["reasons"].get(offset) == inferred
    assert quarantined["reasons"].get(offset + 1) == declared


def test_quarantine_of_ten_thousand_levels(quarantined: dict[str, Any]) -> None:
    reasons = quarantined["reasons"]
    assert {102, 103} <= set(reasons)
    assert not {100, 101, 104} & set(reasons)
    assert quarantined["lake"].values("deep") == [{"v": 1}]


def test_quarantine_has_the_place_and_the_first_bytes(
    spark: SparkSession, quarantined: dict[str, Any]
) -> None:
    from spark.silver.tables import PAYLOADS, payloads_table

    rows = payloads_table(quarantined["lake"].out).read(spark, PAYLOADS)
    [row] = rows.filter("offset = 102").collect()
    assert (row.node, row.epoch, row.topic, row.rule, row.size) == ("n1", 100, "deep", "deep", 20_000)
    assert bytes(row.head) == b"[" * 256


def test_schema_evolution(lake: Decoded, capsys: pytest.CaptureFixture[str]) -> None:
    """int -> bigint -> double -> string, new fields null in old rows; never narrowed; announced."""
    decoder = lake.decoder(RULE)
    steps = ['{"a":1,"n":null}', '{"a":1.5,"b":{"c":true}}', '{"a":7}', '{"a":"off","n":3}']
    for offset, payload in enumerate(steps):
        lake.put(said(offset, "t", payload))
        assert decoder.step()
    assert not decoder.step()
    types = lake.types("r")
    assert types == [
        "STRUCT<`a`: BIGINT, `n`: VOID>",
        "STRUCT<`a`: DOUBLE, `n`: VOID, `b`: STRUCT<`c`: BOOLEAN>>",
        "STRUCT<`a`: STRING, `n`: BIGINT, `b`: STRUCT<`c`: BOOLEAN>>",
    ]
    assert lake.values("r") == [
        {"a": "1", "n": None, "b": None},
        {"a": "1.5", "n": None, "b": {"c": True}},
        {"a": "7.0", "n": None, "b": None},
        {"a": "off", "n": 3, "b": None},
    ]
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["schemas"].get("r", {}).get("version") for line in lines] == [1, 2, None, 3]
    assert lake.quarantined() == {}


def test_one_scalar_does_not_make_text_of_a_table_of_objects(lake: Decoded) -> None:
    lake.put(said(0, "t", '{"a":1}'), said(1, "t", "17"), said(2, "s", "1"), said(3, "s", '{"x":2}'))
    decoder = lake.decoder({**RULE, "filter": "t"}, {**RULE, "name": "s", "filter": "s"})
    decoder.step()
    assert lake.types("r") == ["STRUCT<`a`: BIGINT>"]
    lake.put(said(4, "t", "[1,2]"))
    decoder.step()
    assert set(lake.quarantined()) == {1, 2, 4}


def test_values_that_are_no_objects(lake: Decoded) -> None:
    lake.put(said(0, "t", "[1,2]"), said(1, "t", "[2.5]"), said(2, "t", "nothing"))
    lake.decoder(RULE).step()
    assert lake.values("r") == [[1.0, 2.0], [2.5]]
    assert lake.points("t") == {"value": (None, "[2.5]")} or lake.points("t")


def test_names_that_are_no_identifiers(lake: Decoded) -> None:
    payload = {"a b": 1, "A B": 2, "x.y": 3, "`": 4, "": 5, "date": 6, "é,;{}()=\n": 7}
    lake.put(said(0, "t", json.dumps(payload)))
    lake.decoder(RULE).step()
    assert lake.quarantined() == {}
    renamed = {"a b": "a b_2"}  # fields of a batch come sorted
    assert lake.values("r") == [{renamed.get(name, name): value for name, value in payload.items()}]


@pytest.mark.parametrize("layout", ["parquet", "delta"])
def test_formats_tags_and_times(spark: SparkSession, tmp_path: Path, layout: str) -> None:
    lake = Decoded(spark, tmp_path, layout)
    lake.put(
        said(0, "home/lamp/on", "ON", client_id="lamp"),
        said(1, "home/lamp/on", "0"),
        said(2, "home/lamp/on", "maybe"),
        said(3, "home/lamp/watts", " 7.5 "),
        said(4, "home/lamp/watts", "NaN"),
        said(5, "home/lamp/watts", "1e999"),
        said(6, "home/lamp/name", "größer"),
        said(7, "home/lamp/name", b"\xff"),
        said(8, "home/lamp/raw", b"\xff"),
        said(9, "time/local", '{"at":"2026-11-27T13:00:00"}'),
        said(10, "time/local", '{"at":"2026-11-27T13:00:00+00:00"}'),
        said(11, "time/local", '{"at":"13:00"}'),
        said(12, "time/ms", '{"at":{"ms":1795780800250}}'),
        said(13, "time/ms", '{"at":{"ms":9e30}}'),
        said(14, "time/ms", '{"at":{"ms":"soon"}}'),
        said(15, "$SYS/x", "1"),
        gap(16, 40),
        said(17, "time/local", '{"at":"2026-11-27"}'),
        said(18, "time/local", '{"at":"0000-01-01T00:00:00"}'),
        said(19, "time/list", '{"at":[1]}'),
        said(20, "time/declared", '{"at":"2026-11-27T13:00:00","f":1.5}'),
    )
    tags = ["", "device"]
    local, stamp = {"path": "at", "unit": "iso", "zone": "+01:00"}, {"path": "at.ms", "unit": "ms"}
    decoder = lake.decoder(
        {"name": "on", "filter": "home/+/on", "format": "boolean", "tags": tags},
        {"name": "watts", "filter": "home/+/watts", "format": "number", "tags": tags},
        {"name": "name", "filter": "home/+/name", "format": "text", "tags": [*tags, "field", "none"]},
        {"name": "raw", "filter": "home/+/raw", "format": "raw"},
        {"name": "local", "filter": "time/local", "format": "json", "event_time": local},
        {"name": "ms", "filter": "time/ms/#", "format": "json", "event_time": stamp},
        {"name": "list", "filter": "time/list", "format": "json", "event_time": {"path": "at", "unit": "s"}},
        {"name": "declared", "filter": "time/declared", "format": "json", "event_time": local}
        | {"schema": "at TIMESTAMP, f FLOAT"},
        {"name": "rest", "filter": "#", "format": "text"},
    )
    decoder.step()
    assert lake.values("on") == [True, False]
    assert lake.values("watts") == [7.5]
    assert lake.values("name") == ["größer"]
    assert [bytes(value) for value in lake.values("raw")] == [b"\xff"]
    assert lake.values("rest") == []  # `#` does not match $SYS
    words = {n: reason.split()[0] for n, reason in lake.quarantined().items()}
    assert words == {2: "neither", 4: "not", 5: "not", 7: "not"}
    wanted = ["2026-11-27 12:00:00", "2026-11-27 13:00:00", None, "2026-11-26 23:00:00", None]
    assert times(lake, "local") == wanted
    assert times(lake, "list") == [None]
    assert times(lake, "declared") == ["2026-11-27 12:00:00"]
    assert lake.points("time/declared")["f"] == (1.5, None)
    assert times(lake, "ms") == ["2026-11-27 12:00:00.25", None, None]
    assert lake.points("home/lamp/watts") == {"value": (7.5, None)}
    assert tags_of(lake, "name") == [{"device": "lamp", "field": "name"}]
    assert {number for number, _ in lake.points("home/lamp/on").values()} <= {0.0, 1.0}


def times(lake: Decoded, rule: str) -> list[str | None]:
    from spark.silver.tables import read_wide

    wide = read_wide(lake.spark, lake.out, rule)
    assert wide is not None
    return [row[0] for row in wide.orderBy("offset").selectExpr("cast(event_time as string)").collect()]


def tags_of(lake: Decoded, rule: str) -> list[dict[str, str]]:
    from spark.silver.tables import read_wide

    wide = read_wide(lake.spark, lake.out, rule)
    assert wide is not None
    return [row.tags for row in wide.collect()]


def test_fields_become_points(lake: Decoded) -> None:
    payload = '{"t":21.5,"n":{"on":true,"big":9007199254740993},"w":["a"],"s":"12","d":"7f","z":null}'
    lake.put(said(0, "t", payload))
    lake.decoder(RULE).step()
    assert lake.points("t") == {
        "t": (21.5, None),
        "n.on": (1.0, None),
        "n.big": (9007199254740992.0, "9007199254740993"),
        "w": (None, '["a"]'),
        "s": (12.0, "12"),
        "d": (None, "7f"),
    }


def test_a_type_that_stays_has_one_version(lake: Decoded) -> None:
    declared = "a SMALLINT, d DECIMAL(6,2), m MAP<STRING, INT>"
    decoder = lake.decoder({**RULE, "filter": "t", "schema": declared}, SPARKPLUG, {**RULE, "name": "rest"})
    for offset in (0, 3):
        whole = '{"a":1,"d":2.50,"m":{"x":3},"\\r":1}'
        birth_of = birth(0, speed=7)
        lake.put(said(offset, "t", whole), said(offset + 1, *birth_of), said(offset + 2, "x", whole))
        decoder.step()
    assert [len(lake.types(name)) for name in ("r", "plant", "rest")] == [1, 1, 1]
    assert lake.values("r") == [{"a": 1, "d": Decimal("2.50"), "m": {"x": 3}}] * 2
    assert lake.points("t")["d"] == (2.5, None)


def test_batches_follow_each_other_and_are_bounded(lake: Decoded, capsys: pytest.CaptureFixture[str]) -> None:
    for batch in range(3):
        lake.put(said(2 * batch, "t", f'{{"a":{batch}}}'), said(2 * batch + 1, "t", f'{{"a":{batch}}}'))
    decoder = lake.decoder(RULE, max_records=4)
    assert [decoder.step(), decoder.step(), decoder.step()] == [True, True, False]
    assert [value["a"] for value in lake.values("r")] == [0, 0, 1, 1, 2, 2]
    first, second = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (first["batch"], first["rows"], first["end"]) == (0, 4, {"n1": {"e": 100, "o": 4}})
    assert (second["batch"], second["rows"], second["start"]) == (1, 2, {"n1": {"e": 100, "o": 4}})


SPARKPLUG = {"name": "plant", "filter": "spBv1.0/#", "format": "sparkplug"}


def birth(seq: int, kind: str = "NBIRTH", device: str = "", **aliases: int) -> tuple[str, bytes]:
    metrics = [Metric(name, alias, 1000, CODES["Int16"], -alias) for name, alias in aliases.items()]
    return f"spBv1.0/g/{kind}/e{device}", encode(Payload(1_795_780_800_000, seq, metrics))


def data(seq: int, kind: str = "NDATA", device: str = "", **values: int) -> tuple[str, bytes]:
    """`a7=5`: alias 7 has the value 5."""
    metrics = [Metric(alias=int(alias[1:]), value=value) for alias, value in values.items()]
    return f"spBv1.0/g/{kind}/e{device}", encode(Payload(1_795_780_801_000, seq, metrics))


class Killed(BaseException):
    pass


@pytest.mark.parametrize("layout", ["parquet", "delta"])
def test_a_batch_done_again_replaces(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """The job ends after the wide tables, before points; meanwhile more came, and the rules are others.

    No row twice, none lost: the batch is finished with its rows, by its rules.
    """
    lake = Decoded(spark, tmp_path, layout)
    lake.put(said(0, "t", '{"a":1}'), said(1, "t", "x"), said(2, *birth(0, speed=7)))

    def killed(*_: Any) -> None:
        raise Killed

    decoder = lake.decoder(SPARKPLUG, RULE)
    with monkeypatch.context() as patch:
        patch.setattr(decoder, "points_of", killed)
        with pytest.raises(Killed):
            decoder.step()
    lake.put(said(3, "t", '{"a":2}'), said(4, *data(1, a7=5)))
    again = lake.decoder(SPARKPLUG, {**RULE, "name": "new"})
    assert [again.step(), again.step(), again.step()] == [True, True, False]
    assert (lake.values("r"), lake.values("new")) == ([{"a": 1}], [{"a": 2}])
    assert lake.quarantined() == {1: "not JSON"}
    assert lake.points("spBv1.0/g/NDATA/e") == {"speed": (5.0, None)}
    assert set(lake.points("t")) == {"a"}


def test_messages_of_an_edge_node_are_in_the_order_of_the_log(lake: Decoded) -> None:
    """The clock was set back after the BIRTH. What came through another node goes in between by its time."""
    lake.put(
        said(0, *birth(0, speed=1), at=NOON + 60 * SECOND),
        said(1, *data(1, a1=10), at=NOON),
        said(2, *data(2, a1=20), at=NOON + 1),
        said(3, *data(4, a1=40), at=NOON + 90 * SECOND),
        said(7, *data(3, a1=30), at=NOON + 70 * SECOND, node="n2"),
    )
    lake.decoder(SPARKPLUG).step()
    assert lake.quarantined() == {}
    assert [value["seq_error"] for value in lake.values("plant")] == [None] * 5


def test_sparkplug(lake: Decoded) -> None:
    """Names and types of a BIRTH hold in later batches; seq is checked; what cannot be resolved is told."""
    lake.put(
        said(0, *birth(0, speed=1)),
        said(1, *birth(1, "DBIRTH", "/pump", flow=1)),
        said(2, "spBv1.0/STATE/host", '{"online":true}'),
        said(3, "spBv1.0/g/NDATA/other", data(0, a1=1)[1]),
        said(4, "spBv1.0/g/NDATA/e", b"\xff"),
        said(5, "spBv1.0/nonsense", b""),
    )
    decoder = lake.decoder(SPARKPLUG)
    decoder.step()
    lake.put(said(6, *data(2, a1=65535)), said(7, *data(4, "DDATA", "/pump", a1=3)))
    decoder.step()
    words = {n: reason.split()[0] for n, reason in lake.quarantined().items()}
    assert words == {3: "alias", 4: "a", 5: "empty"}
    assert lake.points("spBv1.0/g/NDATA/e") == {"speed": (-1.0, None)}
    assert lake.points("spBv1.0/g/DDATA/e/pump") == {"pump/flow": (3.0, None)}
    assert lake.points("spBv1.0/STATE/host") == {"STATE": (None, '{"online":true}')}
    values = lake.values("plant")
    assert [value["seq_error"] for value in values] == [None, None, None, None, "seq 4 where 3 was due"]
    assert times(lake, "plant")[0] == "2026-11-27 12:00:00"
    assert [path.name for path in (lake.out / "silver" / "_edges" / "plant").iterdir()] == ["1"]
