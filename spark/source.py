"""`spark.read` and `spark.readStream` with `.format("mqttlog")`: the message log as rows.

Options: `path` (LOG), `kind` messages or events, `node` (comma list), `startingOffsets` earliest, latest or
JSON, `startingTimestamp` and `endingTimestamp` (ISO), `endingOffsets` (batch), `maxRecordsPerTrigger`, `tail`
(the open file too), `failOnDataLoss` (true), `consumer` (a name under which commits are told to the log's
retention), `decode` (true; false leaves base64 to `unbase64` of the JVM).

An offset of the stream is `{"<node>": {"e": epoch, "o": next offset}}`. A node that appears is first written
into the checkpoint with the place where it begins, and read from the next batch on: so a batch that is
done again has the same rows, whatever retention has done meanwhile.
"""

from __future__ import annotations

import datetime as dt
import difflib
import json
import operator
import re
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark.log.consumers import tell, told
from spark.log.files import FOUND, written
from spark.log.listing import Log, Positions, Segment
from spark.log.moments import position_at
from spark.log.plan import Hole, Step, as_offset, ends, limited, of_offset, starts, steps
from spark.log.rows import Lost, Rows, columns_of
from spark.log.workers import ingested_at, settle_in
from spark.schema import DATA_LOSS, KINDS, ddl

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


OPTIONS = (
    *("path", "kind", "node", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"),
    *("maxRecordsPerTrigger", "tail", "failOnDataLoss", "consumer", "decode"),
)


class Options:
    """What the user asked for, checked. Raises ValueError with the name of the option."""

    def __init__(self, given: MutableMapping[str, str], *more: str) -> None:
        self.path = given.get("path") or wrong("path", "", "the folder of the log")
        self.kind = one_of("kind", given.get("kind", "messages"), *KINDS)
        self.nodes = [name for name in given.get("node", "").split(",") if name]
        self.starting = given.get("startingOffsets", "earliest")
        self.ending = given.get("endingOffsets", "latest")
        self.since = moment("startingTimestamp", given.get("startingTimestamp"))
        self.until = moment("endingTimestamp", given.get("endingTimestamp"))
        self.max_records = number("maxRecordsPerTrigger", given.get("maxRecordsPerTrigger"))
        self.tail = flag("tail", given.get("tail", "false"))
        self.fail_on_data_loss = flag("failOnDataLoss", given.get("failOnDataLoss", "true"))
        self.decode = flag("decode", given.get("decode", "true"))
        self.consumer = name_of("consumer", given.get("consumer"))
        for name in given:
            if name.lower() not in {each.lower() for each in (*OPTIONS, *more)}:
                nearest = difflib.get_close_matches(name, OPTIONS, 1, cutoff=0.0)[0]
                raise ValueError(f"mqttlog: there is no option {name}; the nearest is {nearest}")
        for name, text in (("startingOffsets", self.starting), ("endingOffsets", self.ending)):
            if text not in {"earliest", "latest"}:
                positions(name, text)


def wrong(name: str, value: str, wanted: str) -> Any:
    raise ValueError(f"mqttlog: option {name} is {value!r}, and wants {wanted}")


def one_of(name: str, value: str, *allowed: str) -> str:
    return value if value in allowed else wrong(name, value, " or ".join(allowed))


def flag(name: str, value: str) -> bool:
    return one_of(name, value.lower(), "true", "false") == "true"


def number(name: str, value: str | None) -> int | None:
    if value is None:
        return None
    return int(value) if value.isdecimal() and int(value) > 0 else wrong(name, value, "a number above 0")


def name_of(name: str, value: str | None) -> str | None:
    if value and not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}", value):
        wrong(name, value, "letters, digits, - and _: it is the name of a file")
    return value or None


def moment(name: str, value: str | None) -> int | None:
    """Microseconds since 1970 of an ISO time; without a zone it is UTC."""
    if not value:
        return None
    try:
        found = dt.datetime.fromisoformat(value)
    except ValueError:
        return wrong(name, value, "a time such as 2026-11-27T21:00:00Z")
    return int((found if found.tzinfo else found.replace(tzinfo=dt.UTC)).timestamp() * 1_000_000)


def positions(name: str, text: str) -> Positions:
    try:
        return of_offset(json.loads(text))
    except (AttributeError, KeyError, TypeError, ValueError):
        return wrong(name, text, 'earliest, latest or {"<node>": {"e": epoch, "o": offset}}')


class MqttLog(DataSource):
    """Picklable, as all that it makes is: no lock, file or compiled struct in it."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.chosen = Options(options)

    @classmethod
    def name(cls) -> str:
        return "mqttlog"

    def schema(self) -> str:
        return ddl(columns_of(self.chosen.kind, self.chosen.decode))

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(self.chosen)

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(self.chosen)


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, step: Step) -> None:
        super().__init__(step)
        self.step = step


class Reading:
    """What both readers do: places in the log, and rows from parts of it."""

    def __init__(self, chosen: Options) -> None:
        self.chosen = chosen
        self.log = Log(chosen.path, chosen.kind, nodes=chosen.nodes)
        self.rows = Rows(self.log, decode=chosen.decode, fail_on_data_loss=chosen.fail_on_data_loss)

    def beginning(self) -> Positions:
        segments = self.log.segments()
        if self.chosen.since is not None:
            return position_at(segments, self.chosen.since, tail=self.chosen.tail)
        if self.chosen.starting == "latest":
            return ends(segments, tail=self.chosen.tail)
        first = starts(segments)
        if self.chosen.starting == "earliest":
            return first
        return first | positions("startingOffsets", self.chosen.starting)

    def end(self, segments: Sequence[Segment]) -> Positions:
        last = ends(segments, tail=self.chosen.tail)
        if self.chosen.until is None:
            return last
        until = position_at(segments, self.chosen.until, tail=self.chosen.tail)
        return {node: min(at, until[node]) for node, at in last.items()}

    def parts(self, found: Iterator[Step]) -> list[Part]:
        """Raises Lost at the first hole, unless that is allowed: then it is a part, of one row."""
        parts = [Part(step) for step in found]
        holes = [part.step for part in parts if isinstance(part.step, Hole)]
        if holes and self.chosen.fail_on_data_loss:
            raise Lost(f"{holes[0].why} (failOnDataLoss=false goes on, and counts it)")
        return parts

    def read(self, partition: Part) -> Iterator[pa.RecordBatch]:
        settle_in()
        step = getattr(partition, "step", None)  # Spark makes a part of its own where there is none
        if isinstance(step, Hole):
            yield self.rows.hole(step)
        elif step is not None:
            yield from self.rows.read(step)


class BatchReader(Reading, DataSourceReader):
    def __init__(self, chosen: Options) -> None:
        super().__init__(chosen)
        self.filters: list[tuple[str, Operator, Any]] = []  # column, operator, value

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Takes what a segment's name can answer; gives back the rest."""
        for each in filters:
            found = simple(each)
            if found is None:
                yield each
            else:
                self.filters.append(found)

    def partitions(self) -> Sequence[Part]:
        segments, first = self.log.segments(), self.beginning()
        last = self.end(segments)
        if self.chosen.ending != "latest":
            last |= positions("endingOffsets", self.chosen.ending)
        found = (step for step in steps(segments, first, last) if self._wanted(step))
        return self.parts(found)

    def _wanted(self, step: Step) -> bool:
        place: dict[str, Any]
        if isinstance(step, Hole):
            place = {"node": step.node, "epoch": step.epoch, "date": None, "hour": None}
        else:
            segment, (date, hour) = step.segment, step.segment.hour
            place = {"node": segment.node, "epoch": segment.epoch}
            place |= {"date": dt.date.fromisoformat(date), "hour": hour}
        return all(holds(place[column], is_true, value) for column, is_true, value in self.filters)


class StreamReader(Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`latestOffset` and `partitions` run in one process beside the driver, `read` in the workers."""

    def __init__(self, chosen: Options) -> None:
        super().__init__(chosen)
        self.target: Positions | None = None  # of Trigger.AvailableNow

    def initialOffset(self) -> dict[str, Any]:
        return as_offset(self.beginning())

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.chosen.max_records) if self.chosen.max_records else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = self.end(self.log.segments())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends. Raises Lost where the log has lost what comes next."""
        first = of_offset(start)
        segments = self.log.segments(first)
        last = self.end(segments) if self.target is None else self.target
        goal = {node: max(at, last.get(node, at)) for node, at in first.items()}
        new = {node: at for node, at in starts(segments).items() if node in last and node not in first}
        if self.chosen.fail_on_data_loss:
            self._check_end(segments, first)
        found = [part.step for part in self.parts(self._steps(segments, first, goal))]
        if isinstance(limit, ReadMaxRows):
            goal = limited(found, first, limit.max_rows)
        return as_offset(goal | new)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Part]:
        first = of_offset(start)
        return self.parts(self._steps(self.log.segments(first), first, of_offset(end)))

    def commit(self, end: dict[str, Any]) -> None:
        if self.chosen.consumer:
            tell(self.log.root, self.chosen.consumer, self.chosen.kind, of_offset(end))

    def _steps(self, segments: list[Segment], first: Positions, last: Positions) -> Iterator[Step]:
        known = told(self.log.root, self.chosen.consumer) if self.chosen.consumer else {}
        return steps(segments, first, last, known)

    def _check_end(self, segments: list[Segment], first: Positions) -> None:
        """An epoch that nobody writes to any more must reach as far as we have read."""
        last, writing = ends(segments), {(each.node, each.epoch) for each in segments if each.crc is None}
        for node, (epoch, offset) in first.items():
            at = last.get(node, (-1, 0))
            if at[0] == epoch and at[1] < offset and (node, epoch) not in writing:
                raise Lost(
                    f"{DATA_LOSS}node {node} epoch {epoch} was read to offset {offset}, "
                    f"the log ends at {at[1]} (failOnDataLoss=false goes on)"
                )


class MqttLogFiles(DataSource):
    """`mqttlog-files`, for `spark.ingest`: tasks write files of bronze and say what they wrote.

    Its columns are `FOUND` of `spark.log.files`; its options those of `mqttlog`, and `into`, a folder that
    is there. Who starts a job over it tells the workers first, by `tell_workers`.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.into, self.chosen = options["into"], Options(options, "into")

    @classmethod
    def name(cls) -> str:
        return "mqttlog-files"

    def schema(self) -> str:
        return ddl(FOUND)

    def streamReader(self, schema: StructType) -> FilesReader:
        return FilesReader(self.chosen, self.into)


class FilesReader(StreamReader):
    def __init__(self, chosen: Options, into: str) -> None:
        super().__init__(chosen)
        self.into = into

    def read(self, partition: Part) -> Iterator[pa.RecordBatch]:
        rows = super().read(partition)
        yield from written(rows, self.chosen.kind, self.into, ingested_at())


Operator = Callable[[Any, Any], bool]


def among(value: Any, values: tuple[Any, ...]) -> bool:
    return value in values


def known(value: Any, _: Any) -> bool:
    return value is not None


OPERATORS: dict[type[Filter], Operator] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: among,
    IsNotNull: known,
}
IN_THE_NAME = {("date",), ("hour",), ("node",), ("epoch",)}


def simple(given: Filter) -> tuple[str, Operator, Any] | None:
    """(column, operator, value) of a filter that the name of a segment can answer; None: it cannot."""
    attribute, is_true = getattr(given, "attribute", None), OPERATORS.get(type(given))
    if attribute not in IN_THE_NAME or is_true is None:
        return None
    return attribute[0], is_true, getattr(given, "value", None)


def holds(known: Any, is_true: Operator, value: Any) -> bool:
    """As SQL has it: nothing holds for null."""
    return known is not None and is_true(known, value)


def register(session: SparkSession) -> None:
    """Makes `.format("mqttlog")` known to *session*."""
    for source in (MqttLog, MqttLogFiles):
        session.dataSource.register(source)
