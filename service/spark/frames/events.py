"""Frames of records: inputs by the decoder that the tasks use, alerts, sessions, dead letters, late events, labels."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import eq
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from samovar.changelog.batches import objects
from samovar.changelog.formats.dead_letters import PREFIX
from samovar.changelog.log import Log, Records
from samovar.changelog.spark.connector_log import Range, SparkFeed
from samovar.changelog.spark.source import BATCH_ROWS, Condition
from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.native.kernel import Other
from samovar.patterns.engine.avro import schema as avro
from samovar.patterns.engine.decode import CODES
from samovar.patterns.engine.decoder import Decoder
from samovar.patterns.semantics.schema import Schema
from samovar.patterns.syntax.tree import Rule
from samovar.service.config.models import ServiceFile, Stream
from samovar.service.spark.frames.arrow_types import BYTES, DOUBLE, FLAG, INT, LONG, TEXT, TIME
from samovar.service.spark.frames.frame import (
    FrameOptions,
    FrameRange,
    narrowed_parts,
    ranges_of,
    records_of,
    topic_ranges,
)
from samovar.service.spark.frames.rules import (
    KnownVersion,
    VersionCatalog,
    emits_of,
    json_of,
    known_rules,
    time_us,
)  # fmt: skip
from samovar.service.topology.archives import opened_with_archive
from samovar.service.topology.encoding import decoding_of
from samovar.service.topology.stores import StateLocation

KINDS = {"string": TEXT, "double": DOUBLE, "long": LONG, "boolean": FLAG, "any": TEXT}
OF_SQL = {"string": TEXT, "double": DOUBLE, "bigint": LONG, "boolean": FLAG, "array<string>": pa.list_(TEXT)}
OF_AVRO = {
    "int": "long",
    "long": "long",
    "float": "double",
    "double": "double",
    "boolean": "boolean",
    "string": "string",
}
EVENT = pa.struct([("step", TEXT), ("stream", TEXT), ("partition", INT), ("offset", LONG)])
Fields: TypeAlias = Sequence[tuple[str, Any]]  # columns and their Arrow types

PLACE: Fields = [("_partition", INT), ("_offset", LONG), ("_time", TIME), ("_key", TEXT)]
ALERT: Fields = [
    ("id", TEXT), ("rule", TEXT), ("version", TEXT), ("severity", TEXT), ("tags", pa.list_(TEXT)),
    ("key", pa.map_(TEXT, TEXT)), ("start", TIME), ("end", TIME), ("at", TIME), ("message", TEXT), ("emit", TEXT),
    ("events", pa.list_(EVENT)), ("total", LONG),
]  # fmt: skip
LETTER: Fields = [
    ("topic", TEXT), ("partition", INT), ("offset", LONG), ("stage", TEXT), ("value", BYTES), ("text", TEXT),
]  # fmt: skip
TOPICS: Mapping[str, Fields] = {
    "dead-letters": [("reason", TEXT), ("message", TEXT), *LETTER],
    "late": [("late_ms", LONG), ("stream", TEXT), *LETTER],
    "labels": [
        ("alert", TEXT), ("rule", TEXT), ("key", TEXT), ("label", TEXT), ("by", TEXT), ("at", TIME), ("note", TEXT),
    ],
}  # fmt: skip
Columns: TypeAlias = Callable[[Records], list[pa.Array]]
RowOf: TypeAlias = Callable[[Records, int], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class RecordFrame:
    """A frame with a row per record. `columns` is called on every executor, by a function that can travel there."""

    settings: ServiceFile
    schema: pa.Schema
    parts: tuple[FrameRange, ...]
    columns: Callable[..., Columns]  # of all, or of those that `wanted` names
    topic: str
    key: bytes | None = None
    only: tuple[str, Callable[[str], bool]] | None = None  # a column, and whether a value is wanted
    reads_headers: bool = False

    def read(self, part: FrameRange) -> Iterator[pa.RecordBatch]:
        columns = self.columns()
        with opened_with_archive(self.settings) as log:
            for records in records_of(log, part):
                yield from self.batches(records, columns)

    def narrowed(self, conditions: Sequence[Condition]) -> RecordFrame:
        with opened_with_archive(self.settings) as log:
            parts = narrowed_parts(self.parts, conditions, log)
        texts = [value for column, operator, value in conditions if (column, operator) == ("_key", "=")]
        exact = [text.encode() for text in texts if "\ufffd" not in text]  # which stands for what is not text
        return replace(self, parts=parts, key=exact[0] if exact and self.key is None else self.key)

    def choosing(self, names: Collection[str]) -> RecordFrame:
        """The same with some of its columns: of the others nothing is decoded. What rows are picked by stays."""
        wanted = {*names, *(() if self.only is None else self.only[:1])}
        schema = pa.schema([each for each in self.schema if each.name in wanted])
        return replace(self, schema=schema, columns=partial(self.columns, wanted=frozenset(wanted)))

    def ranges(self, log: Log) -> Sequence[Range]:  # noqa: ARG002 - as a frame has it
        return ranges_of(self.parts)

    def read_fed(self, feed: SparkFeed) -> Iterator[pa.RecordBatch]:
        columns = self.columns()
        while (at := feed.coming()) is not None:
            records = feed.take(at)
            if records is not None:
                yield from self.batches(records, columns)

    def batches(self, records: Records, columns: Columns) -> Iterator[pa.RecordBatch]:
        """Rows of records; `columns` is what the field of this name gives."""
        keys = _keys(records) if self.key is not None or "_key" in self.schema.names else []
        place: dict[str, Callable[[], pa.Array]] = {
            "_partition": lambda: pa.array(np.full(len(records), records.partition, np.int32)),
            "_offset": lambda: pa.array(np.asarray(records.offsets)),
            "_time": lambda: pa.array(np.asarray(records.times, np.int64) * 1000, LONG).cast(TIME),
            "_key": lambda: pa.array([text_of(key) for key in keys], TEXT),
        }
        placed = [array() for name, array in place.items() if name in self.schema.names]
        batch = pa.RecordBatch.from_arrays([*placed, *columns(records)], schema=self.schema)
        if self.key is not None:
            batch = batch.filter(pa.array([key == self.key for key in keys]))
        if self.only is not None:
            column, is_wanted = self.only
            batch = batch.filter(pa.array([is_wanted(value) for value in batch.column(column).to_pylist()], FLAG))
        yield from (batch.slice(start, BATCH_ROWS) for start in range(0, batch.num_rows, BATCH_ROWS))


def _keys(records: Records) -> list[bytes | None]:
    empty = np.flatnonzero(records.keys.starts == records.keys.ends)
    keyless = np.zeros(len(records), np.bool_)
    keyless[empty] = [records.key(row) is None for row in empty.tolist()]
    return list(objects(records.keys, keyless))


def _frame(
    site: StateLocation, options: FrameOptions, topic: str, fields: Fields, columns: Callable[..., Columns]
) -> RecordFrame:
    key = None if options.key is None else options.key.encode()
    parts = topic_ranges(site, topic, options, needed=options.source != "labels")  # nobody may have written any yet
    reads_headers = options.source in ("dead-letters", "late")
    return RecordFrame(
        settings=site.settings,
        schema=pa.schema([*PLACE, *fields]),
        parts=parts,
        columns=columns,
        topic=topic,
        key=key,
        only=None,
        reads_headers=reads_headers,
    )


def _columns_of_rows(fields: Fields, row_of: RowOf, wanted: Collection[str] | None = None) -> Columns:
    fields = [(name, kind) for name, kind in fields if wanted is None or name in wanted]

    def columns(records: Records) -> list[pa.Array]:
        rows = [] if not fields else [row_of(records, number) for number in range(len(records))]
        return [pa.array([row[name] for row in rows], kind) for name, kind in fields]

    return columns


# ---------------------------------------------------------------- inputs


def inputs(site: StateLocation, options: FrameOptions) -> RecordFrame:
    """Events as rules see them, a column per field of the stream's schema. What is not an event has only `_error`."""
    assert options.stream is not None
    stream = site.settings.streams[options.stream]
    kinds: Mapping[str, str] = {}  # by dotted field; of several event types, all their fields
    if stream.fields is not None:
        schema = Schema.of(stream.fields if stream.type is not None else {options.stream: stream.fields})
        kinds = dict(schema.fields(["any"]))
    elif stream.avro is not None:
        root = stream.avro.root
        record = stream.avro.names.get(root.name) if isinstance(root, avro.Ref) else root
        if isinstance(record, avro.RecordType):
            kinds = {each.name: _avro_kind(each.type) for each in record.fields}
    raw = options.raw or not kinds
    fields: Fields = [("_event_time", TIME), ("_type", TEXT), ("_error", TEXT)]
    fields = [*fields, *((name, KINDS[kind]) for name, kind in kinds.items()), *([("_value", TEXT)] if raw else [])]
    return _frame(site, options, stream.topic, fields, partial(_input_columns, options.stream, stream, kinds, raw))


def _avro_kind(kind: avro.Type) -> str:
    """What a rule sees of a type; of a union with null, that of the other branch."""
    if isinstance(kind, avro.Union):
        others = [each for each in kind.branches if not (isinstance(each, avro.Primitive) and each.kind == "null")]
        return _avro_kind(others[0]) if len(others) == 1 else "any"
    if not isinstance(kind, avro.Primitive) or kind.logical is not None:
        return "any"
    return OF_AVRO.get(kind.kind, "any")


def _input_columns(
    name: str, stream: Stream, kinds: Mapping[str, str], raw: bool, wanted: Collection[str] | None = None
) -> Columns:
    def is_wanted(column: str) -> bool:
        return wanted is None or column in wanted

    kinds = {column: kind for column, kind in kinds.items() if is_wanted(column)}
    own = [column for column in ("_event_time", "_type", "_error") if is_wanted(column)]
    raw = raw and is_wanted("_value")
    decoder: Any = decoding_of(stream)(list(kinds), stream.time, stream.type, name)

    def message(value: bytes | None) -> str | None:
        json_text = None if value is None or type(decoder) is Decoder else decoder.json(value)  # of Avro
        return json_text if isinstance(json_text, str) else text_of(value)

    def columns(records: Records) -> list[pa.Array]:
        if not (kinds or own):
            return [pa.array([message(records.value(row)) for row in range(len(records))], TEXT)] if raw else []
        batch = decoder.batch()
        codes = decoder.decode(batch, records.values)["code"]
        events = np.flatnonzero(codes == 0).tolist()

        def spread(values: list[Any]) -> list[Any]:
            """Values of the events among all records."""
            if len(events) == len(records):
                return values
            found: list[Any] = [None] * len(records)
            for row, value in zip(events, values, strict=True):
                found[row] = value
            return found

        of_events: dict[str, Callable[[], pa.Array]] = {
            "_event_time": lambda: pa.array(spread([time_us(time) for time in batch.time.tolist()]), TIME),
            "_type": lambda: pa.array(spread(batch.types()), TEXT),
            "_error": lambda: pa.array(list(map(_error_of, codes.tolist())), TEXT),
        }
        made = [of_events[column]() for column in own]
        for place, kind in enumerate(kinds.values()):
            made.append(pa.array(spread([_as(kind, value) for value in batch.values(place)]), KINDS[kind]))
        if raw:
            made.append(pa.array([message(records.value(row)) for row in range(len(records))], TEXT))
        return made

    return columns


def _error_of(code: int) -> str | None:
    return None if code == 0 else CODES[code & 0xFF]  # of Avro, its reason stands above


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


def text_of(data: bytes | None) -> str | None:
    """As people read it. What is not text is shown with its bytes replaced."""
    return None if data is None else data.decode("utf-8", "replace")


# ---------------------------------------------------------------- alerts and sessions


def alerts(
    site: StateLocation, options: FrameOptions, known: Mapping[str, KnownVersion] | None, *, only_sessions: bool
) -> RecordFrame:
    """All alerts, or those of rules that find sessions. Only of one rule has `emit` columns of its own."""
    known = known_rules(site) if known is None else known
    sessions = {version: rule for version, rule in known.items() if rule.is_session}
    emits = emits_of(sessions if only_sessions else known)
    if options.rule is not None and options.rule not in emits:
        hint = did_you_mean(options.rule, emits) or f"Rules are {', '.join(sorted(emits)) or 'none'}."
        raise Refused("frame-option", f"no rule `{options.rule}` of the service finds them", hint)
    types = {} if options.rule is None else emits[options.rule]
    emit = pa.struct([(name, OF_SQL[kind]) for name, kind in types.items()]) if types else TEXT
    fields = [(name, emit if name == "emit" else kind) for name, kind in ALERT]
    fields += [("duration_ms", LONG)] if only_sessions else []
    versions = VersionCatalog(site.settings, known)
    columns = partial(_columns_of_rows, fields, partial(_alert_row, versions, types))
    frame = _frame(site, options, site.settings.alerts.topic, fields, columns)
    if options.rule is not None:
        return replace(frame, only=("rule", partial(eq, options.rule)))
    return replace(frame, only=("version", partial(_finds_sessions, versions))) if only_sessions else frame


def _finds_sessions(versions: VersionCatalog, version: str) -> bool:
    rule = versions.get(version)
    return rule is not None and rule.is_session


def _alert_row(versions: VersionCatalog, types: Mapping[str, str], records: Records, number: int) -> Mapping[str, Any]:
    alert = _json_map(records.value(number))
    return alert_row(alert, versions.get(alert.get("version", "")), types)


def alert_row(
    alert: Mapping[str, Any], rule: KnownVersion | Rule | None, types: Mapping[str, str] = MappingProxyType({})
) -> Mapping[str, Any]:
    """The columns of an alert, severity and tags by its rule."""
    key = alert.get("key", {}).items()
    events = [
        {"step": step, "stream": stream, "partition": partition, "offset": offset}
        for step, matched in alert.get("steps", {}).items()
        for stream, partition, offset in matched
    ]
    emit = alert.get("emit")
    return {
        **{name: alert.get(name) for name in ("id", "rule", "version", "message")},
        **{name: time_us(alert.get(name)) for name in ("start", "end", "at")},
        "severity": None if rule is None else rule.severity,
        "tags": [] if rule is None else list(rule.tags),
        "key": [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in key],
        "emit": _typed(emit, types) if types else json_of(emit),
        "events": events,
        "total": alert.get("total") or len(events),
        "duration_ms": (alert.get("end") or 0) - (alert.get("start") or 0),
    }


def _typed(emitted: Any, types: Mapping[str, str]) -> dict[str, Any] | None:
    """What an alert emits, by the types of its rule."""
    if not isinstance(emitted, dict):
        return None
    found: dict[str, Any] = {}
    for name, kind in types.items():
        value = emitted.get(name)
        if kind == "array<string>":
            found[name] = [_as("string", each) for each in value] if isinstance(value, list) else None
        else:
            found[name] = _as("long" if kind == "bigint" else kind, value)
    return found


def _json_map(value: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(value or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


# ---------------------------------------------------------------- dead letters, late events, labels


def auxiliary(site: StateLocation, options: FrameOptions) -> RecordFrame:
    """Dead letters and late events, by their headers; labels, which people gave to alerts."""
    settings, fields = site.settings, TOPICS[options.source]
    if options.source == "labels":
        topic, row_of = f"{settings.service}-labels", _label_row
    else:
        topic, row_of = (settings.late if options.source == "late" else settings.dead_letters).topic, _letter_row
    return _frame(site, options, topic, fields, partial(_columns_of_rows, fields, row_of))


def _letter_row(records: Records, number: int) -> Mapping[str, Any]:
    headers, value = dict(records.headers(number)), records.value(number)

    def whole_number(name: str) -> int | None:
        data = headers.get(name)
        return None if data is None or not data.isdigit() else int(data)

    return {
        "reason": text_of(headers.get(PREFIX + "exception")),
        "message": text_of(headers.get(PREFIX + "message")),
        "late_ms": whole_number("samovar.late.ms"),
        "stream": text_of(headers.get("samovar.stream")),
        "topic": text_of(headers.get(PREFIX + "topic")),
        "partition": whole_number(PREFIX + "partition"),
        "offset": whole_number(PREFIX + "offset"),
        "stage": text_of(headers.get("samovar.stage")),
        "value": value,
        "text": text_of(value),
    }


def _label_row(records: Records, number: int) -> Mapping[str, Any]:
    label = _json_map(records.value(number))
    return {
        name: time_us(label.get(name)) if kind is TIME else _as("string", label.get(name))
        for name, kind in TOPICS["labels"]
    }
