"""Faults of the commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from samovar.changelog.log import Append, TopicPartition
from samovar.common.errors import CommitUnknown, Fenced
from samovar.common.failpoints import hit
from samovar.tasks.model.results import Outcome
from samovar.tasks.rules.processor import RuleProcessor
from samovar.tasks.runtime.container import Container
from samovar.tasks.runtime.stream_task import StreamTask
from tests.simulation.memory_member import MemoryMember

Patching = AbstractContextManager[object]
transact = MemoryMember.transact


def store_before_commit() -> Patching:
    """The store is written before the transaction."""
    outcome_of = StreamTask.outcome

    def outcome(self: StreamTask) -> Outcome:
        found = outcome_of(self)
        self.store.write(found.changes)
        return found

    return patch.object(StreamTask, "outcome", outcome)


def offsets_outside_the_transaction() -> Patching:
    """Offsets are committed after the records, by a transaction of their own."""

    def outside(
        self: MemoryMember, appends: Sequence[Append], offsets: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        ends = transact(self, appends, {})
        transact(self, [], offsets)
        return ends

    return patch.object(MemoryMember, "transact", outside)


def offsets_of_one_task_only() -> Patching:
    """A commit of several tasks has the offsets of the first."""
    offsets_of = Container._offsets

    def of_the_first(self: Container, outcomes: Sequence[Outcome]) -> dict[TopicPartition, int]:
        return offsets_of(self, outcomes[:1])

    return patch.object(Container, "_offsets", of_the_first)


def unknown_outcome_taken_for_success() -> Patching:
    """After a commit that nobody knows the outcome of, the task goes on as if it had happened."""

    def hopeful(
        self: MemoryMember, appends: Sequence[Append], offsets: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        try:
            return transact(self, appends, offsets)
        except CommitUnknown:
            self._usable = True
            places = [TopicPartition(each.topic, each.partition) for each in appends if each.partition is not None]
            return {at: self._broker.bounds(at).end - 1 for at in places}

    return patch.object(MemoryMember, "transact", hopeful)


def zombies_are_not_fenced() -> Patching:
    """What a container writes after it lost its partitions is taken all the same."""

    def unfenced(
        self: MemoryMember, appends: Sequence[Append], offsets: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        try:
            return transact(self, appends, offsets)
        except Fenced:
            for append in appends:
                self._broker.write(append, None)
            raise

    return patch.object(MemoryMember, "transact", unfenced)


def tombstones_are_not_logged() -> Patching:
    """Deleted rows are deleted in the store only."""
    outcome_of = RuleProcessor.outcome

    def outcome(self: RuleProcessor, more: Any = ()) -> Outcome:
        found = outcome_of(self, more)
        changelog = self.plan.topics.changelog
        appends = [
            replace(each, records=[pair for pair in each.records if pair[1] is not None])
            if each.topic == changelog
            else each
            for each in found.appends
        ]
        return replace(found, appends=appends)

    return patch.object(RuleProcessor, "outcome", outcome)


def following_ahead_of_the_rows() -> Patching:
    """The store says that it follows the changelog up to a commit before it has that commit's rows."""

    def committed(self: StreamTask, outcome: Outcome, last_offset: int, wall_ms: int) -> None:
        original(self, replace(outcome, changes=[]), last_offset, wall_ms)
        hit("write.before")
        self.store.write(outcome.changes)

    original: Callable[[StreamTask, Outcome, int, int], None] = StreamTask.committed
    return patch.object(StreamTask, "committed", committed)


def alerts_outside_the_transaction() -> Patching:
    """Alerts are written as soon as they are found."""

    def early(
        self: MemoryMember, appends: Sequence[Append], offsets: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        for each in appends:
            if each.topic.endswith("alerts"):
                self._broker.write(each, None)
        return transact(self, [each for each in appends if not each.topic.endswith("alerts")], offsets)

    return patch.object(MemoryMember, "transact", early)


def tasks_survive_a_rejoin() -> Patching:
    """After trouble with the log, tasks keep what they had in memory."""

    def close(self: Container) -> None:
        member, self._member = self._member, None
        self._backpressure.clear()
        if member is not None:
            kept, self.tasks = self.tasks, {}
            member.close()
            self.tasks = kept

    return patch.object(Container, "close", close)


FAULTS = (
    store_before_commit,
    offsets_outside_the_transaction,
    offsets_of_one_task_only,
    unknown_outcome_taken_for_success,
    zombies_are_not_fenced,
    tombstones_are_not_logged,
    following_ahead_of_the_rows,
    alerts_outside_the_transaction,
    tasks_survive_a_rejoin,
)
