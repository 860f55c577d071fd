"""Metrics of the HTTP process, in Prometheus' form: what all containers tell of themselves, and what this process does.

The families are those of a container's own metrics (ops/metrics.py), with the container's slot before their labels:
scrape either the containers or this. How long commits take is only in the containers' own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from samovar.changelog.formats.heartbeat import MemberMetadata
from samovar.common.errors import Refused
from samovar.service.http.state import AppState
from samovar.service.ops.metrics import COUNTS, HTTP_METRICS, LIVES, METRICS, PREFIX, Kind, fill_task


def exposition(app_state: AppState) -> bytes:
    """All metrics as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServiceMetrics(app_state))
    return bytes(generate_latest(registry))


class ServiceMetrics(Collector):
    """What the containers tell of themselves, and what this process does."""

    def __init__(self, app_state: AppState) -> None:
        self._app_state = app_state

    def collect(self) -> Iterator[Metric]:
        app_state = self._app_state
        families = {name: _family(name, ("slot",)) for name in METRICS if METRICS[name].kind is not Kind.HISTOGRAM}
        own: dict[str, Any] = {name: _family(name, ()) for name in HTTP_METRICS}
        is_caught_up = False
        with suppress(Refused):
            seen = app_state.watch.latest
            is_caught_up = seen.is_caught_up and not app_state.watch.is_old
            for metadata in seen.presences:
                _fill(families, metadata, app_state.settings.service)
        counts = {
            "caught_up": int(is_caught_up),
            "http_listeners": len(app_state.broadcaster),
            "http_listeners_cut_off": app_state.broadcaster.cut_off,
            "http_index_caught_up": int(app_state.follower.is_caught_up),
            "http_index_alerts": app_state.index.ask("SELECT count(*) FROM alert")[0][0],
            "http_index_skipped": app_state.follower.skipped,
        }
        for name, value in counts.items():
            own[name].add_metric([], value)
        for (method, status), count in sorted(app_state.requests.copy().items()):
            own["http_requests"].add_metric([method, str(status)], count)
        for sink in app_state.sinks.reports():
            for name in ("delivered", "failed", "waiting"):
                own[f"sink_{name}"].add_metric([sink.name], getattr(sink, name))
        yield from families.values()
        yield from own.values()


def _fill(families: dict[str, Any], metadata: MemberMetadata, service: str) -> None:
    def put(name: str, value: float, *labels: object) -> None:
        families[name].add_metric([str(metadata.slot), *map(str, labels)], value)

    put("container", 1, service, metadata.host, metadata.version)
    put("started_timestamp_seconds", metadata.since_ms / 1000)
    put("metrics_snapshot_timestamp_seconds", metadata.time_ms / 1000)
    put("heartbeat_ok", 1)
    for life in LIVES:
        put("tasks", sum(task.life == life for task in metadata.tasks), life)
    for task in metadata.tasks:
        fill_task(put, task)
    for name, metric in COUNTS.items():
        put(metric, metadata.counts.get(name, 0))
    for rule in metadata.rules:
        for name in ("matches", "suppressed", "seconds", "live_partials"):
            put(f"rule_{name}", getattr(rule, name), rule.id)
        for what in ("partials", "events", "matches"):
            put("rule_dropped", getattr(rule, f"dropped_{what}"), rule.id, what)
        put("rule_without_key", rule.no_key, rule.id)


def _family(name: str, before: tuple[str, ...]) -> Metric:
    metric = METRICS.get(name) or HTTP_METRICS[name]
    kind: Any = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    labels = [*before, *(label for label in metric.labels if label not in before)]  # `container` has its slot already
    made: Metric = kind(PREFIX + name, metric.help, labels=labels)
    return made
