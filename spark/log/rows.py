"""Pieces of segments -> Arrow record batches with the columns of spark.schema."""

from __future__ import annotations

import datetime as dt
import zlib
from binascii import a2b_base64
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from spark.log.lines import Bad, inflate, lines_from, shown, sift
from spark.log.listing import Log, Segment
from spark.log.plan import Hole, Piece, steps
from spark.schema import BINARY, DATA_LOSS, KINDS, ORIGIN, PLACE, Column

if TYPE_CHECKING:  # workers import it where they read, so that planning needs no 30 MB of it
    import pyarrow as pa

BLOCK = 4 << 20  # bytes parsed at once
ROWS = 8_192  # in a batch at most


class Lost(Exception):
    """Records that were planned to be read are not there."""


class Rows:
    """Reads pieces of one log. Picklable: what cannot be is made where it is used."""

    def __init__(self, log: Log, *, decode: bool = True, fail_on_data_loss: bool = True) -> None:
        self.log, self.decode, self.fail_on_data_loss = log, decode, fail_on_data_loss

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Every record of *piece*, and a row for what is bad; raises Lost where the file is gone."""
        try:
            data, bad = self._load(piece)
        except FileNotFoundError:
            yield from self._read_moved(piece)
        else:
            yield from self._rows(piece, data, bad)

    def _read_moved(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """The segment was closed after the plan was made, as one or as several: the records are elsewhere."""
        node, epoch = piece.segment.node, piece.segment.epoch
        where = {node: (epoch, piece.low)}, {node: (epoch, piece.high)}
        found = [step for step in steps(self.log.segments(), *where) if isinstance(step, Piece)]
        try:
            loaded = [(part, *self._load(part)) for part in found]
        except FileNotFoundError:
            loaded = []
        if sum(part.count for part, _, _ in loaded) != piece.count:
            yield self._lost(piece)
            return
        for part, data, bad in loaded:
            yield from self._rows(part, data, bad)

    def _rows(self, piece: Piece, data: bytes, bad: list[Bad]) -> Iterator[pa.RecordBatch]:
        segment = piece.segment
        rows = 0
        for table, more in self._parse(data, piece):
            bad += more
            rows += table.num_rows
            for batch in table.to_batches(max_chunksize=ROWS):
                yield self._finish(batch, segment)
        if rows + sum(each.lost for each in bad) != piece.count:
            raise Lost(
                f"{DATA_LOSS}{segment.path}: offsets {piece.low} to {piece.high - 1} asked for, "
                f"{rows} rows and {len(bad)} bad lines found"
            )
        if bad:
            yield self.bad_rows(segment, segment.hour, bad)

    def hole(self, hole: Hole) -> pa.RecordBatch:
        segment = Segment(hole.node, hole.epoch, hole.low, hole.low, "", ("", 0))
        lost = 0 if hole.high is None else hole.high - hole.low
        return self.bad_rows(segment, None, [Bad(hole.low, lost, hole.why)])

    def _load(self, piece: Piece) -> tuple[bytes, list[Bad]]:
        """The lines of *piece*, all sound, and what stands for those that are not."""
        segment, trouble = piece.segment, ""
        if segment.gz:
            data, trouble = inflate(segment.path)
        elif piece.whole:
            with open(segment.path, "rb") as file:
                data = file.read()
        else:
            good, bad = sift(lines_from(segment.path, piece.low), piece.low, piece.high, False)
            return joined(good), bad
        if piece.whole and zlib.crc32(data) == segment.crc and is_named_right(data, segment):
            return data, []
        lines = data.split(b"\n")
        if not lines[-1]:
            del lines[-1]
        good, bad = sift(lines, piece.low, piece.high, piece.whole)
        if trouble:
            bad = [each._replace(why=f"{trouble}; {each.why}") for each in bad]
        return joined(good), bad

    def _parse(self, data: bytes, piece: Piece) -> Iterator[tuple[pa.Table, list[Bad]]]:
        """Tables of what JSON says, by the keys of the log; and the lines that it cannot say it with."""
        import pyarrow as pa

        for block in blocks(data):
            try:
                yield self._json(block), []
            except (pa.ArrowException, ValueError):
                yield from self._one_by_one(block.split(b"\n")[:-1])

    def _one_by_one(self, lines: list[bytes]) -> Iterator[tuple[pa.Table, list[Bad]]]:
        """Halves what Arrow refuses until the lines to blame are found."""
        import pyarrow as pa

        try:
            yield self._json(joined(lines)), []
        except (pa.ArrowException, ValueError) as error:
            if len(lines) == 1:
                offset = int(lines[0][5 : lines[0].index(b",")])
                bad = Bad(offset, 1, shown(f"not a record ({str(error)[:80]})", lines[0]))
                yield self._json(b""), [bad]
                return
            middle = len(lines) // 2
            yield from self._one_by_one(lines[:middle])
            yield from self._one_by_one(lines[middle:])

    def _json(self, block: bytes) -> pa.Table:
        import pyarrow as pa
        from pyarrow import json

        fields = parsed(self.log.kind)
        table = fields.empty_table()
        if block:
            table = json.read_json(
                pa.BufferReader(block),
                json.ReadOptions(use_threads=False, block_size=len(block) + 1),
                json.ParseOptions(explicit_schema=fields, unexpected_field_behavior="ignore"),
            )
        if self.decode:
            for column in KINDS[self.log.kind]:
                if column.name in BINARY:
                    place = table.schema.get_field_index(column.key)
                    table = table.set_column(place, column.key, unbase64(table.column(place)))
        return table

    def _finish(self, batch: pa.RecordBatch, segment: Segment) -> pa.RecordBatch:
        """*batch* with the columns and types of the source."""
        import pyarrow as pa

        schema, count = arrow_schema(columns_of(self.log.kind, self.decode)), batch.num_rows
        columns = self._constants(segment, segment.hour, count)
        for column in (*PLACE[2:], *KINDS[self.log.kind]):
            value, kind = batch.column(column.key), schema.field(column.name).type
            columns[column.name] = value if value.type == kind else value.cast(kind)
        columns["bad"] = pa.nulls(count, pa.string())
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _constants(self, segment: Segment, hour: tuple[str, int] | None, count: int) -> dict[str, pa.Array]:
        import pyarrow as pa

        def constant(value: object, kind: pa.DataType) -> pa.Array:
            return pa.repeat(pa.scalar(value, kind), count)

        date = dt.date.fromisoformat(hour[0]) if hour else None
        return {
            "node": constant(segment.node, pa.string()),
            "epoch": constant(segment.epoch, pa.int64()),
            "segment": constant(segment.name if segment.path else None, pa.string()),
            "date": constant(date, pa.date32()),
            "hour": constant(hour[1] if hour else None, pa.int32()),
        }

    def bad_rows(self, segment: Segment, hour: tuple[str, int] | None, bad: list[Bad]) -> pa.RecordBatch:
        import pyarrow as pa

        schema = arrow_schema(columns_of(self.log.kind, self.decode))
        columns = self._constants(segment, hour, len(bad))
        columns["offset"] = pa.array([each.offset for each in bad], pa.int64())
        columns["lost"] = pa.array([each.lost for each in bad], pa.int64())
        columns["bad"] = pa.array([each.why for each in bad], pa.string())
        none = {field.name: pa.nulls(len(bad), field.type) for field in schema}
        return pa.RecordBatch.from_arrays([{**none, **columns}[n] for n in schema.names], schema=schema)

    def _lost(self, piece: Piece) -> pa.RecordBatch:
        segment = piece.segment
        why = (
            f"{DATA_LOSS}node {segment.node} epoch {segment.epoch}: offsets {piece.low} to {piece.high - 1} "
            f"are gone, {segment.path} was removed while it was to be read"
        )
        if self.fail_on_data_loss:
            raise Lost(why)
        return self.hole(Hole(segment.node, segment.epoch, piece.low, piece.high, why))


def joined(lines: list[bytes]) -> bytes:
    return b"\n".join(lines) + b"\n" if lines else b""


def is_named_right(data: bytes, segment: Segment) -> bool:
    """Whether the name tells the offsets that are in *data*, which has no holes."""
    count = segment.last + 1 - segment.first
    return data.startswith(b'{"o":%d,' % segment.first) and data.count(b"\n") == count


def blocks(data: bytes) -> Iterator[bytes]:
    """*data* in parts of whole lines, of BLOCK bytes or one line."""
    at = 0
    while at < len(data):
        end = data.rfind(b"\n", at, at + BLOCK) + 1 or data.find(b"\n", at + BLOCK) + 1 or len(data)
        yield data[at:end]
        at = end


def unbase64(values: pa.Array) -> pa.Array:
    import pyarrow as pa

    return pa.array([None if text is None else a2b_base64(text) for text in values.to_pylist()], pa.binary())


# Types in SQL -> as a line has them -> as a batch has them. Spark has no unsigned ones.
PARSED = {"binary": "string", "boolean": "int8", "timestamp": "int64", "tinyint": "int8"}


def parsed(kind: str) -> pa.Schema:
    """What a line of *kind* says, by its keys."""
    import pyarrow as pa

    return pa.schema(
        [
            (column.key, arrow_type(PARSED.get(column.type, column.type)))
            for column in (*PLACE[2:], *KINDS[kind])
        ]
    )


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(column.name, arrow_type(column.type)) for column in columns])


def columns_of(kind: str, decode: bool) -> Iterable[Column]:
    """The columns of the source. Without *decode* what is binary stays base64 text."""
    for column in (*PLACE, *KINDS[kind], *ORIGIN):
        yield column if decode or column.name not in BINARY else column._replace(type="string")


def arrow_type(name: str) -> pa.DataType:
    import pyarrow as pa

    return {
        "string": pa.string(),
        "bigint": pa.int64(),
        "int64": pa.int64(),
        "int": pa.int32(),
        "smallint": pa.int16(),
        "tinyint": pa.int8(),
        "int8": pa.int8(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "array<struct<key:string,value:string>>": pa.list_(
            pa.struct([("key", pa.string()), ("value", pa.string())])
        ),
    }[name]
