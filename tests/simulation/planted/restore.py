"""Faults of restores and of where tasks begin."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from samovar.changelog import cursors
from samovar.changelog.cursors import PartitionCursor
from samovar.changelog.formats import record
from samovar.changelog.formats.journal import to_ranges
from samovar.changelog.formats.record import CHECKPOINT, InputPosition, Position, pack_checkpoint
from samovar.changelog.log import Bounds, Log, Records, TopicPartition
from samovar.changelog.restore import restore
from samovar.changelog.restore.restore import ChangelogPartition, Restore
from samovar.patterns.engine import order
from samovar.tasks.input import source as source_module
from samovar.tasks.input.source import StreamSource
from samovar.tasks.model.results import Outcome
from samovar.tasks.replay import rewind
from samovar.tasks.rules.replay_dedup import ReplayDedupFilter
from samovar.tasks.runtime import stream_task
from samovar.tasks.runtime.stream_task import StreamTask

Patching = AbstractContextManager[object]


def restore_ends_at_the_stable_offset() -> Patching:
    """A restore ends at the last stable offset: what a dead writer's open transaction hides is left out."""
    load = ChangelogPartition.load.__func__  # type: ignore[attr-defined] # a class method

    def short(
        cls: type[ChangelogPartition], log: Any, at: TopicPartition, retention_ms: int, service: str = ""
    ) -> ChangelogPartition:
        found: ChangelogPartition = load(cls, log, at, retention_ms, service)
        return replace(found, bounds=Bounds(found.bounds.begin, log.broker.log(at).stable_end))

    return patch.object(ChangelogPartition, "load", classmethod(short))


class Undeleting:
    """A store that takes no deletes."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def write(self, changes: Any) -> None:
        self.store.write([each for each in changes if each[1] is not None])

    def take(self, table: Any) -> None:
        self.write(table.changes())


def restore_forgets_deletes() -> Patching:
    """A restore writes rows and leaves out deletes."""
    write = Restore._write

    def without(self: Restore, part: Any) -> None:
        self.store = Undeleting(self.store)
        try:
            write(self, part)
        finally:
            self.store = self.store.store

    return patch.object(Restore, "_write", without)


def stores_are_never_too_old() -> Patching:
    """A store is tailed however long it was away, when deletes may have been compacted away."""
    step = restore.next_step

    def tailed(checkpoint: Any, changelog: ChangelogPartition, now_ms: int) -> int | None:
        found = step(checkpoint, changelog, now_ms)
        return checkpoint.next if found is None and checkpoint is not None else found

    return patch.object(stream_task, "next_step", tailed)


def missing_offset_read_as_0() -> Patching:
    """A task reads its inputs from the beginning after it was restored."""
    positions = StreamTask.positions

    def from_the_start(self: StreamTask) -> dict[TopicPartition, int]:
        found = positions(self)
        if getattr(self, "_asked", False):
            return found
        self._asked = True  # type: ignore[attr-defined] # only here
        return dict.fromkeys(found, 0)

    return patch.object(StreamTask, "positions", from_the_start)


def waiting_events_are_lost() -> Patching:
    """Events that waited for event time are not read again."""

    def forget(log: Log, source: Any, position: Any, partition: int) -> None:
        for stream, stored in position.inputs.items():
            if stream in source.sources:
                source.sources[stream].next = stored.next

    return patch.object(stream_task, "recover_waiting", forget)


def restored_rows_have_no_timers() -> Patching:
    """A restore leaves the timer index as it was."""
    return patch.object(restore, "deadline_rows", lambda _: [])


def restore_stops_one_record_early() -> Patching:
    init = Restore.__init__

    def short(self: Restore, store: Any, log: Any, changelog: ChangelogPartition, start: int, **more: Any) -> None:
        begin, end = changelog.bounds
        init(self, store, log, replace(changelog, bounds=Bounds(begin, max(start, end - 2))), start, **more)

    return patch.object(Restore, "__init__", short)


def rewinds_void_too_little() -> Patching:
    """The last journal entry of what was set back counts on."""
    return patch.object(rewind, "to_ranges", lambda numbers: to_ranges(sorted(numbers)[:-1]))


def rewinds_void_too_much() -> Patching:
    """A journal entry from before the moment counts no more."""

    def ranges(numbers: Iterable[int]) -> list[list[int]]:
        return [[max(first - 1, 2), last] for first, last in to_ranges(numbers)]

    return patch.object(rewind, "to_ranges", ranges)


def snapshots_have_a_newer_position() -> Patching:
    """A snapshot is taken between the checkpoint of a commit and its rows."""
    committed = StreamTask.committed

    def early(self: StreamTask, outcome: Outcome, last_offset: int, wall_ms: int) -> None:
        topic, at = self.changelog.topic, self.changelog.at
        now_ms = self.clock.steady_ms()
        if now_ms - self._snapshot_at_ms >= self.plan.tunables.snapshot_every_ms:
            follows = record.ChangelogCheckpoint(
                topic=at.topic,
                topic_id=topic.id,
                partition=at.partition,
                partitions=topic.partitions,
                next=last_offset + 1,
                time_ms=wall_ms,
            )
            self.store.put(CHECKPOINT, pack_checkpoint(follows))
            self._snapshot_at_ms = now_ms
            self.take_snapshot()
        committed(self, outcome, last_offset, wall_ms)

    return patch.object(StreamTask, "committed", early)


def restores_say_that_they_are_done_early() -> Patching:
    """Each part of a restore says that the store is at the end."""
    write = Restore._write
    return patch.object(Restore, "_write", lambda self, part: write(self, replace(part, next=self.end)))


def restores_index_the_first_part_only() -> Patching:
    write = Restore._write

    def first(self: Restore, part: Any) -> None:
        write(self, part)
        self._indexed = False

    return patch.object(Restore, "_write", first)


def rewinds_forget_an_alert() -> Patching:
    """One of the alerts that were published before a rewind is not skipped."""
    of = ReplayDedupFilter.of.__func__  # type: ignore[attr-defined]

    def forgetful(cls: Any, store: Any) -> Any:
        found = of(cls, store)
        found.ids = set(sorted(found.ids)[1:])
        return found

    return patch.object(ReplayDedupFilter, "of", classmethod(forgetful))


def replay_begins_one_event_late() -> Patching:
    """A restart reads on after the first event that waits."""
    inputs = StreamSource.inputs

    def later(self: StreamSource) -> dict[str, InputPosition]:
        return {
            name: replace(each, replay_from=min(each.next, each.replay_from + 1)) for name, each in inputs(self).items()
        }

    return patch.object(StreamSource, "inputs", later)


def replay_begins_at_the_time_of_now() -> Patching:
    """The maximum event time in the position is that of its end, not that of where it is read on."""
    inputs = StreamSource.inputs

    def now(self: StreamSource) -> dict[str, InputPosition]:
        return {
            name: replace(each, max_event_time=source_module.known_time(self.max_event_time(name)))
            for name, each in inputs(self).items()
        }

    return patch.object(StreamSource, "inputs", now)


def cursors_forget_what_they_cut_off() -> Patching:
    def cut(self: PartitionCursor, records: Records, until: int) -> Records | None:
        rows = int(np.searchsorted(records.offsets, until))
        self.next = until if rows < len(records) else min(records.next, until)
        return cursors.RecordSlice(records, 0, rows, self.next) if rows else None

    return patch.object(PartitionCursor, "_cut", cut)


def late_events_come_back_with_a_restart() -> Patching:
    take = order.take_times

    def none_late(batch: Any, buffer: Any) -> Any:
        take(batch, buffer)
        return np.empty(0, np.int64), np.empty(0, np.int64)

    return patch.object(source_module, "take_times", none_late)


def journal_numbers_begin_again() -> Patching:
    resume = StreamSource.resume

    def anew(self: StreamSource, position: Position) -> None:
        resume(self, replace(position, journal=0))

    return patch.object(StreamSource, "resume", anew)


FAULTS = (
    restore_ends_at_the_stable_offset,
    restore_forgets_deletes,
    stores_are_never_too_old,
    missing_offset_read_as_0,
    waiting_events_are_lost,
    restored_rows_have_no_timers,
    restore_stops_one_record_early,
    rewinds_void_too_little,
    rewinds_void_too_much,
    snapshots_have_a_newer_position,
    restores_say_that_they_are_done_early,
    restores_index_the_first_part_only,
    rewinds_forget_an_alert,
    replay_begins_one_event_late,
    replay_begins_at_the_time_of_now,
    cursors_forget_what_they_cut_off,
    late_events_come_back_with_a_restart,
    journal_numbers_begin_again,
)
