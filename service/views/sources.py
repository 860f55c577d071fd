"""What views read: the topics of a service as tables, each up to offsets that are known before anything is read.

    alerts, sessions, labels, dead_letters, late    as `spark.read.format("samovar")` has them (docs/spark.md)
    states, changes                                 the changelog: the current state of each key, and every change
    purchase, ...                                   the events of a stream, by its name
    alerts_card_testing, ...                        the alerts of one rule, with `emit` as a struct of typed fields

All but `states` have a column `day`: the date of the event, of the alert, or of the record.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from samovar.changelog.cursors import stalled
from samovar.changelog.log import Log
from samovar.changelog.spark.records import settle
from samovar.changelog.spark.source import Frame
from samovar.changelog.spark.views import ConnectorRanges, SqlTable
from samovar.service.config.models import ServiceFile
from samovar.service.spark.frames.frame import FrameRange, frame_in
from samovar.service.spark.frames.rules import emits_of, known_rules
from samovar.service.topology.logs import kafka_of
from samovar.service.topology.stores import site_of
from samovar.service.views.files import View, table_name

SPLIT = 250_000  # offsets of one task, of one partition or of several
TOPICS = {"alerts": "at", "sessions": "at", "labels": "at", "dead_letters": "_time", "late": "_time"}
STATES = {"states": "latest", "changes": "changes"}
_NOT_CODE = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class ViewSource:
    """A table that views may name: the options of its reader, and the column that its `day` comes from."""

    name: str
    options: Mapping[str, str]
    time: str | None


def sources_of(settings: ServiceFile, rules: Iterable[str]) -> dict[str, ViewSource]:
    """All tables. `rules` are the names of all that ran."""
    found = {name: ViewSource(name, {"source": name}, time) for name, time in TOPICS.items()}
    found |= {name: ViewSource(name, {"source": "changelog", "mode": mode}, None) for name, mode in STATES.items()}
    found["changes"] = replace(found["changes"], time="_time")
    for name, stream in stream_tables(settings).items():
        found[name] = ViewSource(name, {"source": f"inputs/{stream}"}, "_event_time")
    for rule in rules:
        name = f"alerts_{table_name(rule)}"
        if name not in found:
            found[name] = ViewSource(name, {"source": f"alerts/{rule}"}, "at")
    return found


def stream_tables(settings: ServiceFile) -> dict[str, str]:
    """The streams by the names of their tables."""
    found: dict[str, str] = {}
    for stream in settings.streams:
        name = table_name(stream)
        found[name if name not in {**TOPICS, **STATES, **found} else f"input_{name}"] = stream
    return found


class Sources(Mapping[str, ViewSource]):
    """The tables of one service, each looked at once: all views see the same offsets."""

    def __init__(self, settings: ServiceFile, log: Log) -> None:
        self._site = site_of(settings, log)
        self._known = known_rules(self._site)
        self._all = sources_of(self._site.settings, emits_of(self._known))
        self._frames: dict[str, Any] = {}

    def __getitem__(self, name: str) -> ViewSource:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def frame(self, name: str) -> Any:
        """What `spark.read.format("samovar")` would read now."""
        if name not in self._frames:
            options = {"config": str(self._site.settings.path), **self[name].options}
            self._frames[name] = frame_in(self._site, options, self._known)
        return self._frames[name]


def named_in(sql: str, names: Iterable[str]) -> list[str]:
    """Those of the names that a query has, be they tables or not: one too many does no harm.

    >>> named_in("select 1 from alerts -- of purchase", ["alerts", "purchase"])
    ['alerts']
    """
    words = {word.lower() for word in _WORD.findall(_NOT_CODE.sub(" ", sql))}
    return [name for name in names if name.lower() in words]


# ---------------------------------------------------------------- offsets

Offsets = Mapping[str, tuple[int, int]]  # by topic/partition


def bounds_of(frame: Any) -> dict[str, tuple[int, int]]:
    """The offsets that a source had when it was looked at."""
    found: dict[str, tuple[int, int]] = {}
    for stretch in _stretches(frame):
        at = f"{stretch.topic}/{stretch.partition}"
        start, end = found.get(at, (stretch.start, stretch.end))
        found[at] = (min(start, stretch.start), max(end, stretch.end))
    return found


def table_of(
    source: ViewSource,
    frame: Any,
    offsets: Offsets,
    only: tuple[str, Sequence[str | None]] | None = None,
    log: Log | None = None,
) -> SqlTable:
    """The table up to these offsets; with `only`, just the rows for which an expression has one of some values.

    From a log on Kafka its records come by Spark's connector, once all of them are decided.
    """
    added = {} if source.time is None else {"day": f"to_date({source.time})"}
    tasks = -(-offsets_in(offsets) // SPLIT)
    pinned = _pinned(source, frame, offsets)
    return SqlTable(
        source.name, pinned, max(tasks, 1), added, only, None if log is None else _brought(source, pinned, log)
    )


def _brought(source: ViewSource, frame: Any, log: Log) -> ConnectorRanges | None:
    settings: ServiceFile = frame.settings if hasattr(frame, "settings") else frame.service.settings
    kafka = kafka_of(settings)
    if kafka is None:
        return None
    ranges = frame.ranges(log)
    settle(log, ranges, stalled)  # type: ignore[arg-type]  # it is Kafka's
    return ConnectorRanges(kafka, ranges, source.options["source"] != "changelog", frame.reads_headers)


def offsets_in(offsets: Offsets) -> int:
    """How many records there may be: offsets have gaps."""
    return sum(end - start for start, end in offsets.values())


def _pinned(source: ViewSource, frame: Any, offsets: Offsets) -> Frame:
    """A frame between offsets that were fixed before."""
    stages = {f"{each.topic}/{each.partition}": each.stage for each in _stretches(frame)}
    whole = source.options["source"] == "changelog"
    pieces: list[FrameRange] = []
    for at, (start, end) in offsets.items():
        topic, _, partition = at.rpartition("/")
        stretch = FrameRange(topic, int(partition), start, end, stages.get(at, ""))
        pieces += [stretch] if whole else _pieces(stretch)
    pinned: Frame = replace(frame, stretches=tuple(pieces))
    return pinned


def _pieces(stretch: FrameRange) -> list[FrameRange]:
    starts = range(stretch.start, stretch.end, SPLIT)
    return [replace(stretch, start=start, end=min(start + SPLIT, stretch.end)) for start in starts]


def _stretches(frame: Any) -> tuple[FrameRange, ...]:
    found: tuple[FrameRange, ...] = frame.stretches
    return found


def partition_source(view: View, sources: Mapping[str, ViewSource]) -> dict[str, ViewSource]:
    """The sources whose new rows an incremental view follows."""
    return {name: sources[name] for name in view.partition_of if name in sources}
