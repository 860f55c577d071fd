"""Metrics of the HTTP process, in Prometheus' form: what all containers tell of themselves, and what this process does.

The families are those of a container's own metrics (ops/metrics.py), with the container's slot before their labels:
scrape either the containers or this. How long commits take is only in the containers' own.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from samovar.changelog.formats.heartbeat import MemberMetadata
from samovar.common.errors import Refused
from samovar.service.ops.metrics import COUNTS, HTTP_METRICS, LIVES, METRICS, PREFIX, Kind, fill_task

if TYPE_CHECKING:
    from samovar.service.http.state import AppState


@dataclass
class Requests:
    """What was asked, counted by method and status. Threads may share it."""

    counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, method: str, status: int) -> None:
        with self._lock:
            self.counts[method, status] += 1


def exposition(app_state: AppState) -> bytes:
    """All metrics as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServiceMetrics(app_state))
    return bytes(generate_latest(registry))


class ServiceMetrics(Collector):
    """What the service and this process show."""

    def __init__(self, app_state: AppState) -> None:
        self._world = app_state

    def collect(self) -> Iterator[Metric]:
        families = {name: _family(name, ("slot",)) for name in METRICS if METRICS[name].kind is not Kind.HISTOGRAM}
        own = {name: _family(name, ()) for name in HTTP_METRICS}
        try:
            seen = self._world.watch.latest
        except Refused:
            seen = None
        for presence in seen.presences if seen is not None else ():
            _fill(families, presence, self._world.settings.service)
        self._fill_own(own, seen is not None and seen.is_caught_up and not self._world.watch.is_old)
        yield from families.values()
        yield from own.values()

    def _fill_own(self, own: dict[str, Any], is_caught_up: bool) -> None:
        app_state = self._world

        def put(name: str, value: float, *labels: object) -> None:
            own[name].add_metric(list(map(str, labels)), value)

        put("caught_up", int(is_caught_up))
        put("http_listeners", len(app_state.broadcaster))
        put("http_listeners_cut_off", app_state.broadcaster.cut_off)
        put("http_index_caught_up", int(app_state.follower.is_caught_up))
        put("http_index_alerts", app_state.index.ask("SELECT count(*) FROM alert")[0][0])
        put("http_index_skipped", app_state.follower.skipped)
        for (method, status), count in sorted(app_state.requests.counts.items()):
            put("http_requests", count, method, status)
        for sink in app_state.sinks.reports():
            put("sink_delivered", sink.delivered, sink.name)
            put("sink_failed", sink.failed, sink.name)
            put("sink_waiting", sink.waiting, sink.name)


def _fill(families: dict[str, Any], presence: MemberMetadata, service: str) -> None:
    def put(name: str, value: float, *labels: object) -> None:
        families[name].add_metric([str(presence.slot), *map(str, labels)], value)

    put("container", 1, service, presence.host, presence.version)
    put("started_timestamp_seconds", presence.since_ms / 1000)
    put("metrics_snapshot_timestamp_seconds", presence.time_ms / 1000)
    put("heartbeat_ok", 1)
    for life in LIVES:
        put("tasks", sum(task.life == life for task in presence.tasks), life)
    for task in presence.tasks:
        fill_task(put, task)
    for name, metric in COUNTS.items():
        put(metric, presence.counts.get(name, 0))
    for rule in presence.rules:
        put("rule_matches", rule.matches, rule.id)
        put("rule_suppressed", rule.suppressed, rule.id)
        put("rule_dropped", rule.dropped_partials, rule.id, "partials")
        put("rule_dropped", rule.dropped_events, rule.id, "events")
        put("rule_dropped", rule.dropped_matches, rule.id, "matches")
        put("rule_without_key", rule.no_key, rule.id)
        put("rule_seconds", rule.seconds, rule.id)
        put("rule_live_partials", rule.live_partials, rule.id)


def _family(name: str, before: tuple[str, ...]) -> Metric:
    metric = METRICS.get(name) or HTTP_METRICS[name]
    kind: Any = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    labels = [*before, *(label for label in metric.labels if label not in before)]  # `container` has its slot already
    made: Metric = kind(PREFIX + name, metric.help, labels=labels)
    return made
