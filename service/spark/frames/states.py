"""Frames of changelogs: what each key's state is, or was after each change, unpacked.

    latest    a row for each rule and key, and for each history function and key, that has a state; of a task of the
              user's a row for each row of its stores and each timer
    changes   the same rows after each commit that changed them, with the offset and time of the change; `deleted` where
              nothing is left

A state is several records; a commit ends with the task's position, and only what is whole is shown.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from samovar.changelog.cursors import PartitionCursor
from samovar.changelog.formats.record import POSITION, ROW, USER, row_parts, store_prefix, unpack_position
from samovar.changelog.log import Log
from samovar.changelog.restore.point_in_time import commit_before, refuse_compacted
from samovar.changelog.restore.restore import ChangelogPartition, Restore
from samovar.changelog.spark.connector_log import Range, SparkFeed
from samovar.changelog.spark.source import BATCH_ROWS
from samovar.common.errors import Refused
from samovar.patterns.engine.matcher import decode_key
from samovar.patterns.syntax.unparse import unparse
from samovar.service.query.read import offset_of
from samovar.service.query.state.view import described, key_text, named, resolve_key
from samovar.service.spark.frames.frame import FrameOptions, FrameRange, ranges_of
from samovar.service.spark.frames.rules import FLAG, INT, LONG, TEXT, TIME, json_of, time_us
from samovar.service.spark.jobs import ShippedService, arrived, shipped
from samovar.service.topology.stores import ROWS_END, StateLocation, plan_for, position_of
from samovar.state.rocks import RocksStore
from samovar.state.store import Change
from samovar.state.tables import TableStore
from samovar.state.ttl import UnknownRowVersionError
from samovar.tasks.model.plan import Plan
from samovar.tasks.user.inspect import user_row
from samovar.tasks.user.timers import time_of

USER_END = bytes([USER[0] + 1])
PARTIAL = pa.struct(
    [("step", TEXT), ("events", LONG), ("since", TIME), ("waits_for", pa.list_(TEXT)), ("fires_at", TIME)]
)
KEPT = pa.struct([("time", TIME), ("value", TEXT)])
SCHEMA = pa.schema(
    [
        pa.field("_stage", TEXT),
        pa.field("_partition", INT),
        pa.field("_offset", LONG),
        pa.field("_time", TIME),
        pa.field("deleted", FLAG),
        pa.field("kind", TEXT),  # rule, history, store, timer
        pa.field("name", TEXT),  # of the rule, the history function's call, the store
        pa.field("version", TEXT),
        pa.field("key", TEXT),
        pa.field("partials", pa.list_(PARTIAL)),
        pa.field("due", TIME),
        pa.field("alerted", TIME),
        pa.field("quiet_until", TIME),
        pa.field("of", TEXT),  # the event type of a history function
        pa.field("events", pa.list_(KEPT)),
        pa.field("value", TEXT),  # JSON, of a store's row
        pa.field("unreadable", TEXT),
    ]
)
Rows = Mapping[bytes, bytes]
Shown = dict[str, Any]
Owner = tuple[bytes, str]  # a key and the store of its rule or history function


@dataclass(frozen=True)
class StateFrame:
    """A frame with a row a state."""

    service: ShippedService
    wanted: FrameOptions
    stretches: tuple[FrameRange, ...]
    schema: pa.Schema = SCHEMA
    reads_headers: bool = False

    def parts(self) -> Sequence[FrameRange]:
        return self.stretches

    def ranges(self, log: Log) -> Sequence[Range]:
        """Changes are folded from the beginning, wherever they are shown from."""
        found = ranges_of(self.stretches)
        if self.wanted.mode == "latest":
            return found
        bounds = log.bounds([each.at for each in found])
        return [each._replace(start=min(each.start, bounds[each.at].begin)) for each in found]

    def read_fed(self, feed: SparkFeed) -> Iterator[pa.RecordBatch]:
        parts = {(each.topic, each.partition): each for each in self.stretches}
        while (at := feed.coming()) is not None:
            yield from self.read(parts[at], feed)

    def read(self, part: FrameRange, feed: SparkFeed | None = None) -> Iterator[pa.RecordBatch]:
        with arrived(self.service, part.stage, feed) as site:
            rows = (
                _latest(site, part, self.wanted) if self.wanted.mode == "latest" else _changes(site, part, self.wanted)
            )
            head = {"_stage": part.stage or "main", "_partition": part.partition}
            found = ({**head, **row} for row in rows)
            while some := list(islice(found, BATCH_ROWS)):
                yield pa.RecordBatch.from_pylist(some, schema=SCHEMA)


def frame_of(site: StateLocation, wanted: FrameOptions) -> StateFrame:
    """Which stretch of which changelog; a moment that compaction has passed is refused."""
    if wanted.mode == "latest" and wanted.start is not None:
        raise Refused(
            "frame-option",
            "`from` is for mode=changes: the latest state stands for all that was before",
            "Use `to` for the state at a moment.",
        )
    found = []
    for here in site.stages(wanted.stage):
        if not here.log.topics([here.plan.topics.changelog]):
            continue
        for partition in here.chosen(wanted.partitions):
            changelog = here.changelog(partition)
            found.append(
                FrameRange(
                    changelog.at.topic,
                    partition,
                    changelog.bounds.begin if wanted.start is None else _place(here, changelog, wanted.start),
                    _end(here, changelog, wanted),
                    here.stage,
                )
            )
    if not found:
        raise Refused(
            "topic-missing",
            f"the service {site.settings.service} has no changelog yet",
            "Start it once: `samovar run` makes its topics.",
        )
    return StateFrame(shipped(site), wanted, tuple(found))


def _place(site: StateLocation, changelog: ChangelogPartition, text: str) -> int:
    return offset_of(site.log, changelog.at, changelog.bounds, text)


def _end(site: StateLocation, changelog: ChangelogPartition, wanted: FrameOptions) -> int:
    if wanted.end is None:
        return changelog.bounds.end
    end = min(_place(site, changelog, wanted.end), changelog.bounds.end)
    whole = commit_before(site.log, changelog, end)
    if wanted.mode == "latest":
        refuse_compacted(site.log, changelog, whole, site.settings.changelog.min_compaction_lag_ms, _now_ms())
    return whole


def _now_ms() -> int:
    return int(time.time() * 1000)


# ---------------------------------------------------------------- the latest


def _latest(site: StateLocation, part: FrameRange, wanted: FrameOptions) -> Iterator[Shown]:
    """Newest rows go through a RocksDB of the executor, so that a state may be larger than its memory."""
    with tempfile.TemporaryDirectory(prefix="samovar-frame-") as folder:
        tables = TableStore(Path(folder))
        restore = Restore(tables, site.log, site.changelog(part.partition), part.start, to=part.end)
        try:
            while not restore.advance():
                pass
        finally:
            restore.close()
        store = RocksStore(Path(folder) / "store")
        try:
            store.take_tables(tables.files)
            plan = plan_for(site, part.partition, position_of(store))
            head = {"_offset": part.end, "deleted": False}
            for rows in _by_key(store.range(ROW, ROWS_END), wanted, plan):
                yield from ({**head, **row} for row in _rules(plan, *rows))
            for key, value in store.range(USER, USER_END):
                yield from ({**head, **row} for row in _task_row(key, value, wanted))
        finally:
            store.close()


def _by_key(pairs: Iterable[tuple[bytes, bytes]], wanted: FrameOptions, plan: Plan) -> Iterator[tuple[bytes, Rows]]:
    only = None if wanted.key is None else set(resolve_key(plan, wanted.key, None))
    for key, group in groupby(pairs, key=lambda pair: row_parts(pair[0])[0]):
        if only is None or key in only:
            yield key, dict(group)


# ---------------------------------------------------------------- every change


def _changes(site: StateLocation, part: FrameRange, wanted: FrameOptions) -> Iterator[Shown]:
    """States are folded from the beginning that the changelog still has; shown is what changed from `from` on.

    They are held in a RocksDB of the executor: in memory is what one commit changed, however many keys there are.
    """
    with tempfile.TemporaryDirectory(prefix="samovar-frame-") as folder:
        held = RocksStore(Path(folder) / "store")
        try:
            yield from _folded(site, part, wanted, held)
        finally:
            held.close()


def _folded(site: StateLocation, part: FrameRange, wanted: FrameOptions, held: RocksStore) -> Iterator[Shown]:
    changelog = site.changelog(part.partition)
    plan, versions = site.plan, dict(site.plan.versions)
    only = None if wanted.key is None else set(resolve_key(plan, wanted.key, None))
    rows: list[Change] = []
    touched: dict[Owner, tuple[int, int]] = {}
    for offset, time_ms, row, value in _records(site, changelog, part.end):
        if row[:1] == ROW:
            owner = row_parts(row)[:2]
            if only is None or owner[0] in only:
                rows.append((row, value))
                touched[owner] = offset, time_ms
        elif row[:1] == USER and offset >= part.start:
            place = {"_offset": offset, "_time": time_us(time_ms), "deleted": value is None}
            yield from ({**place, **shown} for shown in _task_row(row, value, wanted))
        elif row == POSITION and value is not None:
            position = unpack_position(value)
            if dict(position.rules) != versions and plan.task is None:
                plan, versions = plan_for(site, part.partition, position), dict(position.rules)
            held.write(rows)
            for owner, at in touched.items():
                if at[0] >= part.start:
                    yield from _changed(plan, owner, _rows_of(held, owner), at)
            rows, touched = [], {}


def _rows_of(held: RocksStore, owner: Owner) -> Rows:
    prefix = store_prefix(*owner)
    return dict(held.range(prefix, prefix + b"\xff"))


def _changed(plan: Plan, owner: Owner, rows: Rows, at: tuple[int, int]) -> Iterator[Shown]:
    """A state after a commit, or that it is gone."""
    key, store = owner
    place = {"_offset": at[0], "_time": time_us(at[1])}
    if rows:
        yield from ({**place, "deleted": False, **row} for row in _rules(plan, key, rows))
        return
    head: Shown = {**place, "deleted": True, "key": key_text(decode_key(key))}
    if store.startswith("history/"):
        known = plan.program.histories.get(store)
        yield {**head, "kind": "history", "name": store if known is None else unparse(known[1])}
    else:
        name, _, version = store.partition("@")
        yield {**head, "kind": "rule", "name": name, "version": version}


def _records(
    site: StateLocation, changelog: ChangelogPartition, end: int
) -> Iterator[tuple[int, int, bytes, bytes | None]]:
    cursor = PartitionCursor(site.log, changelog.at, changelog.bounds.begin)
    try:
        while (records := cursor.take(end)) is not None:
            places = zip(records.offsets.tolist(), records.times.tolist(), records.pairs(), strict=True)
            yield from ((offset, time_ms, key or b"", value) for offset, time_ms, (key, value) in places)
    finally:
        cursor.close()


# ---------------------------------------------------------------- rows of a frame


def _rules(plan: Plan, key: bytes, rows: Rows) -> Iterator[Shown]:
    """The rows of one key, by what they belong to."""
    state = described(plan, key, rows)
    name = key_text(state.key)
    for rule in state.rules:
        times = {each: time_us(rule.get(each)) for each in ("due", "alerted", "quiet_until")}
        partials = [_partial(each) for each in rule.get("partials", ())]
        yield {
            "kind": "rule",
            "name": rule["rule"],
            "version": rule["version"],
            "key": name,
            "partials": partials,
            **times,
        }
    for history in state.histories:
        events = [{"time": time_us(each["time"]), "value": json_of(each["value"])} for each in history["events"]]
        yield {"kind": "history", "name": history["call"], "of": history["of"], "key": name, "events": events}
    for reason in state.unreadable:
        yield {"kind": "rule", "name": reason.partition("@")[0], "key": name, "unreadable": reason}


def _partial(partial: Mapping[str, Any]) -> Shown:
    return {
        "step": partial["step"],
        "events": partial["events"],
        "since": time_us(partial.get("since")),
        "waits_for": list(partial.get("waits_for") or ()),
        "fires_at": time_us(partial.get("fires_at")),
    }


def _task_row(row: bytes, value: bytes | None, wanted: FrameOptions) -> Iterator[Shown]:
    what, key = named(row)
    if what == "window" or (wanted.key is not None and key != wanted.key):
        return
    head: Shown = {"kind": "timer" if what == "timer" else "store", "name": what.removeprefix("store "), "key": key}
    if value is None:
        yield head
    elif what == "timer":
        yield {**head, "due": time_us(time_of(value))}
    else:
        yield {**head, **_store_value(row, value)}


def _store_value(row: bytes, value: bytes) -> Shown:
    try:
        found = user_row(row, value)
    except (UnknownRowVersionError, ValueError) as error:
        return {"unreadable": str(error)}
    shown = found.value.hex() if isinstance(found.value, bytes) else found.value
    return {"value": json_of(shown), "due": time_us(found.expires)}
