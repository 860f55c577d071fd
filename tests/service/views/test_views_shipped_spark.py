"""The views of the examples: each is made of generated events, and says what a count by hand says."""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import duckdb

from samovar.changelog.log import Append, TopicSpec
from samovar.changelog.spark.session import OpenSession
from samovar.common.errors import Refused
from samovar.service.offline.generate import generate
from samovar.service.topology.stages import sources_of
from samovar.service.views.commands import makeable, path_of, rebuild
from tests.support.project import ROOT
from tests.support.small_service import START, Service, purchase, run

Event = dict[str, Any]


def served(name: str, folder: Path, events: list[Event]) -> Service:
    """An example's service in a folder of its own, which has processed these events."""
    shutil.copytree(ROOT / "examples" / name, folder)
    service = Service(folder / "service.yml")
    streams = service.settings.streams  # read from the file, every time
    by_stream: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_stream[sources_of(event["type"], streams)[0]].append(event)
    with service.container(), service.log() as log:
        for stream, some in by_stream.items():
            spec = streams[stream]
            pairs = [(str(event[spec.key]).encode(), json.dumps(event).encode()) for event in some]
            log.append([Append(topic=spec.topic, records=pairs)])
    service.settle()
    return service


def made(service: Service, spark: OpenSession) -> dict[str, list[dict[str, Any]]]:
    """All views, as DuckDB reads them."""
    with service.log() as log:
        found = list(rebuild(service.settings, log, spark, makeable(service.settings, ())[0]))
    assert [each for each in found if isinstance(each, Refused)] == []
    names = [each.view.name for each in found if not isinstance(each, Refused)]
    with duckdb.connect() as base:
        return {name: _rows(base, path_of(service.settings, name)) for name in names}


def _rows(base: duckdb.DuckDBPyConnection, folder: Path) -> list[dict[str, Any]]:
    found = base.sql(f"select * from read_parquet('{folder}/**/*.parquet')")
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def alerts_of(service: Service) -> list[dict[str, Any]]:
    done = run("read", service.config, "alerts", "--json")
    assert done.exit_code == 0, done.output
    return [json.loads(line)["value"] for line in done.stdout.splitlines()]


def test_views_of_the_fraud_service(spark: OpenSession, tmp_path: Path) -> None:
    events = [json.loads(line) for line in generate("fraud", 6_000, 60, 5)]
    service = served("fraud", tmp_path / "fraud", events)
    alerts = alerts_of(service)
    judged = {alerts[0]["id"]: "confirmed", alerts[1]["id"]: "false_alarm", alerts[2]["id"]: "confirmed"}
    with service.log() as log:
        log.create([TopicSpec("fraud-labels", 1, {"cleanup.policy": "compact"})])
        said = [(alerts[1]["id"], "confirmed"), *judged.items()]  # somebody thought better of it
        rows = [{"alert": each, "rule": "", "key": "", "label": label, "by": "a", "at": START} for each, label in said]
        log.append(
            [Append(topic="fraud-labels", records=[(row["alert"].encode(), json.dumps(row).encode()) for row in rows])]
        )
    views = made(service, spark)

    spent: dict[str, float] = defaultdict(float)
    for event in events:
        if event["type"] == "purchase":
            spent[event["card"]] += event["amount"]
    assert {row["card"]: row["spent"] for row in views["card-profile"]} == {
        card: round(amount, 2) for card, amount in spent.items()
    }
    hours = Counter((alert["rule"], alert["at"] // 3_600_000) for alert in alerts)
    found = {(row["rule"], int(row["hour"].timestamp()) // 3600): row["alerts"] for row in views["alerts-by-hour"]}
    assert found == hours
    assert {row["severity"] for row in views["alerts-by-hour"]} <= {"info", "low", "medium", "high", "critical"}
    assert sum(row["alerts"] for row in views["top-merchants"]) > 0
    assert all(row["rules"] and row["cards"] > 0 for row in views["top-merchants"])
    labelled = Counter((alert["rule"], judged.get(alert["id"])) for alert in alerts)
    for row in views["rule-precision"]:
        confirmed, alarms = labelled[row["rule"], "confirmed"], labelled[row["rule"], "false_alarm"]
        assert (row["confirmed"], row["false_alarms"]) == (confirmed, alarms)
        assert row["precision"] == (confirmed / (confirmed + alarms) if confirmed + alarms else None)
    assert sum(row["alerts"] for row in views["rule-precision"]) == len(alerts)
    assert sum(row["confirmed"] for row in views["rule-precision"]) == 2


def test_views_of_the_sessions_service(spark: OpenSession, tmp_path: Path) -> None:
    events = [json.loads(line) for line in generate("sessions", 4_000, 80, 5)]
    service = served("sessions", tmp_path / "sessions", events)
    views = made(service, spark)
    summaries = [alert for alert in alerts_of(service) if alert["rule"] == "session-summary"]
    days = Counter(alert["at"] // 86_400_000 for alert in summaries)
    rows = [row for row in views["sessions-by-day"] if row["rule"] == "session-summary"]
    assert sorted(row["sessions"] for row in rows) == sorted(days.values())
    assert all(row["p50_s"] <= row["p90_s"] <= row["p99_s"] for row in rows)
    steps: dict[int, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for event in events:
        steps[event["ts"] // 86_400_000][event["type"]].add(event["visitor"])
    viewed = sorted(len(each["view"]) for each in steps.values())
    paid = sorted(len(each["view"] & each["cart"] & each["checkout"] & each["pay"]) for each in steps.values())
    assert sorted(row["viewed"] for row in views["conversion-funnel"]) == viewed
    assert sorted(row["paid"] for row in views["conversion-funnel"]) == paid
    assert sum(paid) > 0


def test_the_view_of_a_task_s_store(spark: OpenSession, tmp_path: Path) -> None:
    events = [{"type": "purchase", **purchase(f"c{n % 3}", n * 60, 10 + n)} for n in range(9)]
    service = served("card-profiles", tmp_path / "profiles", events)
    (profiles,) = made(service, spark).values()
    assert {row["card"]: row["purchases"] for row in profiles} == {"c0": 3, "c1": 3, "c2": 3}
    assert {row["card"]: row["mean_amount"] for row in profiles} == {"c0": 13.0, "c1": 14.0, "c2": 15.0}
