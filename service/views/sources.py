"""What views read: the topics of a service as tables, each up to offsets that are known before anything is read.

    alerts, sessions, labels, dead_letters, late    as `spark.read.format("samovar")` has them (docs/spark.md)
    states, changes                                 the changelog: the current state of each key, and every change
    purchase, ...                                   the events of a stream, by its name
    alerts_card_testing, ...                        the alerts of one rule, with `emit` as a struct of typed fields

All but `states` have a column `day`: the date of the event, of the alert, or of the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from samovar.changelog.archive.archived_log import log_begins
from samovar.changelog.cursors import stalled
from samovar.changelog.log import Log
from samovar.changelog.spark.records import settle
from samovar.changelog.spark.source import Frame
from samovar.changelog.spark.views import ConnectorRanges, SqlTable
from samovar.service.config.models import ServiceFile
from samovar.service.spark.frames.frame import SPLIT, FrameRange, frame_in, parse_options, ranges_of
from samovar.service.spark.frames.rules import known_rules
from samovar.service.spark.session import connector_settings
from samovar.service.topology.stores import site_of
from samovar.service.views.files import table_name

# Tables, and the columns that their days come from.
TOPICS = {"alerts": "at", "sessions": "at", "labels": "at", "dead_letters": "_time", "late": "_time"}
STATES = {"states": ("latest", None), "changes": ("changes", "_time")}  # mode of the reader, and as above
Offsets = Mapping[str, tuple[int, int]]  # by topic/partition


@dataclass(frozen=True)
class ViewSource:
    """A table that views may name: the options of its reader, and the column that its `day` comes from."""

    options: Mapping[str, str]
    time: str | None


def stream_tables(settings: ServiceFile) -> dict[str, str]:
    """The streams by the names of their tables."""
    found: dict[str, str] = {}
    for stream in settings.streams:
        name = table_name(stream)
        found[name if name not in {**TOPICS, **STATES, **found} else f"input_{name}"] = stream
    return found


class Sources(dict[str, ViewSource]):
    """The tables of one service, each looked at once: all views see the same offsets."""

    def __init__(self, settings: ServiceFile, log: Log) -> None:
        self._log, self._site = log, site_of(settings, log)
        self._known = known_rules(self._site)
        self._frames: dict[str, Any] = {}
        super().__init__({name: ViewSource({"source": name}, time) for name, time in TOPICS.items()})
        for name, (mode, time) in STATES.items():
            self[name] = ViewSource({"source": "changelog", "mode": mode}, time)
        for name, stream in stream_tables(self._site.settings).items():
            self[name] = ViewSource({"source": f"inputs/{stream}"}, "_event_time")
        for version in self._known.values():
            source = ViewSource({"source": f"alerts/{version.rule}"}, "at")
            self.setdefault(f"alerts_{table_name(version.rule)}", source)

    def frame(self, name: str) -> Any:
        """What `spark.read.format("samovar")` would read now."""
        if name not in self._frames:
            own = {"config": str(self._site.settings.path), "failOnDataLoss": "false"}  # what there is, as of a log
            options = parse_options({**own, **self[name].options})
            self._frames[name] = frame_in(self._site, options, self._known)
        return self._frames[name]

    def table(self, name: str, offsets: Offsets, only: tuple[str, Sequence[str | None]] | None = None) -> SqlTable:
        """The table up to these offsets; with `only`, just the rows for which an expression has one of some values.

        From a log on Kafka its records come by Spark's connector, once all of them are decided; by our own reader where
        an archive has some of them.
        """
        source, frame = self[name], self.frame(name)
        is_state = source.options["source"] == "changelog"  # a state is whole in one task
        stages = {f"{each.topic}/{each.partition}": each.stage for each in frame.parts}
        parts: list[FrameRange] = []
        for at, (start, end) in offsets.items():
            topic, _, partition = at.rpartition("/")
            part = FrameRange(topic=topic, partition=int(partition), start=start, end=end, stage=stages.get(at, ""))
            parts += [part] if is_state else part.split()
        pinned: Frame = replace(frame, parts=tuple(parts))
        brought = None
        kafka = connector_settings(self._site.settings)
        ranges = [] if kafka is None else pinned.ranges(self._log)
        if kafka is not None and all(log_begins(self._log, *each[:3]) == each.start for each in ranges):
            settle(self._log, ranges, stalled)  # type: ignore[arg-type]  # it is Kafka's
            brought = ConnectorRanges(kafka, ranges, not is_state, frame.reads_headers)
        added = {} if source.time is None else {"day": f"to_date({source.time})"}
        return SqlTable(
            name=name,
            frame=pinned,
            tasks=max(-(-offsets_in(offsets) // SPLIT), 1),
            added=added,
            only=only,
            kafka=brought,
        )


def bounds_of(frame: Any) -> dict[str, tuple[int, int]]:
    """The offsets that a source had when it was looked at."""
    return {f"{at.topic}/{at.partition}": (start, end) for at, start, end, _ in ranges_of(frame.parts)}


def offsets_in(offsets: Offsets) -> int:
    """How many records there may be: offsets have gaps."""
    return sum(end - start for start, end in offsets.values())
