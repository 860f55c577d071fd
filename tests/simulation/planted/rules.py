"""Faults of rule changes, of stages and of records that are put aside."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from samovar.tasks.input.repartition_sink import RepartitionSink
from samovar.tasks.input.source import StreamSource
from samovar.tasks.rules import migration
from samovar.tasks.rules.alert_filter import ShadowFilter
from samovar.tasks.rules.processor import RuleProcessor
from samovar.tasks.rules.rate_limiter import AlertRateLimiter
from samovar.tasks.runtime.stream_task import StreamTask
from samovar.tasks.runtime.topic_watch import TopicWatch

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
)
