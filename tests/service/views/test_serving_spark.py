"""Served views as Spark makes them: the same answers as a rebuild at the same offsets."""

from __future__ import annotations

import json
import os
import signal
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.spark.session import OpenSession
from samovar.service.views.serving import ViewServer
from tests.support.http_server import wait_for
from tests.support.small_service import Service, make, many, purchase, run
from tests.support.views import put, views

CARDS = """
view: cards
sql: |
  select card, count(*) as purchases, round(sum(amount), 2) as spent, max_by(country, _event_time) as country,
    avg(amount) filter (where country <> 'US') as abroad, max(date_trunc('hour', _event_time)) as hour,
    min(day) as since, bool_or(amount > 500) as big, count_if(amount > 500) as bigs,
    sum(case when amount < 2 then 1 else 0 end) as probes
  from purchase
  where _error is null and amount > 0
  group by card
  order by 2
key: card
serve: true
"""
BY_DAY = """
view: by-day
sql: |
  select day, country, count(*) as n from purchase group by day, country
key: [day, country]
partitioning: day
refresh: incremental
partition_of: {purchase: day}
serve: true
"""
ALERTS = """
view: alerts-of-rules
sql: |
  select rule, max(severity) as severity, count(*) as alerts from alerts group by all
key: rule
serve: true
"""
JOINED = """
view: joined
sql: |
  select p.card, count(distinct q.country) as n from purchase p join purchase q on p.card = q.card group by 1
key: card
serve: true
"""
DAY_S = 86_400


@pytest.fixture
def service(tmp_path: Path) -> Service:
    made = make(tmp_path / "s")
    (tmp_path / "s" / "views").mkdir()
    return made


def rows(service: Service, name: str, keys: list[list[str]]) -> list[tuple[Any, bool]]:
    with service.log() as log, closing(ViewServer(settings=service.settings, log=log)) as server:
        found = [server.get(name, key) for key in keys]
    return [(each.to_json()["row"], each.live) for each in found]


def test_a_served_view_is_what_a_rebuild_would_be(spark: OpenSession, service: Service) -> None:
    put(service, CARDS, BY_DAY, ALERTS, JOINED)
    service.process(many(300))
    service.settle()
    views(service, "rebuild")
    shown = json.loads(views(service, "show", "cards", "--json"))
    assert list(shown["columns"])[-1] == "probes"  # what aggregates hold is not for readers of Parquet
    service.process([*many(120, cards=9, start_s=2_000), purchase("c1", 3 * DAY_S, 700.0, "BR")])
    service.settle()
    cards = [[f"c{n}"] for n in range(9)]
    days = [["2026-01-05", "US"], ["2026-01-08", "BR"], ["2026-01-05", "FR"]]
    rules = [["testing"], ["countries"]]
    live = [rows(service, "cards", cards), rows(service, "by-day", days), rows(service, "alerts-of-rules", rules)]
    old, is_live = rows(service, "joined", [["c1"]])[0]
    countries = {event["country"] for event in many(300) if event["card"] == "c1"}  # BR came since
    assert (old, is_live) == ({"card": "c1", "n": len(countries)}, False)
    assert all(each for found in live for _, each in found)
    said = views(service, "refresh", "cards", "by-day", "alerts-of-rules")
    assert "by-day: version 2, " in said
    assert "partitions rewritten" in said
    again = [rows(service, "cards", cards), rows(service, "by-day", days), rows(service, "alerts-of-rules", rules)]
    for before, after in zip(live, again, strict=True):
        for (one, _), (other, _) in zip(before, after, strict=True):
            assert one == {
                name: pytest.approx(value) if type(value) is float else value for name, value in other.items()
            }
    late = [purchase("c1", 10, 5.0, "US")]  # of the first day: its partition is made again, the other one is kept
    service.process(late)
    with service.log() as log, closing(ViewServer(settings=service.settings, log=log)) as server:
        completed = server.get("by-day", days[0]).to_json()["row"]
    views(service, "refresh", "by-day")
    assert [row for row, _ in rows(service, "by-day", [days[0], days[1]])] == [
        completed, again[1][1][0],
    ]  # fmt: skip


def test_refresh_goes_on_until_it_is_stopped(spark: OpenSession, service: Service) -> None:
    put(service, CARDS)
    service.process(many(30))
    made = service.settings.views.store / "cards" / "versions"

    def meanwhile() -> None:
        try:
            wait_for((made / "000001").exists, 60)
            service.produce([purchase("c1", 900, 5.0)])
            wait_for((made / "000002").exists, 60)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    other = threading.Thread(target=meanwhile)
    other.start()
    done = run("views", "refresh", service.config, "--every", "200ms")
    other.join()
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert [line.split(" ", 1)[1].split(",")[0] for line in lines] == ["cards: version 1", "cards: version 2"]
