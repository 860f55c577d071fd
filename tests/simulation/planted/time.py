"""Faults of event time and timers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from samovar.changelog.formats.journal import EntryKind
from samovar.changelog.formats.record import InputPosition, Position
from samovar.changelog.log import TopicPartition
from samovar.patterns.engine.order import NO_TIME, Buffer
from samovar.tasks.input.source import InputPartition, StreamSource
from samovar.tasks.rules.state_cache import StateCache
from samovar.tasks.rules.timer_index import Index, TimerIndex
from samovar.tasks.runtime.stream_task import StreamTask
from samovar.tasks.user.timers import Timers

Patching = AbstractContextManager[object]


def timer_index_starts_too_late() -> Patching:
    """While the index is being built, its start moves to the watermark with every commit."""

    def build_some(self: TimerIndex, rows_at_once: int, deadlines_of: Any) -> None:
        before = self._from, self.first_deadline
        build(self, rows_at_once, deadlines_of)
        self._from, self.first_deadline = before

    build = TimerIndex.build_some
    return patch.object(TimerIndex, "build_some", build_some)


def timer_index_is_called_ready_early() -> Patching:
    """A part of the index is taken for the whole."""

    def some(self: TimerIndex, rows_at_once: int, deadlines_of: Any) -> None:
        self.begin()
        if self.status is not Index.READY:
            self.build_some(rows_at_once, deadlines_of)
            self.status = Index.READY

    return patch.object(TimerIndex, "build", some)


def evicted_states_lose_their_timers() -> Patching:
    """States that leave memory are not put into the timer index first."""

    def evict(self: StateCache) -> None:
        self.dropped_before += self.states.dropped()
        self.states = self._fresh()
        self.whole = True

    return patch.object(StateCache, "evict", evict)


def idle_advances_are_not_journaled() -> Patching:
    note = StreamSource._note

    def silent(self: StreamSource, kind: str, **facts: object) -> None:
        if kind != "advance":
            note(self, kind, **facts)

    return patch.object(StreamSource, "_note", silent)


def advances_are_forgotten_by_a_restart() -> Patching:
    """Events that waited are read again without the advances that came between them."""
    recover = StreamSource.recover

    def forgetful(self: StreamSource, stream: str, parts: Any, stored: InputPosition) -> None:
        recover(self, stream, parts, replace(stored, advances=()))

    return patch.object(StreamSource, "recover", forgetful)


def largest_time_is_forgotten_by_a_restart() -> Patching:
    resume = StreamSource.resume

    def forgetful(self: StreamSource, position: Position) -> None:
        inputs = {name: replace(each, max_event_time=None) for name, each in position.inputs.items()}
        resume(self, replace(position, inputs=inputs))

    return patch.object(StreamSource, "resume", forgetful)


def silent_streams_are_forgotten_by_a_restart() -> Patching:
    """A stream without any event holds event time back again."""
    resume = StreamSource.resume

    def forgetful(self: StreamSource, position: Position) -> None:
        inputs = {name: replace(each, idle=False) for name, each in position.inputs.items()}
        resume(self, replace(position, inputs=inputs))

    return patch.object(StreamSource, "resume", forgetful)


def unknown_schemas_are_not_journaled() -> Patching:
    """A replay takes records that were dead letters, since their schema is known by then."""
    note = StreamSource._note

    def silent(self: StreamSource, kind: str, **facts: object) -> None:
        if kind != EntryKind.SCHEMA:
            note(self, kind, **facts)

    return patch.object(StreamSource, "_note", silent)


def outages_count_as_idleness() -> Patching:
    """An input is taken for idle although the log has not been heard of."""
    tick = StreamTask.tick

    def ticked(self: StreamTask, ended: Mapping[TopicPartition, int | None], now_ms: int) -> None:
        tick(self, dict.fromkeys(self.inputs, 0) | dict.fromkeys(ended, 0), now_ms)

    return patch.object(StreamTask, "tick", ticked)


def the_watermark_is_the_greatest() -> Patching:
    """Event time follows the input that is ahead."""

    def watermark(self: Buffer) -> int:
        times = [
            time - self.slack_ms[stream] if time > NO_TIME else NO_TIME
            for (stream, _), time in self.max_event_time.items()
        ]
        return max([self.low_watermark, *times])

    return patch.object(Buffer, "watermark", watermark)


def idle_inputs_run_ahead() -> Patching:
    """An input that falls idle brings event time to now."""

    def ahead(self: StreamSource, source: InputPartition, now_ms: int) -> int | None:
        found = original(self, source, now_ms)
        return found if found in (None, NO_TIME) else found + source.spec.idle_ms

    original = StreamSource.idle_max_event_time
    return patch.object(StreamSource, "idle_max_event_time", ahead)


def user_timers_come_back() -> Patching:
    """A user's timer that was called stays in its row, and a restore calls it again."""

    def delete(self: Timers, name: str) -> None:
        key = name.encode()
        before = self._rows.get(b"t" + key)
        if before is not None:
            self._index.delete(b"t" + before + key)

    return patch.object(Timers, "delete", delete)


FAULTS = (
    timer_index_starts_too_late,
    timer_index_is_called_ready_early,
    evicted_states_lose_their_timers,
    idle_advances_are_not_journaled,
    advances_are_forgotten_by_a_restart,
    largest_time_is_forgotten_by_a_restart,
    silent_streams_are_forgotten_by_a_restart,
    unknown_schemas_are_not_journaled,
    outages_count_as_idleness,
    the_watermark_is_the_greatest,
    idle_inputs_run_ahead,
    user_timers_come_back,
)
