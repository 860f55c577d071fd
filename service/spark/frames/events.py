"""Frames of what comes in and goes out: inputs by the decoder that the tasks use, alerts, sessions, letters, labels."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from samovar.changelog.cursors import PartitionCursor
from samovar.changelog.formats.dead_letters import PREFIX
from samovar.changelog.log import Log, Records, TopicPartition
from samovar.changelog.spark.connector_log import Range, SparkFeed
from samovar.changelog.spark.source import BATCH_ROWS
from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.native.kernel import Other
from samovar.patterns.engine.avro import schema as avro
from samovar.patterns.engine.decode import CODES
from samovar.patterns.engine.decoder import Decoder
from samovar.patterns.semantics.schema import Schema
from samovar.service.config.models import ServiceFile, Stream
from samovar.service.spark.frames.frame import FrameOptions, FrameRange, ranges_of, stretches
from samovar.service.spark.frames.rules import (
    BYTES,
    DOUBLE,
    FLAG,
    INT,
    LONG,
    PLACE,
    TEXT,
    TIME,
    KnownVersion,
    emits_of,
    json_of,
    keys_of,
    known_rules,
    places,
    text_of,
    times,
)
from samovar.service.topology.encoding import decoding_of
from samovar.service.topology.logs import opened
from samovar.service.topology.stores import StateLocation

KINDS = {"string": TEXT, "double": DOUBLE, "long": LONG, "boolean": FLAG, "any": TEXT}
OF_SQL = {"string": TEXT, "double": DOUBLE, "bigint": LONG, "boolean": FLAG, "array<string>": pa.list_(TEXT)}
KEY = pa.map_(TEXT, TEXT)
EVENT = pa.struct([("step", TEXT), ("stream", TEXT), ("partition", INT), ("offset", LONG)])
Columns: TypeAlias = Callable[[Records], list[pa.Array]]


@dataclass(frozen=True)
class RecordFrame:
    """A frame with a row per record. `columns` is made again on every executor, by a function that can travel there."""

    settings: ServiceFile
    schema: pa.Schema
    stretches: tuple[FrameRange, ...]
    columns: Callable[[], Columns]
    key: bytes | None = None
    only: tuple[str, frozenset[str]] | None = None  # a column, and its values that are wanted
    reads_headers: bool = False

    def parts(self) -> Sequence[FrameRange]:
        return self.stretches

    def read(self, part: FrameRange) -> Iterator[pa.RecordBatch]:
        columns = self.columns()
        with opened(self.settings) as log:
            cursor = PartitionCursor(log, TopicPartition(part.topic, part.partition), part.start)
            try:
                while (records := cursor.take(part.end)) is not None:
                    yield from self._batches(records, columns)
            finally:
                cursor.close()

    def ranges(self, log: Log) -> Sequence[Range]:  # noqa: ARG002 - as a frame has it
        return ranges_of(self.stretches)

    def read_fed(self, feed: SparkFeed) -> Iterator[pa.RecordBatch]:
        columns = self.columns()
        while (at := feed.coming()) is not None:
            records = feed.take(at)
            if records is not None:
                yield from self._batches(records, columns)

    def _batches(self, records: Records, columns: Columns) -> Iterator[pa.RecordBatch]:
        keys = keys_of(records)
        batch = pa.RecordBatch.from_arrays([*places(records, keys), *columns(records)], schema=self.schema)
        if self.key is not None:
            batch = batch.filter(pa.array([key == self.key for key in keys]))
        if self.only is not None:
            column, own = self.only
            batch = batch.filter(pa.array([value in own for value in batch.column(column).to_pylist()], FLAG))
        yield from (batch.slice(start, BATCH_ROWS) for start in range(0, batch.num_rows, BATCH_ROWS))


def _frame(
    site: StateLocation,
    wanted: FrameOptions,
    topic: str,
    fields: list[Any],
    columns: Callable[[], Columns],
    *,
    needed: bool = True,
    headers: bool = False,
) -> RecordFrame:
    key = None if wanted.key is None else wanted.key.encode()
    schema = pa.schema([*PLACE, *(pa.field(name, kind) for name, kind in fields)])
    found = stretches(site, topic, wanted, needed=needed)
    return RecordFrame(site.settings, schema, found, columns, key, reads_headers=headers)


# ---------------------------------------------------------------- inputs


def inputs(site: StateLocation, wanted: FrameOptions) -> RecordFrame:
    """Events as rules see them, a column a field of the stream's schema. What is not an event has an `_error` alone."""
    assert wanted.stream is not None
    stream = site.settings.streams[wanted.stream]
    kinds = _kinds(wanted.stream, stream)
    raw = wanted.raw or not kinds
    head = [("_event_time", TIME), ("_type", TEXT), ("_error", TEXT)]
    fields = [*head, *((name, KINDS[kind]) for name, kind in kinds.items()), *([("_value", TEXT)] if raw else [])]
    return _frame(site, wanted, stream.topic, fields, partial(_inputs, wanted.stream, stream, kinds, raw))


def _kinds(name: str, stream: Stream) -> Mapping[str, str]:
    """Dotted fields and their types; of several event types, all their fields."""
    if stream.fields is None:
        return {} if stream.avro is None else _avro_kinds(stream.avro)
    schema = Schema.of(stream.fields if stream.type is not None else {name: stream.fields})
    return dict(schema.fields(["any"]))


def _avro_kinds(schema: avro.AvroSchema) -> Mapping[str, str]:
    root = schema.names.get(schema.root.name) if isinstance(schema.root, avro.Ref) else schema.root
    if not isinstance(root, avro.RecordType):
        return {}
    return {each.name: _avro_kind(each.type) for each in root.fields}


def _avro_kind(kind: avro.Type) -> str:
    """What a rule sees of a type. Of a union with null, that of the other."""
    if isinstance(kind, avro.Union):
        others = [each for each in kind.branches if not (isinstance(each, avro.Primitive) and each.kind == "null")]
        return _avro_kind(others[0]) if len(others) == 1 else "any"
    if not isinstance(kind, avro.Primitive) or kind.logical is not None:
        return "any"
    kinds = {"int": "long", "long": "long", "float": "double", "double": "double", "boolean": "boolean"}
    return kinds.get(kind.kind, "string" if kind.kind == "string" else "any")


def _inputs(name: str, stream: Stream, kinds: Mapping[str, str], raw: bool) -> Columns:
    decoder = decoding_of(stream)(list(kinds), stream.time, stream.type, name)

    def columns(records: Records) -> list[pa.Array]:
        batch = decoder.batch()
        verdicts = decoder.decode(batch, records.values)["code"]
        good = np.flatnonzero(verdicts == 0)
        ok = _spread(len(records), good, batch.time.tolist())
        types = _spread(len(records), good, batch.types())
        made = [times(ok), pa.array(types, TEXT), pa.array([_verdict(code) for code in verdicts.tolist()], TEXT)]
        for place, kind in enumerate(kinds.values()):
            values = [_as(kind, value) for value in batch.values(place)]
            made.append(pa.array(_spread(len(records), good, values), KINDS[kind]))
        if raw:
            made.append(pa.array([_shown(decoder, records.value(row)) for row in range(len(records))], TEXT))
        return made

    return columns


def _verdict(code: int) -> str | None:
    return None if code == 0 else CODES[code]


def _spread(count: int, rows: Any, values: list[Any]) -> list[Any]:
    """Values of some rows among all."""
    if len(rows) == count:
        return values
    found: list[Any] = [None] * count
    for row, value in zip(rows.tolist(), values, strict=True):
        found[row] = value
    return found


def _as(kind: str, value: Any) -> Any:
    """A value as its column has it; what does not fit its declared type is null, as text it is JSON."""
    if value is None:
        return None
    if kind in ("string", "any"):
        return value if isinstance(value, str) else value.json if isinstance(value, Other) else json.dumps(value)
    if isinstance(value, bool) or kind == "boolean":
        return value if isinstance(value, bool) and kind == "boolean" else None
    if not isinstance(value, (int, float)):
        return None
    return float(value) if kind == "double" else int(value) if float(value).is_integer() else None


def _shown(decoder: Any, value: bytes | None) -> str | None:
    if value is None or type(decoder) is Decoder:
        return text_of(value)
    text = decoder.json(value)  # of Avro
    return text if isinstance(text, str) else text_of(value)


# ---------------------------------------------------------------- alerts and sessions


ALERT = [
    ("id", TEXT),
    ("rule", TEXT),
    ("version", TEXT),
    ("severity", TEXT),
    ("tags", pa.list_(TEXT)),
    ("key", KEY),
    ("start", TIME),
    ("end", TIME),
    ("at", TIME),
    ("message", TEXT),
    ("emit", TEXT),
    ("events", pa.list_(EVENT)),
    ("total", LONG),
]


def alerts(site: StateLocation, wanted: FrameOptions, known: Mapping[str, KnownVersion] | None = None) -> RecordFrame:
    """All alerts, or those of one rule: only then `emit` can have columns of its own."""
    return _alert_frame(site, wanted, known_rules(site) if known is None else known, with_duration=False)


def sessions(site: StateLocation, wanted: FrameOptions, known: Mapping[str, KnownVersion] | None = None) -> RecordFrame:
    """The alerts of rules that find sessions."""
    known = known_rules(site) if known is None else known
    frame = _alert_frame(site, wanted, known, with_duration=True)
    versions = frozenset(version for version, rule in known.items() if rule.is_session)
    return frame if frame.only is not None else replace(frame, only=("version", versions))


def _alert_frame(
    site: StateLocation, wanted: FrameOptions, known: Mapping[str, KnownVersion], *, with_duration: bool
) -> RecordFrame:
    emits = emits_of({version: rule for version, rule in known.items() if rule.is_session or not with_duration})
    if wanted.rule is not None and wanted.rule not in emits:
        hint = did_you_mean(wanted.rule, emits) or f"Rules are {', '.join(sorted(emits)) or 'none'}."
        raise Refused("frame-option", f"no rule `{wanted.rule}` of the service finds them", hint)
    types = {} if wanted.rule is None else emits[wanted.rule]
    emit = pa.struct([(name, OF_SQL[kind]) for name, kind in types.items()]) if types else TEXT
    fields = [(name, emit if name == "emit" else kind) for name, kind in ALERT]
    fields += [("duration_ms", LONG)] if with_duration else []
    columns = partial(_alerts, known, types, with_duration)
    frame = _frame(site, wanted, site.settings.alerts.topic, fields, columns)
    return frame if wanted.rule is None else replace(frame, only=("rule", frozenset([wanted.rule])))


def _alerts(known: Mapping[str, KnownVersion], types: Mapping[str, str], with_duration: bool) -> Columns:
    nobody = KnownVersion("", None, (), is_session=False, emit={})
    emit = pa.struct([(name, OF_SQL[kind]) for name, kind in types.items()])

    def columns(records: Records) -> list[pa.Array]:
        found = [_loaded(records.value(row)) for row in range(len(records))]
        rules = [known.get(each.get("version", ""), nobody) for each in found]
        made = [
            pa.array([each.get("id") for each in found], TEXT),
            pa.array([each.get("rule") for each in found], TEXT),
            pa.array([each.get("version") for each in found], TEXT),
            pa.array([rule.severity for rule in rules], TEXT),
            pa.array([list(rule.tags) for rule in rules], pa.list_(TEXT)),
            pa.array([[(name, _plain(value)) for name, value in each.get("key", {}).items()] for each in found], KEY),
            *(times([each.get(name) for each in found]) for name in ("start", "end", "at")),
            pa.array([each.get("message") for each in found], TEXT),
            pa.array([_typed(each.get("emit"), types) for each in found], emit)
            if types
            else pa.array([json_of(each.get("emit")) for each in found], TEXT),
            pa.array([_events(each) for each in found], pa.list_(EVENT)),
            pa.array([each.get("total") or len(_events(each)) for each in found], LONG),
        ]
        if with_duration:
            made.append(pa.array([(each.get("end") or 0) - (each.get("start") or 0) for each in found], LONG))
        return made

    return columns


def _typed(emitted: Any, types: Mapping[str, str]) -> dict[str, Any] | None:
    """What an alert emits, by the types of its rule."""
    if not isinstance(emitted, dict):
        return None
    return {name: _as_sql(kind, emitted.get(name)) for name, kind in types.items()}


def _as_sql(kind: str, value: Any) -> Any:
    if kind == "array<string>":
        return [_as("string", each) for each in value] if isinstance(value, list) else None
    return _as({"bigint": "long"}.get(kind, kind), value)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _events(alert: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"step": step, "stream": stream, "partition": partition, "offset": offset}
        for step, events in alert.get("steps", {}).items()
        for stream, partition, offset in events
    ]


def _loaded(value: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(value or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


# ---------------------------------------------------------------- letters


LETTER = [("topic", TEXT), ("partition", INT), ("offset", LONG)]


def dead_letters(site: StateLocation, wanted: FrameOptions) -> RecordFrame:
    fields = [("reason", TEXT), ("message", TEXT), *LETTER, ("stage", TEXT), ("value", BYTES), ("text", TEXT)]
    return _frame(site, wanted, site.settings.dead_letters.topic, fields, _dead_letters, headers=True)


def _dead_letters() -> Columns:
    def columns(records: Records) -> list[pa.Array]:
        heads = [dict(records.headers(row)) for row in range(len(records))]
        said = [_texts(heads, PREFIX + name) for name in ("exception", "message")]
        return [*said, *_origin(heads), _texts(heads, "samovar.stage"), *_bodies(records)]

    return columns


def late(site: StateLocation, wanted: FrameOptions) -> RecordFrame:
    fields = [("late_ms", LONG), ("stream", TEXT), *LETTER, ("stage", TEXT), ("value", BYTES), ("text", TEXT)]
    return _frame(site, wanted, site.settings.late.topic, fields, _late, headers=True)


def _late() -> Columns:
    def columns(records: Records) -> list[pa.Array]:
        heads = [dict(records.headers(row)) for row in range(len(records))]
        late_ms = pa.array([_number(head.get("samovar.late.ms")) for head in heads], LONG)
        stage = _texts(heads, "samovar.stage")
        return [late_ms, _texts(heads, "samovar.stream"), *_origin(heads), stage, *_bodies(records)]

    return columns


def _texts(heads: Sequence[Mapping[str, bytes]], name: str) -> pa.Array:
    return pa.array([text_of(head.get(name)) for head in heads], TEXT)


def _origin(heads: Sequence[Mapping[str, bytes]]) -> list[pa.Array]:
    partitions = pa.array([_number(head.get(PREFIX + "partition")) for head in heads], INT)
    offsets = pa.array([_number(head.get(PREFIX + "offset")) for head in heads], LONG)
    return [_texts(heads, PREFIX + "topic"), partitions, offsets]


def _number(data: bytes | None) -> int | None:
    return None if data is None or not data.isdigit() else int(data)


def _bodies(records: Records) -> list[pa.Array]:
    values = [records.value(row) for row in range(len(records))]
    return [pa.array(values, BYTES), pa.array([text_of(value) for value in values], TEXT)]


# ---------------------------------------------------------------- labels


LABEL = [("alert", TEXT), ("rule", TEXT), ("key", TEXT), ("label", TEXT), ("by", TEXT), ("at", TIME), ("note", TEXT)]


def labels(site: StateLocation, wanted: FrameOptions) -> RecordFrame:
    """What people said of alerts. Nobody may have said anything yet."""
    return _frame(site, wanted, f"{site.settings.service}-labels", LABEL, _labels, needed=False)


def _labels() -> Columns:
    def columns(records: Records) -> list[pa.Array]:
        found = [_loaded(records.value(row)) for row in range(len(records))]
        texts = [name for name, kind in LABEL if kind is TEXT]
        made = {name: pa.array([_text(each.get(name)) for each in found], TEXT) for name in texts}
        return [made[name] if name in made else times([each.get(name) for each in found]) for name, _ in LABEL]

    return columns


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
