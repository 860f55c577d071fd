"""Faults of restores and of where tasks begin."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from samovar.changelog.log import Bounds, Log, TopicPartition
from samovar.changelog.restore import restore
from samovar.changelog.restore.restore import ChangelogPartition, Restore
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


FAULTS = (
    restore_ends_at_the_stable_offset,
    restore_forgets_deletes,
    stores_are_never_too_old,
    missing_offset_read_as_0,
    waiting_events_are_lost,
    restored_rows_have_no_timers,
    restore_stops_one_record_early,
)
