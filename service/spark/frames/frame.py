"""What `spark.read.format("samovar")` reads of a service: options, which topic, which offsets, which columns.

    config      the service file
    source      changelog, inputs/STREAM, alerts, sessions, dead-letters, late, labels; alerts/RULE and sessions/RULE
                are those of one rule, with what it emits as columns of their own types
    mode        of a changelog: latest (the current state of each key) or changes (every change)
    key         only this key, written as for `samovar state get`
    partitions  only these, as 0,3
    from, to    an offset, -N, or a time; `to` is not part of it. Of `latest`, `to` is the moment it stands for
    stage       of a changelog: only this one; otherwise all
    raw         of inputs: true adds the message itself, `_value`

Columns that begin with `_` are ours: where a record is, when it came. Frames are read by tasks of Spark, each a stretch
of one partition; a state is whole in one task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from samovar.changelog.log import Bounds, Log, TopicPartition
from samovar.changelog.spark.connector_log import Range
from samovar.changelog.spark.source import Frame, register
from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.service.config.loading import load_service
from samovar.service.query.read import offset_of
from samovar.service.topology.logs import opened
from samovar.service.topology.stores import StateLocation, site_of

if TYPE_CHECKING:
    from samovar.changelog.spark.source import SparkSession
    from samovar.service.spark.frames.rules import KnownVersion

NAME = "samovar"
OPTIONS = ("config", "source", "mode", "key", "partitions", "from", "to", "stage", "raw", "path")
SOURCES = (
    "changelog", "inputs/STREAM", "alerts", "alerts/RULE", "sessions", "sessions/RULE", "dead-letters", "late", "labels"
)  # fmt: skip
MODES = ("latest", "changes")
SPLIT = 250_000  # offsets of one task, where a partition can be cut


@dataclass(frozen=True)
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

    @property
    def stream(self) -> str | None:
        return self.source.removeprefix("inputs/") if self.source.startswith("inputs/") else None

    @property
    def rule(self) -> str | None:
        kind, _, name = self.source.partition("/")
        return name if kind in ("alerts", "sessions") and name else None


@dataclass(frozen=True)
class FrameRange:
    """Offsets of one partition, for one task."""

    topic: str
    partition: int
    start: int
    end: int
    stage: str = ""


def wanted_of(options: Mapping[str, str]) -> FrameOptions:
    """Spark gives option names in small letters."""
    given = {name.lower(): value for name, value in options.items()}
    for name in given:
        if name not in OPTIONS:
            hint = did_you_mean(name, OPTIONS) or f"Options are {', '.join(OPTIONS[:-1])}."
            raise Refused("frame-option", f"there is no option `{name}`", hint)
    config = given.get("config") or given.get("path")
    if config is None:
        raise Refused("frame-option", "the option `config` is missing", 'Add `.option("config", "service.yml")`.')
    source, mode = given.get("source", "changelog"), given.get("mode", "latest")
    if mode not in MODES:
        raise Refused("frame-option", f"there is no mode `{mode}`", f"Choose {' or '.join(MODES)}.")
    numbers = given.get("partitions", "").replace(" ", "").split(",")
    if any(number and not number.isdecimal() for number in numbers):
        hint = "Write numbers with commas between them: 0,3."
        raise Refused("frame-option", f"`partitions` is `{given['partitions']}`", hint)
    return FrameOptions(
        Path(config),
        source.replace("_", "-").replace("dead letters", "dead-letters") if "/" not in source else source,
        mode,
        given.get("key"),
        tuple(int(number) for number in numbers if number),
        given.get("from"),
        given.get("to"),
        given.get("stage"),
        given.get("raw", "false").lower() == "true",
    )


def register_spark(spark: SparkSession) -> None:
    """Make `spark.read.format("samovar")` known to a session, in a notebook or a program of your own."""
    register(spark, NAME, partial(frame_of, folder=str(Path.cwd())))


def frame_of(options: Mapping[str, str], folder: str = ".") -> Frame:
    """What the options ask for. The log is looked at, nothing is read. `folder` is where paths begin: Spark's own
    processes may have been started elsewhere.
    """
    wanted = wanted_of(options)
    wanted = replace(wanted, config=(Path(folder) / wanted.config).absolute())
    settings = load_service(wanted.config)
    with opened(settings) as log:
        return _frame(site_of(settings, log), wanted)


def frame_in(site: StateLocation, options: Mapping[str, str], known: Mapping[str, KnownVersion]) -> Frame:
    """The same for who has the service and its rules at hand already."""
    return _frame(site, wanted_of(options), known)


def _frame(site: StateLocation, wanted: FrameOptions, known: Mapping[str, KnownVersion] | None = None) -> Frame:
    from samovar.service.spark.frames import events, states  # noqa: PLC0415 - they know the rest of this module

    if wanted.source == "changelog":
        return states.frame_of(site, wanted)
    if wanted.stream is not None:
        if wanted.stream not in site.settings.streams:
            streams = list(site.settings.streams)
            hint = did_you_mean(wanted.stream, streams) or f"Streams are {', '.join(streams)}."
            raise Refused("frame-option", f"the service has no stream `{wanted.stream}`", hint)
        return events.inputs(site, wanted)
    makers: Mapping[str, Callable[[StateLocation, FrameOptions], Frame]] = {
        "alerts": partial(events.alerts, known=known),
        "sessions": partial(events.sessions, known=known),
        "dead-letters": events.dead_letters,
        "late": events.late,
        "labels": events.labels,
    }
    kind = wanted.source if wanted.rule is None else wanted.source.partition("/")[0]
    if kind not in makers:
        hint = did_you_mean(wanted.source, [*makers, "changelog"]) or f"Sources are {', '.join(SOURCES)}."
        raise Refused("frame-option", f"there is no source `{wanted.source}`", hint)
    return makers[kind](site, wanted)


# ---------------------------------------------------------------- which offsets


def stretches(site: StateLocation, topic: str, wanted: FrameOptions, *, needed: bool = True) -> tuple[FrameRange, ...]:
    """The stretches of a topic that were asked for, cut for several tasks. A topic that is missing is refused, or
    empty where it is not `needed`.
    """
    found = site.log.topics([topic]).get(topic)
    if found is None:
        if not needed:
            return ()
        raise Refused(
            "topic-missing", f"the topic {topic} does not exist yet", "`samovar run` and `samovar produce` make it."
        )
    numbers = _chosen(topic, found.partitions, wanted.partitions)
    places = [TopicPartition(topic, number) for number in numbers]
    cut = [_between(site.log, at, bounds, wanted) for at, bounds in site.log.bounds(places).items()]
    return tuple(piece for stretch in cut for piece in _pieces(stretch))


def _chosen(topic: str, count: int, asked: Sequence[int]) -> list[int]:
    for number in asked:
        if number >= count:
            hint = f"Choose from 0 to {count - 1}."
            raise Refused("unknown-partition", f"{topic} has no partition {number}", hint)
    return sorted(set(asked)) or list(range(count))


def _between(log: Log, at: TopicPartition, bounds: Bounds, wanted: FrameOptions) -> FrameRange:
    start = offset_of(log, at, bounds, wanted.start or "begin")
    end = min(bounds.end, offset_of(log, at, bounds, wanted.end or "end"))
    return FrameRange(at.topic, at.partition, start, max(start, end))


def _pieces(stretch: FrameRange) -> Iterator[FrameRange]:
    for start in range(stretch.start, stretch.end, SPLIT):
        end = min(start + SPLIT, stretch.end)
        yield FrameRange(stretch.topic, stretch.partition, start, end, stretch.stage)


def ranges_of(pieces: Sequence[FrameRange]) -> list[Range]:
    """Stretches as a log has them: those that were cut from one are one again."""
    found: dict[TopicPartition, Range] = {}
    for each in pieces:
        at = TopicPartition(each.topic, each.partition)
        known = found.get(at, Range(at, each.start, each.end))
        found[at] = Range(at, min(known.start, each.start), max(known.end, each.end))
    return list(found.values())
