"""Metrics of one container, in Prometheus' form. docs/metrics.md says what each means and which are worth an alarm.

Nothing is counted for them on the way of a batch: what is served is the last look that the container took of itself
(tasks/runtime/metrics.py), at most a second old, with lags by the thread that asks the log for ends
(tasks/runtime/heartbeat.py). `METRICS` and `HTTP_METRICS` are the source of truth for which there are; docs/metrics.md
must list the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from samovar.changelog.formats.heartbeat import TaskReport
from samovar.changelog.log import TopicPartition
from samovar.tasks.model.results import Counts
from samovar.tasks.runtime.commit_times import CommitTimes
from samovar.tasks.runtime.heartbeat import HeartbeatReporter

PREFIX = "samovar_"
LIVES = ("created", "restoring", "running")


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Spec:
    kind: Kind
    labels: tuple[str, ...]
    help: str


def counter(text: str, *labels: str) -> Spec:
    return Spec(Kind.COUNTER, labels, text)


def gauge(text: str, *labels: str) -> Spec:
    return Spec(Kind.GAUGE, labels, text)


FAMILIES = {Kind.COUNTER: CounterMetricFamily, Kind.GAUGE: GaugeMetricFamily, Kind.HISTOGRAM: HistogramMetricFamily}
TASK = ("stage", "partition")
INPUT = ("stage", "stream", "partition")

# What a task counts (samovar.tasks.model.results.Counts), and the metric that shows it.
RENAMED = {"matches": "alerts", "commits": "task_commits", "rows": "changed_rows", "skipped": "skipped_alerts"}
COUNTS = {each.name: RENAMED.get(each.name, each.name) for each in fields(Counts)}

METRICS = {
    "container": gauge("Always 1; tells who this is.", "service", "slot", "host", "version"),
    "started_timestamp_seconds": gauge("When the container started."),
    "metrics_snapshot_timestamp_seconds": gauge("When these numbers were taken; an old one means that the loop hangs."),
    "heartbeat_ok": gauge(
        "1 where the container could last tell of itself to the log, 0 where the log did not answer."
    ),
    "tasks": gauge("Tasks by where they are in their life.", "life"),
    "lag_events": gauge("Offsets of the input between what is processed and its end.", *INPUT),
    "lag_seconds": gauge("How long ago the first record that is not processed yet was appended.", *INPUT),
    "watermark_timestamp_seconds": gauge("Event time of the task.", *TASK),
    "watermark_age_seconds": gauge("How far event time is behind the wall clock.", *TASK),
    "watermark_blocked_by": gauge(
        "1 for the stream and partition that event time waits for.", *TASK, "stream", "source"
    ),
    "waiting_events": gauge("Events that were taken and wait for event time.", *TASK),
    "events": counter("Records taken from the inputs, by committed work."),
    "alerts": counter("Matches found, by committed work."),
    "late": counter("Events put aside because they came behind event time."),
    "dead": counter("Records put aside because they are not events of their stream."),
    "misplaced": counter("Of these, records that are not in the partition of their key."),
    "dropped": counter("What max_partials, max_events and max_matches let go of."),
    "emitted": counter("Records written by tasks of the user's."),
    "failed": counter("Calls of a user's task that raised; the record is a dead letter."),
    "forwarded": counter("Events forwarded to stages that are keyed otherwise."),
    "unkeyed": counter("Events that were not forwarded: what they would be keyed by is null or missing."),
    "missed": counter("Records of a stream that were not forwarded while the stage that wants them was not there."),
    "skipped_alerts": counter("Alerts found again after a rewind and not published twice."),
    "muted": counter("Matches that raised no alert: of rules in shadow, and of versions that drain."),
    "throttled": counter("Alerts that the storm guard kept back."),
    "task_commits": counter("Commits, counted once a task that took part."),
    "changed_rows": counter("Rows of state written to the changelog."),
    "commit_seconds": Spec(Kind.HISTOGRAM, (), "How long a commit to the log took."),
    "rule_matches": counter("Matches of a rule.", "rule"),
    "rule_suppressed": counter("Matches of a rule that its `suppress` kept back.", "rule"),
    "rule_dropped": counter("Partial matches, events or matches of a rule that a limit let go of.", "rule", "what"),
    "rule_without_key": counter("Events that a rule could not take because a key field was null or missing.", "rule"),
    "rule_seconds": counter("Time spent on a rule alone; what rules share is not in it.", "rule"),
    "rule_live_partials": gauge("Partial matches of a rule in memory.", "rule"),
    "rule_muted": counter("Matches of a rule in shadow, or that drains, which raised no alert.", "rule"),
    "rule_throttled": counter("Alerts of a rule that the storm guard kept back.", "rule"),
    "rule_storm": gauge("1 while the storm guard keeps alerts of a rule back.", "rule"),
    "rule_info": gauge("Always 1; tells which rules are at work.", "rule", "version", "number", "status"),
    "rules_change": gauge("The last change of published rules that the task took.", *TASK),
    "rules_refused": gauge("1 while a published change cannot be taken."),
    "unread_records": gauge("Records in partitions that an input got after the state was made.", "stream"),
    "state_bytes": gauge("What the task's store takes: files on disk, and rows not yet written to them.", *TASK),
    "state_memory_bytes": gauge("Memory of states that are held in memory, roughly."),
    "restore_offsets": gauge("Changelog offsets of a restore, done and left.", *TASK, "what"),
    "restore_offsets_per_second": gauge("How quickly a restore goes.", *TASK),
    "restore_left_seconds": gauge("How long a restore still takes, at the rate it has.", *TASK),
    "restored_records": counter("Changelog records read by restores."),
}

# Of the HTTP process alone.
HTTP_METRICS = {
    "caught_up": gauge("1 where all tasks run and no record waits for long."),
    "http_requests": counter("Requests answered.", "method", "status"),
    "http_listeners": gauge("Who listens to live alerts."),
    "http_listeners_cut_off": counter("Listeners that did not keep up and were cut off; they come back."),
    "http_index_alerts": gauge("Alerts that can be searched."),
    "http_index_caught_up": gauge("1 where the index has reached the end that the alerts had at the start."),
    "http_index_skipped": counter("Records of the alerts topic that are not alerts."),
    "sink_delivered": counter("Alerts that a sink took.", "sink"),
    "sink_failed": counter("Attempts to deliver that failed; they are made again.", "sink"),
    "sink_waiting": gauge("Alerts that wait for a sink.", "sink"),
}


# Of a process that copies into an archive.
ARCHIVED = ("topic", "partition")
ARCHIVE_METRICS = {
    "archive_files": counter("Files that were written."),
    "archive_records": counter("Records that were copied."),
    "archive_lag_offsets": gauge("Offsets between what is copied and what could be.", *ARCHIVED),
    "archive_lag_seconds": gauge("For how long there has been a record that is not copied.", *ARCHIVED),
    "archive_lost_offsets": gauge("Offsets that retention took before they were copied.", *ARCHIVED),
}


@dataclass(frozen=True, kw_only=True)
class ArchiveSnapshot:
    """What a process that copies has done, and how far behind it is."""

    files: int
    records: int
    lags: Mapping[TopicPartition, int]
    ages_s: Mapping[TopicPartition, float]
    lost: Mapping[TopicPartition, int]


class ArchiveMetrics(Collector):
    """What it shows. Called by the thread that serves."""

    def __init__(self, take: Callable[[], ArchiveSnapshot]) -> None:
        self._take = take

    def collect(self) -> Iterator[Metric]:
        found = self._take()
        families: dict[str, Any] = {
            name: FAMILIES[metric.kind](PREFIX + name, metric.help, labels=metric.labels)
            for name, metric in ARCHIVE_METRICS.items()
        }
        families["archive_files"].add_metric([], found.files)
        families["archive_records"].add_metric([], found.records)
        by_name = {"lag_offsets": found.lags, "lag_seconds": found.ages_s, "lost_offsets": found.lost}
        for name, values in by_name.items():
            for at, value in values.items():
                families[f"archive_{name}"].add_metric([at.topic, str(at.partition)], value)
        yield from families.values()


class ContainerMetrics(Collector):
    """What one container shows. Called by the thread that serves."""

    def __init__(self, service: str, reporter: HeartbeatReporter, commits: CommitTimes) -> None:
        self._service, self._reporter, self._commits = service, reporter, commits

    def collect(self) -> Iterator[Metric]:
        metadata, snapshot = self._reporter.latest, self._reporter.snapshot
        if metadata is None or snapshot is None:
            return
        families: dict[str, Any] = {
            name: FAMILIES[metric.kind](PREFIX + name, metric.help, labels=metric.labels)
            for name, metric in METRICS.items()
        }

        def put(name: str, value: float, *labels: object) -> None:
            families[name].add_metric(list(map(str, labels)), value)

        put("container", 1, self._service, metadata.slot, metadata.host, metadata.version)
        put("started_timestamp_seconds", metadata.since_ms / 1000)
        put("metrics_snapshot_timestamp_seconds", snapshot.time_ms / 1000)
        put("heartbeat_ok", 0 if self._reporter.trouble else 1)
        for life in LIVES:
            put("tasks", sum(task.life == life for task in snapshot.tasks), life)
        for task in metadata.tasks:
            fill_task(put, task)
        for field, value in asdict(snapshot.counts).items():
            put(COUNTS[field], value)
        for rule in snapshot.rules:
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
        for each in snapshot.active_rules:
            put("rule_info", 1, each.rule, each.version, each.number, each.status)
        storms = {each.rule for each in snapshot.active_rules if each.kept_back}
        for name in dict.fromkeys(each.rule for each in snapshot.active_rules):
            put("rule_storm", int(name in storms), name)
        for place, change in snapshot.changes.items():
            put("rules_change", change, *place)
        put("rules_refused", 0 if snapshot.rules_refused is None else 1)
        for stream, records in snapshot.unread.items():
            put("unread_records", records, stream)
        put("state_memory_bytes", snapshot.memory_bytes)
        put("restored_records", snapshot.restored)
        families["commit_seconds"].add_metric([], self._commits.buckets(), self._commits.sum_s)
        yield from families.values()


def fill_task(put: Any, task: TaskReport) -> None:
    place = task.stage, task.partition
    if task.watermark is not None:
        put("watermark_timestamp_seconds", task.watermark / 1000, *place)
        put("watermark_age_seconds", time.time() - task.watermark / 1000, *place)
    if task.blocked_by is not None:
        put("watermark_blocked_by", 1, *place, *task.blocked_by)
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
