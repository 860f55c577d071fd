"""Faults of the commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from samovar.changelog.log import Append, Records, TopicPartition
from samovar.common.errors import CommitUnknown, Fenced
from samovar.common.failpoints import hit
from samovar.tasks.input.processor import Processor
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


def journal_outside_the_transaction() -> Patching:
    """The journal is written behind the transaction."""

    def split(self: MemoryMember, appends: Sequence[Append], offsets: Mapping[TopicPartition, int]) -> Any:
        ends = transact(self, [each for each in appends if "journal" not in each.topic], offsets)
        for each in appends:
            if "journal" in each.topic:
                self._broker.write(each, None)
        return ends

    return patch.object(MemoryMember, "transact", split)


def letters_outside_the_transaction() -> Patching:
    """Dead letters are written at once."""

    def early(self: MemoryMember, appends: Sequence[Append], offsets: Mapping[TopicPartition, int]) -> Any:
        for each in appends:
            if "dead" in each.topic:
                self._broker.write(each, None)
        return transact(self, [each for each in appends if "dead" not in each.topic], offsets)

    return patch.object(MemoryMember, "transact", early)


def letters_are_lost_with_an_abandoned_step() -> Patching:
    """A step that is taken again in pieces writes no letters for what it had put aside."""
    abandon, put = StreamTask.abandon, Processor._put_aside

    def abandoned(self: StreamTask, failure: Any, rows: int) -> None:
        nexts = self.processor.source.nexts()
        abandon(self, failure, rows)
        self.processor.told_before = nexts  # type: ignore[attr-defined]

    def put_aside(self: Processor, records: Records, dead: Any, late: Any) -> None:
        told = getattr(self, "told_before", {})
        until = told.get(self.source.by_topic[records.topic].spec.stream, 0)
        dead, late = ([each for each in found if records.offsets[each.row] >= until] for found in (dead, late))
        put(self, records, dead, late)

    stack = ExitStack()
    stack.enter_context(patch.object(StreamTask, "abandon", abandoned))
    stack.enter_context(patch.object(Processor, "_put_aside", put_aside))
    return stack


def evicted_before_the_commit() -> Patching:
    """States are evicted between two batches of one commit."""
    feed = Processor.feed

    def evicting(self: Processor, *given: Any) -> Any:
        found = feed(self, *given)
        if isinstance(self, RuleProcessor) and self.memory_bytes() > self.plan.tunables.cache_bytes:
            self.state_cache.evict()
        return found

    return patch.object(Processor, "feed", evicting)


def generations_are_not_asked_for() -> Patching:
    """Offsets are sent with what the group says now, not with what the member was given."""

    def send(self: MemoryMember, offsets: Any, transaction: Any) -> None:
        if not offsets:
            return
        with self._client.call("offsets"):
            self._refuse_zombie()
            sent = self._group.pending.setdefault(transaction, {})
            transaction.groups.append(self._group)
            number = next(self._broker._numbers)
            sent.update({at: (number, offset) for at, offset in offsets.items()})

    return patch.object(MemoryMember, "_send_offsets", send)


def abandoned_steps_are_kept() -> Patching:
    """A step that found too much is taken again on top of itself."""

    def keep(self: StreamTask, failure: Any, rows: int) -> None:
        if failure is not None:
            abandon(self, failure, rows)
            return
        if rows > 1:
            self.piece_rows = rows // 2
        else:
            self._takes_all = True
        self._limit()
        self.is_abandoned = True

    abandon = StreamTask.abandon
    return patch.object(StreamTask, "abandon", keep)


def offsets_of_the_stage_that_is_ahead() -> Patching:
    def offsets(self: Container, outcomes: Sequence[Outcome]) -> dict[TopicPartition, int]:
        return {at: offset for outcome in outcomes for at, offset in outcome.offsets.items()}

    return patch.object(Container, "_offsets", offsets)


def commits_without_offsets() -> Patching:
    """A task commits while all of its inputs are shared with a stage that restores: nobody asks who it is."""

    def unasked(self: Container, member: Any, outcomes: Sequence[Outcome]) -> Mapping[TopicPartition, int]:
        return member.transact([each for outcome in outcomes for each in outcome.appends], self._offsets(outcomes))  # type: ignore[no-any-return]

    stack = ExitStack()
    stack.enter_context(patch.object(Container, "_can_commit", lambda *_: True))
    stack.enter_context(patch.object(Container, "_transact", unasked))
    return stack


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
    journal_outside_the_transaction,
    letters_outside_the_transaction,
    letters_are_lost_with_an_abandoned_step,
    evicted_before_the_commit,
    generations_are_not_asked_for,
    abandoned_steps_are_kept,
    offsets_of_the_stage_that_is_ahead,
    commits_without_offsets,
)
