"""The matcher as a transform of a data frame: rows that are events, to the alerts that rules find in them.

Rows go to tasks by the fields that a rule is keyed by, and in each task through the kernel in the order of a service:
event time, topic, partition, offset. States are in memory, those of the keys of one task; of a stream they are Spark's
(samovar.service.spark.match_stream). Rules that are keyed alike share a pass. One whose steps are keyed by different
fields, by an expression or not at all is a single task, or a single bucket of a stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from samovar.changelog.spark.source import map_arrow, map_sorted
from samovar.changelog.spark.stateful import GROUP, ROW, has_watermark, map_groups
from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.native.kernel import Int32s, Int64s
from samovar.patterns.api import Rules, load_rules
from samovar.patterns.engine.compile import Program, compile_rules
from samovar.patterns.engine.matcher import MAX_EVENTS, MAX_MATCHES, MAX_PARTIALS
from samovar.patterns.engine.order import NO_TIME
from samovar.patterns.engine.replay import EventReplay
from samovar.patterns.semantics.event_types import brackets_of
from samovar.patterns.syntax.tree import Field, Rule
from samovar.service.spark.match_stream import BucketMatcher, StreamMatcher, check_of

if TYPE_CHECKING:
    import pyarrow as pa

    from samovar.changelog.spark.source import DataFrame

MS, STREAM, PARTITION, OFFSET, TOPIC = "_ms", "_stream", "_partition", "_offset", "_topic"
WHOLE = ("tinyint", "smallint", "int", "bigint")
PLAIN = ("string", "boolean", *WHOLE)  # of which equal keys have equal hashes
ALERTS_AT_ONCE = 10_000
BUCKETS = 1_024
GivenRules: TypeAlias = Rules | Sequence[Rule] | str | Path


@dataclass(frozen=True, kw_only=True)
class FrameMatchOptions:
    """How events are read, and the limits of the matcher, as of `Rules.run`."""

    topics: tuple[str, ...]
    type: str
    until_ms: int | None
    max_partials: int
    max_events: int
    max_matches: int


def match(  # noqa: PLR0913 - options of a run, by name
    events: DataFrame,
    rules: GivenRules,
    *,
    topics: str | Sequence[str] = "events",
    time: str = "_event_time",
    type: str = "_type",
    flush: bool = True,
    buckets: int = BUCKETS,
    max_partials: int = MAX_PARTIALS,
    max_events: int = MAX_EVENTS,
    max_matches: int = MAX_MATCHES,
) -> DataFrame:
    """The alerts that rules find in a frame or stream of events, with the columns of `alerts`.

    `topics` names the topic of the events; of several, in the order of the service file, a column `_topic` says which.
    By it and by `_partition` and `_offset` an alert has the id that the service gives it; a frame without these is
    numbered as it is read. Without `flush`, event time ends at the frame's largest, which is looked for at once.

    Event time of a stream is its watermark: `events.withWatermark("_event_time", "5 seconds")`. Keys are in so many
    `buckets`, whose states Spark reads and writes as a whole.
    """
    from samovar.service.spark.frames.events import ALERT  # noqa: PLC0415 - pyarrow takes long to import

    given = tuple(load_rules(rules) if isinstance(rules, str | Path) else rules)
    if not given:
        raise _refused("there are no rules", "Give a folder, a file, or what `samovar.load_rules` returns.")
    if not 1 <= buckets < 1 << 31:
        raise _refused(f"`buckets={buckets}` is no number of buckets", f"Give a whole number from 1 on, or {BUCKETS}.")
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    columns = [*_place_columns(events, names, time), _quoted(type)]
    until_ms = None if flush or events.isStreaming else events.selectExpr(columns[0]).groupBy().max(MS).collect()[0][0]
    options = FrameMatchOptions(
        topics=names,
        type=type,
        until_ms=until_ms,
        max_partials=max_partials,
        max_events=max_events,
        max_matches=max_matches,
    )
    groups: dict[tuple[str, ...], list[Rule]] = {}
    for rule in given:
        groups.setdefault(_key_columns(events, rule), []).append(rule)
    if events.isStreaming:
        return _match_stream(events, groups, options, time, columns, buckets)
    found = []
    for by, own in groups.items():
        frame = events.selectExpr(*columns, *_field_columns(events, own, type))
        do = partial(_matches, tuple(own), options)
        found.append(map_sorted(frame, by, (MS, STREAM, PARTITION, OFFSET), do, ALERT))
    return reduce(lambda left, right: left.unionAll(right), found)


def _match_stream(
    events: DataFrame,
    groups: Mapping[tuple[str, ...], Sequence[Rule]],
    options: FrameMatchOptions,
    time: str,
    columns: Sequence[str],
    buckets: int,
) -> DataFrame:
    """All rules in one stage with states, the only one that a query may have."""
    from samovar.service.spark.frames.events import ALERT  # noqa: PLC0415 - pyarrow takes long to import

    kinds = dict(events.dtypes)
    if kinds[time] != "timestamp" or not has_watermark(events, time):
        hint = f'Say how late events may come: `events.withWatermark("{time}", "5 seconds")`.'
        raise _refused(f"the stream has no watermark by a timestamp `{time}`", hint)
    if not {PARTITION, OFFSET} <= kinds.keys():
        hint = "Ids of alerts are made of them: name the columns of the source so, as in `partition as _partition`."
        raise _refused(f"a stream needs the columns `{PARTITION}` and `{OFFSET}`", hint)
    ms, *place = [column.rpartition(" as ")[0] for column in columns[:4]]
    head = ", ".join(f"coalesce({each}, -1)" for each in place)
    rules = tuple(chain.from_iterable(groups.values()))
    names = [columns[4], *_field_columns(events, rules, options.type)]
    fields = ", ".join(f"{_text(_plain(name))}, {_json_value(name, kinds[_plain(name)])}" for name in names)
    event = f"concat_ws(' ', {head}, to_json(named_struct('{MS}', {ms}, {fields})))"
    matchers, spreads = {}, []
    for by, own in groups.items():
        keys, bucket = check_of(", ".join(by)) >> 1, f"pmod(xxhash64({', '.join(by)}), {buckets})" if by else "0"
        spreads.append(f"{keys << 32}L + {bucket}")
        matchers[keys] = BucketMatcher(
            rules=tuple(own), topics=options.topics, type=options.type, spread=bucket,
            max_partials=options.max_partials, max_events=options.max_events, max_matches=options.max_matches,
        )  # fmt: skip
    is_event = f"{_quoted(time)} is not null and {_quoted(options.type)} is not null"
    spread = f"explode(array({', '.join(spreads)})) as {GROUP}"
    rows = events.where(is_event).selectExpr(spread, _quoted(time), f"{event} as {ROW}")
    return map_arrow(map_groups(rows, StreamMatcher(matchers)), partial(_alerts_of_lines, rules), ALERT)


def _json_value(column: str, kind: str) -> str:
    """A column as JSON has it: as the matcher reads columns of a frame."""
    if kind == "date":
        return f"unix_date({column}) * 86400000L"
    if kind.startswith("timestamp"):
        return f"unix_millis(cast({column} as timestamp))"
    return f"nanvl({column}, null)" if kind in ("float", "double") else column


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _plain(name: str) -> str:
    return name[1:-1].replace("``", "`")


def _text(name: str) -> str:
    return "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _refused(what: str, hint: str) -> Refused:
    return Refused("frame-option", what, hint)


def _place_columns(events: DataFrame, topics: Sequence[str], time: str) -> list[str]:
    """Event time and where an event is, in SQL."""
    kinds = dict(events.dtypes)
    if kinds.get(time) not in ("timestamp", *WHOLE):
        what = f"no column `{time}`" if time not in kinds else f"a column `{time}` that is {kinds[time]}"
        hint = "Name with time=... the column of event times: timestamps, or milliseconds since 1970."
        raise _refused(f"the frame has {what}", hint)
    if len(topics) > 1 and TOPIC not in kinds:
        hint = 'Add it before frames are joined: `.withColumn("_topic", lit("purchase"))`.'
        raise _refused(f"events of {len(topics)} topics need a column `{TOPIC}`", hint)
    listed = ", ".join(map(_text, topics))
    stream = f"array_position(array({listed}), {TOPIC}) - 1" if len(topics) > 1 else "0"
    is_placed = PARTITION in kinds and OFFSET in kinds
    return [
        f"{f'unix_millis({_quoted(time)})' if kinds[time] == 'timestamp' else _quoted(time)} as {MS}",
        f"cast({stream} as int) as {STREAM}",
        f"cast({PARTITION if is_placed else '0'} as int) as {PARTITION}",
        f"cast({OFFSET if is_placed else 'monotonically_increasing_id()'} as bigint) as {OFFSET}",
    ]


def _field_columns(events: DataFrame, rules: Sequence[Rule], type: str) -> list[str]:
    """The columns that rules read: by their names, or structs in which fields are. One that is missing is refused."""
    wanted: dict[str, None] = {}
    for path in compile_rules(rules).fields:
        found = [name for name in events.columns if path == name or path.startswith(f"{name}.")]
        if not found:
            hint = did_you_mean(path, events.columns) or "Add it as null where no event has it."
            raise _refused(f"the rules read `{path}`, and the frame has no such column", hint)
        wanted |= dict.fromkeys(found)
    return [_quoted(name) for name in wanted if name != type]


def _key_columns(events: DataFrame, rule: Rule) -> tuple[str, ...]:
    """What rows are sent to tasks by; nothing where they must all be in one."""
    values = {key.value for each in brackets_of(rule) for key in each.by or ()} | {key.value for key in rule.form.by}
    keyed = [tuple(key.value for key in each.by or ()) for each in brackets_of(rule)]
    if any(each != tuple(key.value for key in rule.form.by) for each in keyed):
        return ()
    paths = [value.path for value in values if isinstance(value, Field)]
    kinds = dict(events.dtypes)
    if len(paths) < len(values) or any(kinds.get(path) not in PLAIN for path in paths):
        return ()
    return tuple(sorted(map(_quoted, paths)))


# ---------------------------------------------------------------- on executors


def _matches(
    rules: tuple[Rule, ...], options: FrameMatchOptions, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The alerts in all rows of one task."""

    from samovar.patterns.engine.frames import Frames  # noqa: PLC0415 - as above

    program = compile_rules(rules)
    replay = EventReplay(
        program, flush=options.until_ms is None, topics=options.topics, max_partials=options.max_partials,
        max_events=options.max_events, max_matches=options.max_matches,
    )  # fmt: skip
    replay.until_ms = NO_TIME if options.until_ms is None else options.until_ms
    taken = Frames(
        fields=program.fields, time=MS, type=options.type, fixed_type="", on_bad=lambda *_: None, missing="error",
        places=_places,
    )  # fmt: skip
    steps = chain(chain.from_iterable(replay.take_ordered(taken.take(each)) for each in batches), replay.finish())
    yield from _alert_batches(program, (line for found in steps if len(found) for line in found.lines))


def _alerts_of_lines(rules: tuple[Rule, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return _alert_batches(compile_rules(rules), (line for batch in batches for line in batch.column(0).to_pylist()))


def _alert_batches(program: Program, lines: Iterable[bytes | str]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415 - as above

    from samovar.service.spark.frames.events import ALERT, alert_row  # noqa: PLC0415 - as above

    own = {plan.version: plan.rule for plan in program.rules}
    rows = (alert_row(alert, own[alert["version"]]) for alert in map(json.loads, lines))
    while some := list(islice(rows, ALERTS_AT_ONCE)):
        yield pa.RecordBatch.from_pylist(some, schema=pa.schema(list(ALERT)))


def _places(batch: pa.RecordBatch) -> tuple[Int32s, Int32s, Int64s]:
    streams, partitions, offsets = (
        np.ascontiguousarray(batch.column(name).fill_null(-1).to_numpy(zero_copy_only=False))
        for name in (STREAM, PARTITION, OFFSET)
    )
    if len(streams) and streams.min() < 0:
        raise _refused(f"a row's `{TOPIC}` is none of the topics", "Name all of them with topics=[...].")
    return streams, partitions, offsets
