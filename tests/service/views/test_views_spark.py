"""Views: Spark SQL over a service's topics, published whole as Parquet, read by anyone."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import duckdb
import pytest

from samovar.changelog.log import Append, TopicSpec
from samovar.changelog.spark.session import OpenSession
from samovar.changelog.spark.views import tables_in
from samovar.service.views.commands import query
from tests.support.http_server import served, wait_for
from tests.support.small_service import START, Service, make, many, purchase, run, run_apart
from tests.support.views import CARDS, put, views

DAY_S = 86_400
BY_HOUR = """
view: by-hour
sql: |
  select day, date_trunc('hour', at) as hour, rule, max(severity) as severity, count(*) as alerts
  from alerts
  group by day, date_trunc('hour', at), rule
key: [hour, rule]
partitioning: day
refresh: incremental
partition_of: {alerts: day}
"""
OPEN = """
view: open
sql: |
  select key, name as rule, size(partials) as partials from states where kind = 'rule'
key: [key, rule]
"""


@pytest.fixture
def service(tmp_path: Path) -> Service:
    made = make(tmp_path / "s")
    (tmp_path / "s" / "views").mkdir()
    return made


def shown(service: Service, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(views(service, "show", name, "--json"))
    return found


def rows(service: Service, name: str) -> list[tuple[Any, ...]]:
    """By DuckDB, which knows nothing of us."""
    path = views(service, "path", name).strip()
    with duckdb.connect() as base:
        return sorted(base.sql(f"select * from read_parquet('{path}/**/*.parquet')").fetchall(), key=repr)


def alerts_of(service: Service) -> list[dict[str, Any]]:
    done = run("read", service.config, "alerts", "--json")
    return [json.loads(line)["value"] for line in done.stdout.splitlines()]


def on_day(day: int, card: str = "c1") -> list[dict[str, Any]]:
    """Events of one day that make an alert."""
    start = day * DAY_S
    return [purchase(card, start, 1), purchase(card, start + 5, 1), purchase(card, start + 9, 900)]


# ---------------------------------------------------------------- making and reading


def test_an_operator_refreshes_a_view_over_http(spark: OpenSession, service: Service) -> None:
    service.process(many(60))
    put(service, CARDS)
    with served(service) as site:
        job = site.post("/views/cards/refresh", {}, 202)["job"]
        wait_for(lambda: site.get(f"/jobs/{job}")["state"] != "running")
        done = site.get(f"/jobs/{job}")
        assert (done["state"], done["result"]["made"]["version"], done["problem"]) == ("done", 1, None)
        found = site.post("/views/cards/query", {"limit": 1000})["rows"]
    assert sum(row[1] for row in found) == 60
    assert spark.spark.range(1).count() == 1  # a session that others opened is left to them


def test_a_view_is_made_published_and_read_by_others(spark: OpenSession, service: Service) -> None:
    service.process(many(300))
    service.settle()
    put(service, BY_HOUR, CARDS)
    said = views(service, "rebuild")
    assert said.startswith("by-hour: version 1, ")
    alerts = alerts_of(service)
    counted = {rule: sum(each["rule"] == rule for each in alerts) for rule in {each["rule"] for each in alerts}}
    made = rows(service, "by-hour")
    assert {row[1]: row[3] for row in made} == counted
    spent = {f"c{n}": (0, 0.0) for n in range(7)}
    for event in many(300):
        count, amount = spent[event["card"]]
        spent[event["card"]] = count + 1, amount + event["amount"]
    assert rows(service, "cards") == sorted((card, *each) for card, each in spent.items())
    plain = spark.spark.read.parquet(views(service, "path", "by-hour").strip())
    assert {row["rule"]: row["alerts"] for row in plain.collect()} == counted
    for reader in ("duckdb", "spark"):
        statement = views(service, "path", "cards", "--for", reader)
        if reader == "duckdb":
            with duckdb.connect() as base:
                base.execute(statement)
                assert base.sql("select count(*) from cards").fetchall() == [(7,)]
        else:
            spark.spark.sql(statement.strip().rstrip(";"))
            assert spark.spark.sql("select count(*) as n from cards").collect()[0].n == 7
    with duckdb.connect() as base:
        catalog = service.settings.views.store / "catalog.parquet"
        found = base.sql(f"select view, version, path, rows from '{catalog}' order by view").fetchall()
    assert [(view, version) for view, version, _, _ in found] == [("by-hour", 1), ("cards", 1)]
    assert found[1][2].rstrip("/") == views(service, "path", "cards").strip()


def test_a_version_says_what_it_stands_for(spark: OpenSession, service: Service) -> None:
    service.process(many(60))
    service.settle()
    put(service, BY_HOUR)
    views(service, "rebuild")
    found = shown(service, "by-hour")
    with service.log() as log:
        ends = {f"s-alerts/{at.partition}": each.end for at, each in log.bounds(_places("s-alerts")).items()}
    assert {at: end for at, (_, end) in found["sources"]["alerts"].items()} == ends
    assert set(found["rules"]) == {"testing", "countries", "unusual"}
    assert found["rules"]["testing"] == next(a["version"] for a in alerts_of(service) if a["rule"] == "testing")
    assert found["columns"] == {
        "day": "date", "hour": "timestamp", "rule": "string", "severity": "string", "alerts": "bigint"
    }  # fmt: skip


def _places(topic: str) -> list[Any]:
    from samovar.changelog.log import TopicPartition  # noqa: PLC0415 - used here alone

    return [TopicPartition(topic, partition) for partition in (0, 1)]


def test_rebuilt_twice_it_is_the_same_and_the_old_version_stays_readable(spark: OpenSession, service: Service) -> None:
    service.process(many(200))
    put(service, CARDS)
    views(service, "rebuild", "cards")
    before, old = rows(service, "cards"), views(service, "path", "cards").strip()
    views(service, "rebuild", "cards")
    assert shown(service, "cards")["versions"] == [1, 2]
    assert rows(service, "cards") == before
    with duckdb.connect() as base:
        assert base.sql(f"select count(*) from '{old}/*.parquet'").fetchall() == [(len(before),)]


def test_the_first_rows_are_shown(spark: OpenSession, service: Service) -> None:
    service.process(many(70))
    put(service, CARDS)
    views(service, "rebuild")
    first = json.loads(views(service, "query", "cards", "--limit", 3, "--json"))
    assert (first["columns"], len(first["rows"])) == (["card", "purchases", "spent"], 3)
    assert len(query(service.settings, "cards", 100).rows) == 7


def test_what_rules_emit_has_types(spark: OpenSession, service: Service) -> None:
    rule = service.config.parent / "rules" / "testing.yml"
    rule.write_text(rule.read_text() + "emit:\n  probes: count(probe)\n  spent: big.amount\n  where: big.country\n")
    service.process(many(100))
    service.settle()
    put(
        service,
        "view: emitted\nsql: |\n  select max(emit.probes) as probes, sum(emit.spent) as spent,"
        " max(emit.`where`) as country, max(severity) as severity\n  from alerts_testing\n",
    )
    views(service, "rebuild")
    kinds = {"probes": "bigint", "spent": "double", "country": "string", "severity": "string"}
    assert shown(service, "emitted")["columns"] == kinds
    alerts = [each["emit"] for each in alerts_of(service) if each["rule"] == "testing"]
    ((probes, spent, country, severity),) = rows(service, "emitted")
    assert probes == max(each["probes"] for each in alerts)
    assert spent == pytest.approx(sum(each["spent"] for each in alerts))
    assert (country, severity) == (max(each["where"] for each in alerts), "medium")


# ---------------------------------------------------------------- refreshing


def test_late_rows_rewrite_their_partition_and_no_other(spark: OpenSession, service: Service) -> None:
    put(service, BY_HOUR, CARDS)
    service.process(on_day(0) + on_day(1) + on_day(2))
    service.settle()
    views(service, "refresh")
    old = Path(views(service, "path", "by-hour").strip())
    _alert(service, START + DAY_S * 1000 + 60_000)  # found late: of the second day
    said = views(service, "refresh")
    assert "by-hour: version 2" in said
    assert "1 partitions rewritten" in said
    assert "cards: nothing new" in said
    new = Path(views(service, "path", "by-hour").strip())
    inodes = [{path.relative_to(each): path.stat().st_ino for path in each.rglob("*.parquet")} for each in (old, new)]
    kept = {path for path in inodes[0] if inodes[1].get(path) == inodes[0][path]}
    assert {path.parts[0] for path in kept} == {"day=2026-01-05", "day=2026-01-07"}
    manifest = shown(service, "by-hour")
    assert manifest["kind"] == "incremental"
    made = rows(service, "by-hour")
    views(service, "rebuild", "by-hour")
    assert rows(service, "by-hour") == made
    assert [count for *_, count, _ in made].count(2) == 1


def _alert(service: Service, at: int) -> None:
    alert = {"rule": "testing", "version": "v", "id": f"x{at}", "key": {"card": "c9"}, "start": at, "end": at, "at": at}
    with service.log() as log:
        log.append(
            [Append(topic="s-alerts", records=[(b"c9", json.dumps({**alert, "steps": {}, "emit": {}}).encode())])]
        )


def test_where_nothing_is_new_nothing_is_made_and_a_changed_file_is_made_anew(
    spark: OpenSession, service: Service
) -> None:
    put(service, BY_HOUR)
    service.process(on_day(0))
    service.settle()
    assert "version 1" in views(service, "refresh")
    catalog = service.settings.views.store / "catalog.parquet"
    catalog.unlink()  # as where a process was killed before it was written
    assert views(service, "refresh") == "by-hour: nothing new\n"
    assert catalog.exists()
    put(service, BY_HOUR.replace("count(*) as alerts", "2 * count(*) as alerts"))
    assert "its file changed since" in views(service, "list")
    assert "version 2" in views(service, "refresh")
    assert shown(service, "by-hour")["kind"] == "full"


def test_rows_that_come_of_other_partitions_are_refused(spark: OpenSession, service: Service) -> None:
    wrong = BY_HOUR.replace("select day, ", "select date_add(day, 1) as day, ").replace("group by day", "group by 1")
    put(service, wrong)
    service.process(on_day(0))
    service.settle()
    views(service, "refresh")
    _alert(service, START)
    assert "view-partition: rows of day=2026-01-06 came of rows" in views(service, "refresh", code=1)
    assert shown(service, "by-hour")["version"] == 1


def test_deleted_states_are_gone_from_a_view_of_states(spark: OpenSession, service: Service) -> None:
    put(service, OPEN)
    service.process([purchase("c1", 0, 1), purchase("c2", 0, 1), purchase("c1", 5, 1)])
    views(service, "rebuild")
    assert {row[0] for row in rows(service, "open") if row[1] == "testing"} == {"c1", "c2"}
    service.process([purchase("c1", 20_000, 50), purchase("c2", 20_000, 1)])
    service.settle()
    views(service, "refresh")
    scanned = json.loads(run("state", "scan", service.config, "--rule", "testing", "--json").stdout)
    there = {row[0] for row in rows(service, "open") if row[1] == "testing"}
    assert there == {each["key"][0] if isinstance(each["key"], list) else each["key"] for each in scanned} == {"c2"}


def test_a_view_with_no_rows_has_its_columns(spark: OpenSession, service: Service) -> None:
    put(service, BY_HOUR)
    service.process([purchase("c1", 0, 30)])
    views(service, "rebuild")
    assert rows(service, "by-hour") == []
    assert json.loads(views(service, "query", "by-hour", "--json"))["columns"][:2] == ["day", "hour"]


def test_labels_are_a_source_also_where_nobody_labelled_yet(spark: OpenSession, service: Service) -> None:
    put(service, "view: labelled\nsql: |\n  select label, count(*) as n from labels group by label\nkey: label\n")
    service.process(on_day(0))
    views(service, "rebuild")
    assert rows(service, "labelled") == []
    with service.log() as log:
        log.create([TopicSpec("s-labels", 1, {"cleanup.policy": "compact"})])
        label = {
            "alert": "a1",
            "rule": "testing",
            "key": "c1",
            "label": "confirmed",
            "by": "ann",
            "at": START,
            "note": "",
        }
        log.append([Append(topic="s-labels", records=[(b"a1", json.dumps(label).encode())])])
    views(service, "refresh")
    assert rows(service, "labelled") == [("confirmed", 1)]


# ---------------------------------------------------------------- publishing


def test_a_job_that_fails_leaves_the_old_version_and_nothing_else(spark: OpenSession, service: Service) -> None:
    put(service, CARDS)
    service.process(many(30))
    views(service, "rebuild")
    before = rows(service, "cards")
    put(service, CARDS.replace("count(*) as purchases", "raise_error(concat('at ', card)) as purchases"))
    said = views(service, "rebuild", code=1)
    assert said.splitlines()[-3].startswith("spark-job-failed") or "spark-job-failed" in said
    assert rows(service, "cards") == before
    assert shown(service, "cards")["versions"] == [1]
    assert not list(service.settings.views.store.rglob("*.part"))


def test_rolled_back_by_one_command(spark: OpenSession, service: Service) -> None:
    put(service, CARDS)
    service.process(many(30))
    views(service, "rebuild")
    before = rows(service, "cards")
    service.process(many(30, start_s=500))
    views(service, "refresh")
    assert rows(service, "cards") != before
    assert views(service, "rollback", "cards") == "cards: version 1, 7 rows\n"
    assert rows(service, "cards") == before
    with duckdb.connect() as base:
        catalog = service.settings.views.store / "catalog.parquet"
        assert base.sql(f"select version from '{catalog}'").fetchall() == [(1,)]
    (service.config.parent / "views" / "cards.yml").write_text("view: cards\nsql: [")
    assert views(service, "rollback", "cards", "--to", 2) == "cards: version 2, 7 rows\n"
    assert len(json.loads(views(service, "query", "cards", "--json"))["rows"]) == 7
    put(service, CARDS)
    assert "version 3" in views(service, "rebuild")


# ---------------------------------------------------------------- what a view reads


TABLES = {
    "select card from purchase order by card": {"purchase"},
    "select 'from late' as late, labels.x -- from changes\nfrom Purchase as labels /* alerts */": {"purchase"},
    'select `order` from `alerts` where "from late" = x': {"alerts"},
    "with late as (select * from late), a as (select * from late) select * from a, late": {"late"},
    "with a as (select 1) select * from (with alerts as (select 2) select * from alerts), alerts": {"alerts"},
    "select (select max(x) from changes), y from alerts where z in (select 1 from late)": {"alerts", "changes", "late"},
    "select * from a, lateral (select * from labels) where exists (select 1 from states)": {"a", "labels", "states"},
    "select * from parquet.`/alerts`, identifier('Alerts'), range(3)": {"alerts"},
    "with recursive r as (select 1 as n union all select n + 1 from r) select * from r": set(),
    "from alerts |> where rule = 'a' |> join late using (_key)": {"alerts", "late"},
}


@pytest.mark.parametrize("sql", TABLES)
def test_what_a_query_reads_is_told_by_sparks_parser(spark: OpenSession, sql: str) -> None:
    assert tables_in(spark, sql) == TABLES[sql]


def test_a_stream_that_is_called_as_a_word_of_sql_is_read_where_it_is_named(
    spark: OpenSession, service: Service
) -> None:
    config = service.config
    config.write_text(config.read_text().replace("streams:\n", "streams:\n  order: {key: card, time: ts}\n"))
    assert "order" in service.settings.streams
    service.process(many(20))
    by_card = CARDS.replace("group by card", "group by card order by card")
    put(service, by_card, by_card.replace("cards", "orders").replace("from purchase", "from `order`, purchase"))
    (config.parent / "views" / "bad.yml").write_text("view: bad one\nsql: select 1\n")
    done = run("views", "refresh", config)
    assert done.exit_code == 1
    assert "cards: version 1, 7 rows" in done.stdout  # the others are made, and the exit code tells
    assert "bad.yml:1:" in done.stderr
    assert set(shown(service, "cards")["sources"]) == {"purchase"}
    service.produce([{"card": "c1", "ts": START}], "order")
    assert "cards: nothing new" in run("views", "refresh", config).stdout


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (CARDS.replace("from purchase", "from purchas"), 5, "there is no source `purchas`"),
        (CARDS.replace("from purchase", "from purchas"), 5, "did you mean `purchase`?"),
        (CARDS.replace("sum(amount)", "sum(amonut)"), 4, "Did you mean one of amount"),
        (CARDS.replace("group by card", "group bye card"), 7, "Syntax error at or near 'bye'."),
        (CARDS.replace("group by card", "group bye card"), 7, "What is wrong stands there or just before it."),
        (CARDS.replace("group by card", "group by (card"), 7, "Syntax error at or near end of input."),
        (CARDS.replace("select card", "delete card"), 4, "Syntax error at or near 'delete'."),
        (CARDS.replace("  group by card\n", ""), 4, "Group by all columns that are not aggregated"),
        (CARDS.replace("key: card", "key: crad"), 4, "did you mean `card`?"),
    ],
)
def test_bad_sql_is_shown_with_its_line(spark: OpenSession, service: Service, text: str, line: int, said: str) -> None:
    put(service, text)
    service.produce(many(5))
    told = views(service, "rebuild", code=1)
    assert f"cards.yml:{line}:" in told
    assert said in told


def test_a_key_that_is_not_one_is_refused(spark: OpenSession, service: Service) -> None:
    put(service, CARDS.replace("select card, count(*)", "select 'all' as card, count(*)"))
    service.produce(many(30))
    assert "view-key: cards: two rows have the key {'card': 'all'}" in views(service, "rebuild", code=1)
    assert views(service, "path", "cards", code=2).startswith("view-not-made: ")


def test_a_topic_that_is_missing_is_named(spark: OpenSession, service: Service) -> None:
    put(service, CARDS)
    assert "topic-missing: the topic purchase does not exist yet" in views(service, "rebuild", code=1)


def test_on_kafka(spark: OpenSession, service: Service, kafka: str, tmp_path: Path) -> None:
    name = f"views-{uuid.uuid4().hex[:8]}"
    text = service.config.read_text().replace("service: s", f"service: {name}")
    text = text.replace("{key:", f"{{topic: {name}, key:") + f'log: {{kafka: {{bootstrap: "{kafka}"}}}}\n'
    service.config.write_text(text)
    put(service, BY_HOUR, CARDS)
    events = tmp_path / "events.jsonl"
    events.write_text("".join(json.dumps(event) + "\n" for event in many(140)))
    assert run("produce", service.config, "purchase", events).exit_code == 0
    ran = run_apart("run", service.config, "--until-caught-up")
    assert ran.returncode == 0, ran.stderr
    views(service, "refresh")
    assert [(card, count) for card, count, _ in rows(service, "cards")] == [(f"c{n}", 20) for n in range(7)]
    alerts = alerts_of(service)
    assert sum(row[3] for row in rows(service, "by-hour")) == len(alerts) > 0
    manifest = shown(service, "by-hour")["sources"]["alerts"]
    assert set(manifest) == {f"{name}-alerts/{partition}" for partition in (0, 1)}
    assert views(service, "refresh") == "by-hour: nothing new\ncards: nothing new\n"
