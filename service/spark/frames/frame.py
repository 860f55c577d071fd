"""What `spark.read.format("samovar")` reads of a service: options, which topic, which offsets, which columns.

    config      the service file
    source      changelog, inputs/STREAM, alerts, sessions, dead-letters, late, labels; alerts/RULE and sessions/RULE
                are those of one rule, with what it emits as columns of their own types
    mode        of a changelog: latest (the current state of each key) or changes (every change)
    key         only this key, written as for `samovar state get`
    partitions  only these, as 0,3
    from, to    an offset, -N, or a time; `to` is not part of it. Of `latest`, `to` is the moment it stands for. As of
                Spark's source for Kafka: startingOffsets, endingOffsets, startingTimestamp, endingTimestamp
    stage       of a changelog: only this one; otherwise all
    raw         of inputs: true adds the message itself, `_value`

and of a stream (samovar.service.spark.frames.stream) `maxRecordsPerTrigger` and `failOnDataLoss`.

Columns that begin with `_` are ours: where a record is, when it came. Frames are read by tasks of Spark, each an offset
range of one partition; a state is whole in one task.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from samovar.changelog.cursors import PartitionCursor, refuse_gap
from samovar.changelog.log import Bounds, Log, Records, TopicPartition
from samovar.changelog.spark.connector_log import Range
from samovar.changelog.spark.session import is_local
from samovar.changelog.spark.source import Condition, Frame, register
from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.service.config.loading import load_service
from samovar.service.query.read import offset_of
from samovar.service.spark.session import refuse_remote_executors
from samovar.service.topology.archives import opened_with_archive
from samovar.service.topology.stores import StateLocation, site_of

if TYPE_CHECKING:
    from samovar.changelog.spark.source import SparkSession
    from samovar.service.spark.frames.rules import KnownVersion

NAME = "samovar"
STREAM_OPTIONS = ("maxRecordsPerTrigger", "failOnDataLoss")
OPTIONS = (
    "config", "source", "mode", "key", "partitions", "from", "to", "stage", "raw", *STREAM_OPTIONS, "startingOffsets",
    "endingOffsets", "startingTimestamp", "endingTimestamp", "path",
)  # fmt: skip
PLACES = {"earliest": "begin", "latest": "end"}  # as Spark's own sources call them
PLACES_BY_NUMBER = {-2: "begin", -1: "end"}  # by partition, in JSON
SOURCES = (
    "changelog", "inputs/STREAM", "alerts", "alerts/RULE", "sessions", "sessions/RULE", "dead-letters", "late", "labels"
)  # fmt: skip
MODES = ("latest", "changes")
TEMPORARY = "write `create temporary view NAME using samovar options (config '...', source '...')`."
SPLIT = 250_000  # offsets of one task, where a partition can be cut


@dataclass(frozen=True, kw_only=True)
class FrameOptions:
    """A reader's options, checked."""

    config: Path
    source: str
    mode: str = "latest"
    key: str | None = None
    partitions: tuple[int, ...] = ()
    start: str | None = None
    end: str | None = None
    stage: str | None = None
    raw: bool = False
    max_records: int | None = None  # of one batch of a stream, about
    fails_on_loss: bool = True
    feed: str = ""  # of a stream: under which name executors keep what they have folded

    @property
    def is_stream(self) -> bool:
        return bool(self.feed)

    @property
    def stream(self) -> str | None:
        return self.source.removeprefix("inputs/") if self.source.startswith("inputs/") else None

    @property
    def rule(self) -> str | None:
        kind, _, name = self.source.partition("/")
        return name if kind in ("alerts", "sessions") and name else None


@dataclass(frozen=True, kw_only=True)
class FrameRange:
    """Offsets of one partition, for one task."""

    topic: str
    partition: int
    start: int
    end: int
    stage: str = ""
    may_skip: bool = False  # what retention took before it could be read

    def split(self) -> list[FrameRange]:
        """Cuts a large range for several tasks."""
        starts = range(self.start, self.end, SPLIT)
        return [replace(self, start=start, end=min(start + SPLIT, self.end)) for start in starts]


def parse_options(options: Mapping[str, str]) -> FrameOptions:
    """Checks a reader's options. Spark gives their names in small letters."""
    given = {name.lower(): value for name, value in options.items()}
    if "provider" in given:  # a property of tables
        what = "Spark keeps the options of `create table` to itself: a table could not be read"
        raise Refused("frame-option", what, TEMPORARY)
    for name in given:
        if name not in map(str.lower, OPTIONS):
            hint = did_you_mean(name, OPTIONS) or f"Options are {', '.join(OPTIONS[:-2])}."
            raise Refused("frame-option", f"there is no option `{name}`", hint)
    config = given.get("config") or given.get("path")
    if config is None:
        hint = f'Add `.option("config", "service.yml")`. Of a table: {TEMPORARY}'
        raise Refused("frame-option", "the option `config` is missing", hint)
    source, mode = given.get("source", "changelog"), given.get("mode", "latest")
    for name, kind in {"mode": "changelog", "stage": "changelog", "raw": "inputs"}.items():
        if name in given and source.partition("/")[0] != kind:
            hint = "A reader keeps its options: begin the next frame with `spark.read` again."
            raise Refused("frame-option", f"`{name}` is of {kind}, and the source is {source}", hint)
    if mode not in MODES:
        raise Refused("frame-option", f"there is no mode `{mode}`", f"Choose {' or '.join(MODES)}.")
    numbers = given.get("partitions", "").replace(" ", "").split(",")
    if any(number and not number.isdecimal() for number in numbers):
        hint = "Write numbers with commas between them: 0,3."
        raise Refused("frame-option", f"`partitions` is `{given['partitions']}`", hint)
    for name in ("raw", "failOnDataLoss"):  # what is misspelt must not mean that records may be lost
        if given.get(name.lower(), "true").lower() not in ("true", "false"):
            raise Refused("frame-option", f"`{name}` is `{given[name.lower()]}`", "Write true or false.")
    most = given.get("maxrecordspertrigger")
    if most is not None and not (most.isdecimal() and int(most)):
        raise Refused("frame-option", f"`maxRecordsPerTrigger` is `{most}`", "Write a number of records: 10000.")
    return FrameOptions(
        config=Path(config),
        source=source.replace("_", "-").replace("dead letters", "dead-letters") if "/" not in source else source,
        mode=mode,
        key=given.get("key"),
        partitions=tuple(int(number) for number in numbers if number),
        start=_place(given, "from", "startingOffsets", "startingTimestamp"),
        end=_place(given, "to", "endingOffsets", "endingTimestamp"),
        stage=given.get("stage"),
        raw=given.get("raw", "false").lower() == "true",
        max_records=None if most is None else int(most),
        fails_on_loss=given.get("failondataloss", "true").lower() == "true",
    )


def _place(given: Mapping[str, str], *names: str) -> str | None:
    """Where to begin or end: said in our way, in that of Kafka's source, or by log time in ms."""
    told = [name for name in names if name.lower() in given]
    if len(told) > 1:
        raise Refused("frame-option", f"`{told[0]}` and `{told[1]}` say the same", "Leave one of them out.")
    if not told:
        return None
    text = given[told[0].lower()].strip()
    if told[0] != names[2]:
        return PLACES.get(text, text)
    if not text.isdecimal():
        hint = f"Write ms since 1970, or a time in words: `{names[0]}=2026-01-05T10:00:00Z`."
        raise Refused("frame-option", f"`{told[0]}` is `{text}`", hint)
    return datetime.fromtimestamp(int(text) / 1000, UTC).isoformat(timespec="milliseconds")


def offset_in(log: Log, at: TopicPartition, bounds: Bounds, place: str) -> int:
    """The offset that a place means: one for all partitions, or JSON by topic and partition, as of Kafka's source."""
    if place.startswith("{"):
        try:
            number = int(json.loads(place)[at.topic][str(at.partition)])
        except (ValueError, KeyError, TypeError) as error:
            hint = (
                f'Write one for each partition: `{{"{at.topic}": {{"{at.partition}": 0}}}}`; -2 is earliest, -1 latest.'
            )
            raise Refused("frame-option", f"the offsets `{place}` have none for {at}", hint) from error
        place = PLACES_BY_NUMBER.get(number, str(max(0, number)))
    return offset_of(log, at, bounds, place)


def register_spark(spark: SparkSession) -> None:
    """Makes `spark.read.format("samovar")`, `readStream`, `write` and `writeStream` known to a session."""
    from samovar.service.spark.frames.stream import stream_of  # noqa: PLC0415 - it imports this module
    from samovar.service.spark.write import sink_of  # noqa: PLC0415 - only a session needs it

    folder, context = str(Path.cwd()), getattr(spark, "sparkContext", None)  # a session by Spark Connect has none
    here = context is None or is_local(str(context.master))
    opening = partial(frame_of, folder=folder, is_local=here)
    streaming = partial(stream_of, folder=folder, is_local=here)
    register(spark, NAME, opening, streaming, partial(sink_of, folder=folder))


def frame_of(options: Mapping[str, str], folder: str = ".", is_local: bool = True) -> Frame:
    """Opens a frame; nothing is read yet. Paths begin in `folder`: Spark's own processes may have started elsewhere."""
    asked = parse_options(options)
    asked = replace(asked, config=(Path(folder) / asked.config).absolute())
    settings = load_service(asked.config)
    refuse_remote_executors(settings, is_local=is_local)
    with opened_with_archive(settings) as log:
        return frame_in(site_of(settings, log), asked)


def frame_in(site: StateLocation, options: FrameOptions, known: Mapping[str, KnownVersion] | None = None) -> Frame:
    """Opens a frame of an open service. `known` are its rule versions, where the caller has them already."""
    from samovar.service.spark.frames import events, states  # noqa: PLC0415 - they import this module

    if options.source == "changelog":
        return states.frame_of(site, options)
    if options.stream is not None:
        if options.stream not in site.settings.streams:
            streams = list(site.settings.streams)
            hint = did_you_mean(options.stream, streams) or f"Streams are {', '.join(streams)}."
            raise Refused("frame-option", f"the service has no stream `{options.stream}`", hint)
        return events.inputs(site, options)
    kind = options.source if options.rule is None else options.source.partition("/")[0]
    if kind in ("alerts", "sessions"):
        return events.alerts(site, options, known, only_sessions=kind == "sessions")
    if kind not in events.TOPICS:
        sources = ["alerts", "sessions", *events.TOPICS, "changelog"]
        hint = did_you_mean(options.source, sources) or f"Sources are {', '.join(SOURCES)}."
        raise Refused("frame-option", f"there is no source `{options.source}`", hint)
    return events.auxiliary(site, options)


def topic_ranges(
    site: StateLocation, topic: str, options: FrameOptions, *, needed: bool = True
) -> tuple[FrameRange, ...]:
    """The offsets that the options ask for, cut for several tasks. A missing topic is refused where it is `needed`."""
    found = site.log.topics([topic]).get(topic)
    if found is None:
        if not needed:
            return ()
        raise Refused(
            "topic-missing", f"the topic {topic} does not exist yet", "`samovar run` and `samovar produce` make it."
        )
    for number in options.partitions:
        if number >= found.partitions:
            hint = f"Choose from 0 to {found.partitions - 1}."
            raise Refused("unknown-partition", f"{topic} has no partition {number}", hint)
    numbers = sorted(set(options.partitions)) or range(found.partitions)
    ranges: list[FrameRange] = []
    for at, bounds in site.log.bounds([TopicPartition(topic, number) for number in numbers]).items():
        start = offset_in(site.log, at, bounds, options.start or "begin")
        if start <= bounds.begin and options.fails_on_loss:
            refuse_gap(site.log, at)
        end = min(bounds.end, offset_in(site.log, at, bounds, options.end or "end"))
        ranges += FrameRange(topic=topic, partition=at.partition, start=start, end=end).split()
    return tuple(ranges)


def narrowed_parts(
    parts: Sequence[FrameRange], conditions: Sequence[Condition], log: Log | None = None, *, ends: bool = True
) -> tuple[FrameRange, ...]:
    """Ranges without offsets that cannot fulfil conditions on `_partition`, `_stage` and `_offset`; with a log, also on
    `_time` from below: later records may have earlier times. Without `ends` ranges end where they did.
    """
    found: list[FrameRange] = []
    for part in parts:
        start, end, is_wanted = part.start, part.end, True
        for column, operator, value in conditions:
            if column in ("_partition", "_stage") and operator in ("=", "in"):
                own = part.partition if column == "_partition" else part.stage or "main"
                is_wanted &= own in (value if operator == "in" else [value])
            elif column == "_offset" and operator != "in":
                start = max(start, value + (operator == ">")) if operator in ("=", ">", ">=") else start
                end = min(end, value + (operator != "<")) if ends and operator in ("=", "<", "<=") else end
            elif column == "_time" and operator in ("=", ">", ">=") and log is not None:
                at = TopicPartition(part.topic, part.partition)
                start = max(start, log.offset_at(at, int(value.timestamp() * 1000)))
        if is_wanted and start < end:
            found.append(replace(part, start=start, end=end))
    return tuple(found)


def records_of(log: Log, part: FrameRange) -> Iterator[Records]:
    """The records of a range. What retention took is refused, or passed over where the range says so."""
    at = TopicPartition(part.topic, part.partition)
    return PartitionCursor(log, at, part.start, available=part.may_skip).read_to(part.end)


def ranges_of(parts: Sequence[FrameRange]) -> list[Range]:
    """Joins ranges that were cut from one."""
    found: dict[TopicPartition, Range] = {}
    for each in parts:
        at = TopicPartition(each.topic, each.partition)
        known = found.get(at, Range(at, each.start, each.end))
        found[at] = Range(at, min(known.start, each.start), max(known.end, each.end))
    return list(found.values())
