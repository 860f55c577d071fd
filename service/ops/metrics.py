"""Metrics of one container, in Prometheus' form. docs/metrics.md says what each means and which are worth an alarm.

Nothing is counted for them on the way of a batch: what is served is the last look that the container took of itself
(tasks/runtime/metrics.py), at most a second old, with lags by the thread that asks the log for ends
(tasks/runtime/heartbeat.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from samovar.changelog.formats.heartbeat import TaskReport
from samovar.service.ops.metrics_list import COUNTS, METRICS, Kind
from samovar.tasks.runtime.commit_times import CommitTimes
from samovar.tasks.runtime.heartbeat import HeartbeatReporter

PREFIX = "samovar_"
LIVES = ("created", "restoring", "running")
FAMILIES = {Kind.COUNTER: CounterMetricFamily, Kind.GAUGE: GaugeMetricFamily, Kind.HISTOGRAM: HistogramMetricFamily}


class ContainerMetrics(Collector):
    """What one container shows. Called by the thread that serves."""

    def __init__(self, service: str, reporter: HeartbeatReporter, commits: CommitTimes) -> None:
        self._service, self._reporter, self._commits = service, reporter, commits

    def collect(self) -> Iterator[Metric]:
        presence, look = self._reporter.latest, self._reporter.look
        if presence is None or look is None:
            return
        families: dict[str, Any] = {
            name: FAMILIES[metric.kind](PREFIX + name, metric.help, labels=metric.labels)
            for name, metric in METRICS.items()
        }

        def put(name: str, value: float, *labels: object) -> None:
            families[name].add_metric(list(map(str, labels)), value)

        put("container", 1, self._service, presence.slot, presence.host, presence.version)
        put("started_timestamp_seconds", presence.since_ms / 1000)
        put("metrics_snapshot_timestamp_seconds", look.time_ms / 1000)
        put("heartbeat_ok", 0 if self._reporter.trouble else 1)
        for life in LIVES:
            put("tasks", sum(task.life == life for task in look.tasks), life)
        for task in presence.tasks:
            fill_task(put, task)
        for field, value in asdict(look.counts).items():
            put(COUNTS[field], value)
        for rule in look.rules:
            put("rule_matches", rule.matches, rule.id)
            put("rule_suppressed", rule.suppressed, rule.id)
            put("rule_dropped", rule.dropped_partials, rule.id, "partials")
            put("rule_dropped", rule.dropped_events, rule.id, "events")
            put("rule_dropped", rule.dropped_matches, rule.id, "matches")
            put("rule_without_key", rule.no_key, rule.id)
            put("rule_seconds", rule.seconds, rule.id)
            put("rule_live_partials", rule.live_partials, rule.id)
            put("rule_muted", rule.muted, rule.id)
            put("rule_throttled", rule.throttled, rule.id)
        for each in look.at_work:
            put("rule_info", 1, each.rule, each.version, each.number, each.status)
        storms = {each.rule for each in look.at_work if each.kept_back}
        for name in dict.fromkeys(each.rule for each in look.at_work):
            put("rule_storm", int(name in storms), name)
        for place, change in look.changes.items():
            put("rules_change", change, *place)
        put("rules_refused", 0 if look.rules_refused is None else 1)
        for stream, records in look.unread.items():
            put("unread_records", records, stream)
        put("state_memory_bytes", look.memory_bytes)
        put("restored_records", look.restored)
        families["commit_seconds"].add_metric([], self._commits.buckets(), self._commits.sum_s)
        yield from families.values()


def fill_task(put: Any, task: TaskReport) -> None:
    place = task.stage, task.partition
    if task.watermark is not None:
        put("watermark_timestamp_seconds", task.watermark / 1000, *place)
        put("watermark_age_seconds", time.time() - task.watermark / 1000, *place)
    if task.held_by is not None:
        put("watermark_blocked_by", 1, *place, *task.held_by)
    if task.waiting is not None:
        put("waiting_events", task.waiting, *place)
    if task.state_bytes is not None:
        put("state_bytes", task.state_bytes, *place)
    for each in task.inputs:
        where = task.stage, each.stream, each.partition
        if each.lag is not None:
            put("lag_events", each.lag, *where)
        if each.behind_s is not None:
            put("lag_seconds", each.behind_s, *where)
    restore = task.restore
    if restore is not None:
        put("restore_offsets", restore.done, *place, "done")
        put("restore_offsets", restore.todo - restore.done, *place, "left")
        put("restore_offsets_per_second", restore.per_s or 0.0, *place)
        if restore.left_s is not None:
            put("restore_left_seconds", restore.left_s, *place)
