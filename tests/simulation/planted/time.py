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
from samovar.tasks.input.source import StreamSource
from samovar.tasks.rules.state_cache import StateCache
from samovar.tasks.rules.timer_index import Index, TimerIndex
from samovar.tasks.runtime.stream_task import StreamTask

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
)
