"""What is in the columns of tables and views: values that are marked `pii`, what was computed of such, or neither.

Spark's plan of a view says where its columns come from (samovar.changelog.spark.lineage). A column whose origin is not
known is taken to be computed from marked values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from samovar.patterns.syntax.tree import Rule
from samovar.service.config.models import ServiceFile
from samovar.service.masking.fields import Lineage
from samovar.service.masking.lineage import Flow
from samovar.service.views.sources import stream_tables
from samovar.service.views.store import ViewManifest


class KnownRules(Protocol):
    """What is known of a service's rules."""

    @property
    def settings(self) -> ServiceFile: ...
    @property
    def lineage(self) -> Lineage: ...
    def now(self) -> Iterable[Rule]:
        """Those at work."""

    def versions_of(self, table: str) -> Sequence[Rule | None]:
        """All versions whose alerts are in `alerts_RULE`; None for one that nobody knows."""


PLACE = frozenset({"_partition", "_offset", "_time", "day"})
ALERTS = PLACE | {
    "rule", "version", "severity", "tags", "start", "end", "at", "events", "total", "duration_ms"
}  # fmt: skip
# By table, the columns that hold nothing of an event's.
CLEAR = {
    "alerts": ALERTS,
    "sessions": ALERTS,
    "labels": PLACE | {"rule", "label", "by", "at", "note"},
    "dead_letters": PLACE | {"reason", "topic", "partition", "offset", "stage"},
    "late": PLACE | {"late_ms", "stream", "topic", "partition", "offset", "stage"},
}
STATES = PLACE | {"_stage", "deleted", "kind", "version", "partials", "due", "alerted", "quiet_until", "of"}
INPUTS = PLACE | {"_event_time", "_type", "_error"}
IDS = frozenset({"id", "alert", "key", "_key"})  # shown as pseudonyms, so that rows can be told apart


def flows_of_view(known: KnownRules, manifest: ViewManifest) -> dict[str, Flow]:
    """By column, what is in it."""
    found = {}
    for name in {**manifest.columns, **manifest.lineage}:
        origin = manifest.lineage.get(name)
        reads = [] if origin is None else [read.partition(".") for read in origin["reads"]]
        flow = max((flow_of_source(known, table, column) for table, _, column in reads), default=Flow.CLEAR)
        is_computed = origin is None or not (origin["plain"] or flow is Flow.CLEAR)
        found[name] = Flow.COMPUTED if is_computed else flow
    return found


def flow_of_source(known: KnownRules, table: str, column: str) -> Flow:
    """What is in a column of a table that views read, or in a part of it."""
    streams, lineage = stream_tables(known.settings), known.lineage
    whole = column.partition(".")[0]
    if table in streams:
        if not lineage.paths_of(streams[table]) or column in INPUTS:
            return Flow.CLEAR
        if whole in ("_key", "_value"):
            return Flow.OWN if whole == "_key" else Flow.COMPUTED
        return Flow.OWN if lineage.is_marked_in(streams[table], column) else Flow.CLEAR
    if not lineage.any:
        return Flow.CLEAR
    if table in CLEAR:
        return Flow.CLEAR if whole in CLEAR[table] else Flow.OWN if whole in IDS else Flow.COMPUTED
    if table in ("states", "changes"):
        quotes = any(lineage.of(rule).quotes for rule in known.now())
        return Flow.CLEAR if whole in STATES or (whole == "name" and not quotes) else Flow.COMPUTED
    return _flow_of_alerts(known, table, column) if table.startswith("alerts_") else Flow.COMPUTED


def _flow_of_alerts(known: KnownRules, table: str, column: str) -> Flow:
    """Of the alerts of one rule: all versions of it that are known, or were met, count."""
    whole, part, *_ = [*column.split("."), ""]
    if whole in ALERTS:
        return Flow.CLEAR
    rules = known.versions_of(table)
    if not rules or None in rules:
        return Flow.OWN if whole in IDS else Flow.COMPUTED
    flows = [known.lineage.of(rule) for rule in rules if rule is not None]
    if whole in IDS:
        return Flow.CLEAR if all(each.has_clear_key for each in flows) else Flow.OWN
    if whole == "message":
        said = [said[0] for each in flows for said in each.message if not isinstance(said, str)]
        return Flow.COMPUTED if any(said) else Flow.CLEAR
    if whole != "emit":
        return Flow.COMPUTED
    emits = [max(each.emit.values(), default=Flow.CLEAR) if not part else each.emit.get(part) for each in flows]
    found = max((each for each in emits if each is not None), default=Flow.CLEAR)
    return found if part or found is Flow.CLEAR else Flow.COMPUTED
