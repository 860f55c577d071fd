"""Frames of changelogs: what each key's state is, or was after each change, unpacked.

    latest    a row for each rule and key, and for each history function and key, that has a state; of a task of the
              user's a row for each row of its stores and each timer
    changes   the same rows after each commit that changed them, with offset, time and `op` of the change; `deleted`
              where nothing is left

A state is several records; a commit ends with the task's position, and only what is whole is shown.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from samovar.changelog.cursors import PartitionCursor
from samovar.changelog.formats.record import (
    CHECKPOINT,
    POSITION,
    ROW,
    USER,
    ChangelogCheckpoint,
    pack_checkpoint,
    row_parts,
    store_prefix,
    unpack_position,
)
from samovar.changelog.log import Log
from samovar.changelog.restore.point_in_time import commit_before, refuse_compacted
from samovar.changelog.restore.restore import ChangelogPartition, Restore, checkpoint_of, next_step
from samovar.changelog.spark.connector_log import Range, SparkFeed
from samovar.changelog.spark.session import scratch_folder
from samovar.changelog.spark.source import BATCH_ROWS, Condition
from samovar.common.errors import Refused
from samovar.common.folders import PART
from samovar.patterns.engine.matcher import decode_key
from samovar.patterns.syntax.unparse import unparse
from samovar.service.query.state.view import described, key_text, named, resolve_key
from samovar.service.spark.frames.arrow_types import FLAG, INT, LONG, TEXT, TIME
from samovar.service.spark.frames.frame import FrameOptions, FrameRange, narrowed_parts, offset_in, ranges_of
from samovar.service.spark.frames.rules import json_of, time_us
from samovar.service.spark.jobs import ShippedService, arrived, shipped
from samovar.service.topology.stores import ROWS_END, StateLocation, plan_for, position_of
from samovar.state.rocks import RocksStore
from samovar.state.soundness import copy_store
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
        ("_stage", TEXT), ("_partition", INT), ("_offset", LONG), ("_time", TIME), ("deleted", FLAG),
        ("op", TEXT),  # of a change: insert, update, delete
        ("kind", TEXT),  # rule, history, store, timer
        ("name", TEXT),  # of the rule, the history function's call, the store
        ("version", TEXT), ("key", TEXT), ("partials", pa.list_(PARTIAL)),
        ("due", TIME), ("alerted", TIME), ("quiet_until", TIME),
        ("of", TEXT),  # the event type of a history function
        ("events", pa.list_(KEPT)),
        ("value", TEXT),  # JSON, of a store's row
        ("unreadable", TEXT),
    ]
)  # fmt: skip
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class StateFrame:
    """A frame with a row per state."""

    service: ShippedService
    options: FrameOptions
    parts: tuple[FrameRange, ...]
    schema: pa.Schema = SCHEMA
    reads_headers: bool = False

    def narrowed(self, conditions: Sequence[Condition]) -> StateFrame:
        """A state stands at the end of its changelog; a change is shown when its commit is whole, which is later."""
        is_latest = self.options.mode == "latest"
        told = [each for each in conditions if not is_latest or each.column != "_offset"]
        return replace(self, parts=narrowed_parts(self.parts, told, ends=False))

    def ranges(self, log: Log) -> Sequence[Range]:
        """Changes are folded from the beginning, wherever they are shown from."""
        found = ranges_of(self.parts)
        if self.options.mode == "latest":
            return found
        bounds = log.bounds([each.at for each in found])
        return [each._replace(start=min(each.start, bounds[each.at].begin)) for each in found]

    def read_fed(self, feed: SparkFeed) -> Iterator[pa.RecordBatch]:
        parts = {(each.topic, each.partition): each for each in self.parts}
        while (at := feed.coming()) is not None:
            yield from self.read(parts[at], feed)

    def read(self, part: FrameRange, feed: SparkFeed | None = None) -> Iterator[pa.RecordBatch]:
        with arrived(self.service, part.stage, feed) as site:
            rows = (_latest if self.options.mode == "latest" else _changes)(site, part, self.options)
            head = {"_stage": part.stage or "main", "_partition": part.partition}
            found = ({**head, **row} for row in rows)
            while some := list(islice(found, BATCH_ROWS)):
                yield pa.RecordBatch.from_pylist(some, schema=SCHEMA)


def frame_of(site: StateLocation, options: FrameOptions) -> StateFrame:
    """Finds the offsets of all changelogs; a point in time that compaction has passed is refused."""
    if options.mode == "latest" and options.start is not None:
        raise Refused(
            "frame-option",
            "`from` is for mode=changes: the latest state stands for all that was before",
            "Use `to` for the state at a moment.",
        )
    found = []
    for here in site.stages(options.stage):
        if not here.log.topics([here.plan.topics.changelog]):
            continue
        for partition in here.chosen(options.partitions):
            changelog = here.changelog(partition)
            start, end = changelog.bounds
            if options.start is not None:
                start = offset_in(here.log, changelog.at, changelog.bounds, options.start)
            if options.end is not None:
                end = min(offset_in(here.log, changelog.at, changelog.bounds, options.end), end)
                end = commit_before(here.log, changelog, end)
                if options.mode == "latest":
                    lag_ms, now_ms = here.settings.changelog.min_compaction_lag_ms, int(time.time() * 1000)
                    refuse_compacted(here.log, changelog, end, lag_ms, now_ms)
            found.append(
                FrameRange(topic=changelog.at.topic, partition=partition, start=start, end=end, stage=here.stage)
            )
    if not found:
        raise Refused(
            "topic-missing",
            f"the service {site.settings.service} has no changelog yet",
            "Start it once: `samovar run` makes its topics.",
        )
    return StateFrame(service=shipped(site), options=options, parts=tuple(found))


def _latest(site: StateLocation, part: FrameRange, options: FrameOptions) -> Iterator[Row]:
    """Newest rows go through a RocksDB of the executor, so that a state may be larger than its memory."""
    with tempfile.TemporaryDirectory(prefix="samovar-frame-") as folder:
        tables = TableStore(Path(folder))
        changelog = site.changelog(part.partition)
        with closing(Restore(tables, site.log, changelog, part.start, to=part.end)) as restore:
            while not restore.advance():
                pass
        with closing(RocksStore(Path(folder) / "store")) as store:
            store.ingest_tables(tables.files)
            plan = plan_for(site, part.partition, position_of(store))
            only = None if options.key is None else set(resolve_key(plan, options.key, None))
            head = {"_offset": part.end, "deleted": False}
            for key, rows in groupby(store.range(ROW, ROWS_END), key=lambda pair: row_parts(pair[0])[0]):
                if only is None or key in only:
                    yield from ({**head, **row} for row in _rule_rows(plan, key, dict(rows)))
            for key, value in store.range(USER, USER_END):
                yield from ({**head, **row} for row in _task_row(key, value, options))


def _changes(site: StateLocation, part: FrameRange, options: FrameOptions) -> Iterator[Row]:
    """Folds the changelog in a RocksDB, in memory only what one commit changed; shows changes from `from` on."""
    changelog = site.changelog(part.partition)
    with _folded(changelog, part, options) as states:
        checkpoint, position = checkpoint_of(states), position_of(states)
        start = changelog.bounds.begin if checkpoint is None else checkpoint.next
        plan = plan_for(site, part.partition, position)
        versions = dict(plan.versions if position is None else position.rules)
        only = None if options.key is None else set(resolve_key(plan, options.key, None))
        changes: dict[bytes, bytes | None] = {}
        touched: dict[tuple[bytes, str], tuple[int, int]] = {}  # by key and store: offset and time
        for offset, time_ms, row, value in _records(site, changelog, start, part.end):
            if row[:1] == ROW:
                key, store, *_ = row_parts(row)
                if only is None or key in only:
                    changes[row] = value
                    touched[key, store] = offset, time_ms
            elif row[:1] == USER:
                was_there = (changes[row] if row in changes else states.get(row)) is not None
                changes[row] = value
                if offset >= part.start:
                    place = {"_offset": offset, "_time": time_us(time_ms), **_op(was_there, value is not None)}
                    yield from ({**place, **shown} for shown in _task_row(row, value, options))
            elif row == POSITION and value is not None:
                position = unpack_position(value)
                if dict(position.rules) != versions and plan.task is None:
                    plan, versions = plan_for(site, part.partition, position), dict(position.rules)
                prefixes = {each: store_prefix(*each) for each in touched}
                before = {each: _has_rows(states, prefix) for each, prefix in prefixes.items()}
                at = changelog.at
                mark = ChangelogCheckpoint(
                    topic=at.topic,
                    topic_id=changelog.topic.id,
                    partition=at.partition,
                    partitions=changelog.topic.partitions,
                    next=offset + 1,
                    time_ms=time_ms,
                )
                states.write([*changes.items(), (POSITION, value), (CHECKPOINT, pack_checkpoint(mark))])
                for (key, store), (changed_at, changed_ms) in touched.items():
                    # Batches of a stream may end inside a commit: it belongs to the one that has its end.
                    if (offset if options.is_stream else changed_at) >= part.start:
                        place = {"_offset": changed_at, "_time": time_us(changed_ms)}
                        prefix = prefixes[key, store]
                        rows = dict(states.range(prefix, prefix + b"\xff"))
                        place |= _op(before[key, store], bool(rows))
                        yield from ({**place, **shown} for shown in _changed(plan, key, store, rows))
                changes, touched = {}, {}


@contextmanager
def _folded(changelog: ChangelogPartition, part: FrameRange, options: FrameOptions) -> Iterator[RocksStore]:
    """States to go on from: none, or of a stream those that an earlier batch has left on this executor.

        SCRATCH/samovar-changes/QUERY/TOPIC-PARTITION/OFFSET/    a store up to the last commit before the offset

    The two newest are kept: Spark may ask for the last batch again.
    """
    kept = scratch_folder() / "samovar-changes" / options.feed / f"{part.topic}-{part.partition}"
    with tempfile.TemporaryDirectory(prefix="samovar-frame-") as folder:
        place = Path(folder) / "store"
        if options.is_stream:
            kept.mkdir(parents=True, exist_ok=True)
            known = [number for number in _numbers(kept) if number <= part.start]
            if known and not copy_store(kept / str(known[-1]), place):
                shutil.rmtree(place)
        with closing(RocksStore(place)) as states:
            if next_step(checkpoint_of(states), changelog, int(time.time() * 1000)) is None:
                states.write([(row, None) for row, _ in states.range()])  # too old: deletes may be gone since
            yield states
            if options.is_stream and not (kept / str(part.end)).exists():
                half = kept / f"{uuid4().hex}{PART}"
                states.snapshot(half)
                with suppress(OSError):  # another attempt of the same task was first
                    half.rename(kept / str(part.end))
                for number in _numbers(kept)[:-2]:
                    shutil.rmtree(kept / str(number), ignore_errors=True)


def _numbers(kept: Path) -> list[int]:
    return sorted(int(each.name) for each in kept.iterdir() if each.name.isdecimal())


def _has_rows(states: RocksStore, prefix: bytes) -> bool:
    return next(states.range(prefix, prefix + b"\xff"), None) is not None


def _op(was_there: bool, is_there: bool) -> Row:
    return {"op": ("update" if was_there else "insert") if is_there else "delete", "deleted": not is_there}


def _records(
    site: StateLocation, changelog: ChangelogPartition, start: int, end: int
) -> Iterator[tuple[int, int, bytes, bytes | None]]:
    for records in PartitionCursor(site.log, changelog.at, start).read_to(end):
        places = zip(records.offsets.tolist(), records.times.tolist(), records.pairs(), strict=True)
        yield from ((offset, time_ms, key or b"", value) for offset, time_ms, (key, value) in places)


def _changed(plan: Plan, key: bytes, store: str, rows: Mapping[bytes, bytes]) -> Iterator[Row]:
    """A state after a commit, or that it is gone."""
    if rows:
        yield from _rule_rows(plan, key, rows)
        return
    head: Row = {"key": key_text(decode_key(key))}
    if store.startswith("history/"):
        known = plan.program.histories.get(store)
        yield {**head, "kind": "history", "name": store if known is None else unparse(known[1])}
    else:
        name, _, version = store.partition("@")
        yield {**head, "kind": "rule", "name": name, "version": version}


def _rule_rows(plan: Plan, key: bytes, rows: Mapping[bytes, bytes]) -> Iterator[Row]:
    """The rows of one key: of each rule and history function that has a state."""
    state = described(plan, key, rows)
    name = key_text(state.key)
    for rule in state.rules:
        times = {each: time_us(rule.get(each)) for each in ("due", "alerted", "quiet_until")}
        partials = [
            {
                "step": each["step"],
                "events": each["events"],
                "since": time_us(each.get("since")),
                "waits_for": list(each.get("waits_for") or ()),
                "fires_at": time_us(each.get("fires_at")),
            }
            for each in rule.get("partials", ())
        ]
        head = {"kind": "rule", "name": rule["rule"], "version": rule["version"], "key": name}
        yield {**head, "partials": partials, **times}
    for history in state.histories:
        events = [{"time": time_us(each["time"]), "value": json_of(each["value"])} for each in history["events"]]
        yield {"kind": "history", "name": history["call"], "of": history["of"], "key": name, "events": events}
    for reason in state.unreadable:
        yield {"kind": "rule", "name": reason.partition("@")[0], "key": name, "unreadable": reason}


def _task_row(row: bytes, value: bytes | None, options: FrameOptions) -> Iterator[Row]:
    """The row of a store or timer of a task of the user's; of a window none."""
    what, key = named(row)
    if what == "window" or (options.key is not None and key != options.key):
        return
    head: Row = {"kind": "timer" if what == "timer" else "store", "name": what.removeprefix("store "), "key": key}
    if value is None:
        yield head
    elif what == "timer":
        yield {**head, "due": time_us(time_of(value))}
    else:
        try:
            found = user_row(row, value)
        except (UnknownRowVersionError, ValueError) as error:
            yield {**head, "unreadable": str(error)}
            return
        shown = found.value.hex() if isinstance(found.value, bytes) else found.value
        yield {**head, "value": json_of(shown), "due": time_us(found.expires)}
