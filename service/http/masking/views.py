"""Which columns of a view hold what is marked, by where they come from: samovar.changelog.spark.lineage says what each
column reads, and this what is in that. A column whose origin is not known is taken to be computed from marked values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from samovar.service.alerts.query import versions_of
from samovar.service.masking.lineage import Flow
from samovar.service.views.files import table_name
from samovar.service.views.sources import stream_tables

if TYPE_CHECKING:
    from samovar.patterns.syntax.tree import Rule
    from samovar.service.http.state import AppState
    from samovar.service.views.store import ViewManifest

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


def flows_of_view(app_state: AppState, manifest: ViewManifest) -> dict[str, Flow]:
    """By column, what is in it."""
    return {name: _flow(app_state, manifest.lineage.get(name)) for name in {**manifest.columns, **manifest.lineage}}


def _flow(app_state: AppState, known: Mapping[str, Any] | None) -> Flow:
    if known is None:
        return Flow.COMPUTED
    found = max((flow_of_source(app_state, *_parts(read)) for read in known["reads"]), default=Flow.CLEAR)
    return found if known["plain"] or found is Flow.CLEAR else Flow.COMPUTED


def _parts(read: str) -> tuple[str, str]:
    table, _, column = read.partition(".")
    return table, column


def flow_of_source(app_state: AppState, table: str, column: str) -> Flow:
    """What is in a column of a table that views read, or in a part of it."""
    streams, lineage = stream_tables(app_state.settings), app_state.lineage
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
        quotes = any(lineage.of(rule).quotes for rule in app_state.rule_cache.get().rules.values())
        return Flow.CLEAR if whole in STATES or (whole == "name" and not quotes) else Flow.COMPUTED
    return _of_rule(app_state, table, column) if table.startswith("alerts_") else Flow.COMPUTED


IDS = frozenset({"id", "alert", "key", "_key"})  # shown as pseudonyms, so that rows can be told apart


def _of_rule(app_state: AppState, table: str, column: str) -> Flow:
    """Of the alerts of one rule: all versions of it that are known, or were met, count."""
    whole, part, *_ = [*column.split("."), ""]
    if whole in ALERTS:
        return Flow.CLEAR
    rules = _versions(app_state, table)
    if not rules or None in rules:
        return Flow.OWN if whole in IDS else Flow.COMPUTED
    flows = [app_state.lineage.of(rule) for rule in rules if rule is not None]
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


def _versions(app_state: AppState, table: str) -> list[Rule | None]:
    loaded = app_state.rule_cache.get()
    books = () if loaded.book is None else loaded.book.entries
    names = {*loaded.rules, *(each.name for each in books)}
    found: list[Rule | None] = []
    for name in sorted(name for name in names if f"alerts_{table_name(name)}" == table):
        found += [loaded.rules[name]] if name in loaded.rules else []
        entries = () if loaded.book is None else loaded.book.history(name)
        versions = {*versions_of(app_state.index, name), *(each.version for each in entries)}
        found += [loaded.of_version(name, version) for version in sorted(versions)]
    return found
