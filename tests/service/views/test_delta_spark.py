"""Views as Delta tables, made on Spark; and Spark's own connector on the tables that are written here."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from deltalake import DeltaTable, write_deltalake

from samovar.changelog.broker.jars import find_java
from samovar.changelog.log import Append
from samovar.changelog.spark.jars import delta_jars
from samovar.changelog.spark.session import OpenSession
from samovar.service.views.commands import query
from samovar.service.views.export import export, uri_of
from tests.support.http_server import served
from tests.support.small_service import START, Service, make, many, purchase, run
from tests.support.views import CARDS, put, views

DAY_S = 86_400
BY_RULE = """
view: by-rule
sql: |
  select day, rule, count(*) as alerts from alerts group by day, rule
key: [day, rule]
partitioning: day
refresh: incremental
partition_of: {alerts: day}
"""
DELTA = BY_RULE.replace("by-rule", "by-rule-delta") + "format: delta\n"


@pytest.fixture
def service(tmp_path: Path) -> Service:
    made = make(tmp_path / "s")
    (tmp_path / "s" / "views").mkdir()
    return made


def on_day(day: int, card: str = "c1") -> list[dict[str, Any]]:
    start = day * DAY_S
    return [purchase(card, start, 1), purchase(card, start + 5, 1), purchase(card, start + 9, 900)]


def alert(service: Service, day: int) -> None:
    """An alert of a day, however late."""
    at = START + day * DAY_S * 1000
    found = {"id": f"{day}-{uuid4()}", "rule": "testing", "version": "v", "key": {"card": "c1"}, "at": at}
    with service.log() as log:
        log.append([Append(topic="s-alerts", records=[(b"c1", json.dumps(found).encode())])])


def rows(service: Service, name: str, **when: Any) -> list[Any]:
    found = query(service.settings, name, 1000, **when)
    wanted = sorted(found.columns)
    return sorted(
        (tuple(str(dict(zip(found.columns, row, strict=True))[name]) for name in wanted) for row in found.rows),
        key=repr,
    )


def test_incremental_refreshes_of_late_rows_are_those_of_parquet(spark: OpenSession, service: Service) -> None:
    put(service, BY_RULE, DELTA, CARDS.replace("view: cards", "view: cards") + "format: delta\nserve: true\n")
    versions = []
    service.process(on_day(0, "c2"))
    for day in (0, 1, 0):  # the last one's is of a day before
        alert(service, day)
        views(service, "refresh")
        assert rows(service, "by-rule") == rows(service, "by-rule-delta")
        versions.append(rows(service, "by-rule-delta"))
    table = service.settings.views.store / "by-rule-delta" / "table"
    shown = json.loads(views(service, "show", "by-rule-delta", "--json"))
    assert [each["version"] for each in shown["snapshots"]] == [1, 2, 3]
    assert [each["kind"] for each in shown["snapshots"]] == ["full", "incremental", "incremental"]
    for each, expected in zip(shown["snapshots"], versions, strict=True):
        assert rows(service, "by-rule-delta", version=each["version"]) == expected
        assert rows(service, "by-rule-delta", as_of_ms=each["made_ms"]) == expected
    assert '"remove"' in (table / "_delta_log" / f"{2:020}.json").read_text()
    assert "nothing new" in views(service, "refresh", "by-rule-delta")
    assert DeltaTable(str(table)).version() == 2
    # by SQL, by HTTP, by key, and gone back
    for engine in ([], ["--engine", "spark"]):
        done = run("sql", service.config, "select sum(alerts) as n from by_rule_delta", "--json", *engine)
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout) == {"n": sum(int(row[0]) for row in versions[-1])}
    with served(service) as site:
        day = versions[-1][0][1]
        answer = site.post("/views/by-rule-delta/query", {"where": [{"column": "day", "value": day}]})
    assert len(answer["rows"]) == sum(row[1] == day for row in versions[-1])
    assert views(service, "get", "cards", "c2").startswith("card: c2\n")
    views(service, "rollback", "by-rule-delta", "--to", "1")
    assert rows(service, "by-rule-delta") == versions[0]
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == len(versions[0])


def test_a_new_column_evolves_the_table_and_a_lost_one_is_refused_before_anything_is_computed(
    spark: OpenSession, service: Service
) -> None:
    service.process(many(100))
    text = CARDS + "format: delta\n"
    put(service, text)
    views(service, "refresh")
    put(service, text.replace("sum(amount) as spent", "sum(amount) as spent, max(amount) as most"))
    assert "cards: version 2, 7 rows" in views(service, "refresh")
    put(service, text.replace(", sum(amount) as spent", ""))
    said = views(service, "refresh", code=1)
    assert "view-schema: cards: its Delta table has other columns: `spent` is gone; `most` is gone" in said
    assert DeltaTable(str(service.settings.views.store / "cards" / "table")).version() == 1
    assert "cards: version 3, 7 rows" in views(service, "rebuild", "cards", "--overwrite-schema")
    assert query(service.settings, "cards", 1).columns == ("card", "purchases")
    assert query(service.settings, "cards", 1, version=2).columns[-1] == "most"
    views(service, "rollback", "cards", "--to", "2")  # and its columns with it
    assert query(service.settings, "cards", 1).columns[-1] == "most"
    put(service, text.replace("count(*) as purchases", "count(*)"))
    assert "table-column: a column of a Delta table cannot be called `count(1)`" in views(service, "refresh", code=1)


JOB = """
import sys, json
from pyspark.sql import SparkSession

exported, view, moment, own, jars = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.jars", jars).config("spark.driver.memory", "1g")
    .config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "UTC").config("spark.databricks.delta.snapshotPartitions", "2")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog").getOrCreate()
)
read = lambda path, **options: spark.read.format("delta").options(**options).load(path)
found = {
    "rows": read(exported).count(),
    "first": read(exported, versionAsOf="0").count(),
    "then": read(exported, timestampAsOf=moment).count(),
    "places": [tuple(row) for row in read(exported).select("_partition", "_offset").collect()],
    "days": [str(row.day) for row in read(exported).select("day").distinct().collect()],
    "view": [tuple(map(str, row)) for row in read(view).select("alerts", "day", "rule").collect()],
    "old": read(view, versionAsOf="0").count(),
    "skipped": read(exported).where("_offset < 0").count(),
    "least": read(exported).selectExpr("min(_offset)", "max(_offset)", "min(amount)").collect()[0].asDict(),
    "notes": [json.loads(row.userMetadata) for row in spark.sql(f"describe history delta.`{view}`").collect()],
}
spark.sql(f"optimize delta.`{exported}`")  # a service of others, between two exports
spark.range(5).write.format("delta").save(own)
spark.range(7).write.format("delta").mode("overwrite").save(own)
sys.stdout.write("FOUND " + json.dumps(found, default=str) + "\\n")
spark.stop()
"""


def test_sparks_own_connector_reads_what_is_written_here_and_the_other_way_round(
    spark: OpenSession, service: Service, tmp_path: Path
) -> None:
    service.config.write_text(service.config.read_text() + "tables: [purchase]\n")
    put(service, DELTA)
    service.process(on_day(0) + on_day(1))
    alert(service, 0)
    alert(service, 1)
    with service.log() as log:
        (made,) = export(service.settings, log)
        assert made.rows == 6  # type: ignore[union-attr]
    views(service, "refresh")
    exported, view = uri_of(service.settings, "purchase"), service.settings.views.store / "by-rule-delta" / "table"
    then = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    service.process(on_day(0, "c2"))
    alert(service, 0)
    with service.log() as log:
        list(export(service.settings, log))
    views(service, "refresh")
    jars = ",".join(map(str, delta_jars(find_java("Spark"), lambda _: None)))
    own = tmp_path / "own"
    done = subprocess.run(
        [sys.executable, "-c", JOB, exported, str(view), then, str(own), jars],
        capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    line = next((each for each in done.stdout.splitlines() if each.startswith("FOUND ")), None)
    assert line is not None, done.stderr[-3000:]
    found = json.loads(line[6:])
    here = DeltaTable(exported, version=1).to_pyarrow_table().to_pylist()
    assert (found["rows"], found["first"], found["then"], found["skipped"]) == (9, 6, 6, 0)
    assert sorted(map(tuple, found["places"])) == sorted((row["_partition"], row["_offset"]) for row in here)
    assert sorted(found["days"]) == sorted({str(row["day"]) for row in here})
    offsets = [row["_offset"] for row in here]
    assert list(found["least"].values()) == [min(offsets), max(offsets), min(row["amount"] for row in here)]
    assert sorted(map(tuple, found["view"]), key=repr) == rows(service, "by-rule-delta")
    assert found["old"] == len(rows(service, "by-rule-delta", version=1))
    assert [note["version"] for note in found["notes"]] == [2, 1]
    assert found["notes"][0]["sources"]["alerts"]
    # after Spark's commit the export goes on where it was
    service.process(on_day(2))
    with service.log() as log:
        (more,) = export(service.settings, log)
    assert more.rows == 3  # type: ignore[union-attr]
    assert DeltaTable(exported).to_pyarrow_table().num_rows == 12
    assert DeltaTable(str(own)).to_pyarrow_table().num_rows == 7
    assert DeltaTable(str(own), version=0).to_pyarrow_table().num_rows == 5
    write_deltalake(str(own), DeltaTable(str(own)).to_pyarrow_table(), mode="append")
    assert spark.spark.range(1).count() == 1
