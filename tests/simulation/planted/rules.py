"""Faults of rule changes, of stages, of slots and of records that are put aside."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from samovar.changelog.formats.heartbeat import heartbeats
from samovar.changelog.log import Append
from samovar.state.stack import Stack
from samovar.state.ttl import TtlStore
from samovar.tasks.input.repartition_sink import RepartitionSink
from samovar.tasks.input.source import StreamSource
from samovar.tasks.model.plan import Plan
from samovar.tasks.replay import rebuild
from samovar.tasks.rules import backfill, crash_marks, migration
from samovar.tasks.rules.alert_filter import ShadowFilter
from samovar.tasks.rules.crash_marks import CrashMarks
from samovar.tasks.rules.processor import RuleProcessor
from samovar.tasks.rules.rate_limiter import AlertRateLimiter
from samovar.tasks.runtime.slot_claim import SlotClaim
from samovar.tasks.runtime.stream_task import StreamTask
from samovar.tasks.runtime.topic_watch import TopicWatch
from samovar.tasks.user.calls import Calls

Patching = AbstractContextManager[object]


def rule_changes_are_not_journaled() -> Patching:
    return patch.object(StreamSource, "note_rules", lambda *_: None)


def idle_partitions_hold_other_stages_back() -> Patching:
    """What a task learns of time without an event does not reach the stages that it forwards to."""
    return patch.object(RepartitionSink, "due_watermarks", lambda *_: False)


def late_events_are_not_written() -> Patching:
    """Late events are counted and not written."""
    put = RuleProcessor._put_aside

    def counted(self: RuleProcessor, records: Any, dead: Any, late: Any) -> None:
        put(self, records, dead, late)
        self._late.pairs.clear()
        self._late.headers.clear()

    return patch.object(RuleProcessor, "_put_aside", counted)


def misplaced_records_are_taken() -> Patching:
    return patch.object(StreamSource, "_find_misplaced", lambda *_: None)


def a_switch_keeps_the_processor() -> Patching:
    """After a rule change the task goes on with the processor of before."""
    return patch.object(StreamTask, "end_migration", lambda _: None)


def rules_in_shadow_alert() -> Patching:
    return patch.object(ShadowFilter, "left", lambda _, matches, __: list(matches))


def a_version_drains_too_briefly() -> Patching:
    """It is gone before all that it began has ended."""
    return patch.object(migration, "draining_ms", lambda _: 500)


def alerts_of_a_storm_are_not_counted_on() -> Patching:
    """After a restart a rule may raise as many alerts again."""
    return patch.object(AlertRateLimiter, "changes", lambda _: [])


def topics_made_again_go_unnoticed() -> Patching:
    return patch.object(TopicWatch, "check_now", lambda _: None)


def backfills_begin_one_record_late() -> Patching:
    """Live and in a replay alike."""
    run = backfill._Fold.run

    def late(self: Any, start: Any, here: StreamSource) -> None:
        run(self, {stream: offset + 1 for stream, offset in start.items()}, here)

    return patch.object(backfill._Fold, "run", late)


def changed_parameters_wait_for_a_publish() -> Patching:
    """A restart with other parameters leaves published rules as they were."""
    is_due = migration.is_due

    def patient(standing: Plan, wanted: Plan, watermark: int | None) -> bool:
        return standing.ruleset_change != wanted.ruleset_change and is_due(standing, wanted, watermark)

    return patch.object(migration, "is_due", patient)


def slots_are_taken_unseen() -> Patching:
    """A container does not wait for the heartbeats of another in its slot."""

    def unseen(self: SlotClaim) -> int:
        return heartbeats(self._log, self._service, self._slot)[1]

    return patch.object(SlotClaim, "_wait_for_others", unseen)


def fenced_containers_never_give_way() -> Patching:
    """Two in one slot take it from each other for ever."""
    return patch.object(SlotClaim, "keep", lambda _: None)


def crashes_are_not_counted() -> Patching:
    """A rule that ends the process is tried again for ever."""
    return patch.object(CrashMarks, "failure_of", lambda self, *_: self.put_away())


def one_crash_is_enough() -> Patching:
    return patch.object(crash_marks, "ENDED_MOST", 1)


def drained_versions_take_new_events() -> Patching:
    """A version that drains raises what began after another took its place."""
    drained = migration._draining_rules

    def with_more(*given: Any) -> Any:
        return {name: replace(each, began_by_ms=given[2] + 3_000) for name, each in drained(*given).items()}

    return patch.object(migration, "_draining_rules", with_more)


def rule_changes_are_journaled_one_record_late() -> Patching:
    note = StreamSource.note_rules

    def late(self: StreamSource, facts: Any, inputs: Any = None) -> None:
        note(self, facts, inputs)
        entry = self.entries[-1]
        if inputs is not None:
            self.entries[-1] = replace(entry, inputs={name: at + 1 for name, at in entry.inputs.items()})

    return patch.object(StreamSource, "note_rules", late)


def list_changes_drop_states() -> Patching:
    return patch.object(migration, "_moves", lambda *_: {})


def rows_of_gone_rules_stay() -> Patching:
    rows = migration.migrated_rows

    def kept(store: Any, plan: Any, moves: Any) -> Any:
        return [each for each in rows(store, plan, moves) if each[1] is not None]

    stack = ExitStack()
    stack.enter_context(patch.object(migration, "migrated_rows", kept))
    stack.enter_context(patch.object(rebuild, "migrated_rows", kept))
    return stack


def marks_before_events() -> Patching:
    """Marks of a commit stand before its events in a repartition topic."""
    appends = RepartitionSink.appends

    def turned(self: RepartitionSink) -> list[Append]:
        found = appends(self)
        return [each for each in found if each.partition is not None] + [
            each for each in found if each.partition is None
        ]

    return patch.object(RepartitionSink, "appends", turned)


def forwards_begin_anew_with_a_restart() -> Patching:
    """A task that restarts says that it forwards since then."""
    init = RepartitionSink.__init__

    def anew(self: RepartitionSink, *given: Any) -> None:
        init(self, *given)
        for output in self.outputs:
            output.since = None

    return patch.object(RepartitionSink, "__init__", anew)


def failed_calls_keep_their_writes() -> Patching:
    """What a user's call wrote before it raised is kept."""
    return patch.object(Stack, "undo", Stack.keep)


def user_windows_are_forgotten_by_a_restart() -> Patching:
    init = Calls.__init__

    def forgetful(self: Calls, *given: Any) -> None:
        init(self, *given)
        if self.spec.window_ms is not None:
            self.timers.window_end = None
            self.stack.keep()

    return patch.object(Calls, "__init__", forgetful)


def expired_rows_stay() -> Patching:
    """A user's rows stay in their store when they have expired."""
    return patch.object(TtlStore, "expire", lambda *_: None)


FAULTS = (
    rule_changes_are_not_journaled,
    idle_partitions_hold_other_stages_back,
    late_events_are_not_written,
    misplaced_records_are_taken,
    a_switch_keeps_the_processor,
    rules_in_shadow_alert,
    a_version_drains_too_briefly,
    alerts_of_a_storm_are_not_counted_on,
    topics_made_again_go_unnoticed,
    backfills_begin_one_record_late,
    changed_parameters_wait_for_a_publish,
    slots_are_taken_unseen,
    fenced_containers_never_give_way,
    crashes_are_not_counted,
    one_crash_is_enough,
    drained_versions_take_new_events,
    rule_changes_are_journaled_one_record_late,
    list_changes_drop_states,
    rows_of_gone_rules_stay,
    marks_before_events,
    forwards_begin_anew_with_a_restart,
    failed_calls_keep_their_writes,
    user_windows_are_forgotten_by_a_restart,
    expired_rows_stay,
)
