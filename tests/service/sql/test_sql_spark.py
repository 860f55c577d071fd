"""The tables of `samovar sql` on Spark: the same as DuckDB's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from samovar.changelog.log import Append
from samovar.changelog.spark.session import OpenSession
from samovar.service.sql.local import LocalEngine, statements_in
from samovar.service.sql.masking import TableMasks
from samovar.service.sql.output import rows_of
from samovar.service.sql.spark import SparkEngine
from samovar.service.topology.logs import opened
from tests.support import marked_service
from tests.support.marked_service import Planted
from tests.support.small_service import START, Service, make, many, purchase, run
from tests.support.views import CARDS, put, views

BY_DAY = """
view: by-day
sql: |
  select day, country, count(*) as n, max(_event_time) as last, collect_set(card) as cards from purchase group by 1, 2
key: [day, country]
partitioning: day
"""
VISITS = """
rule: visits
match: |
  session by card with gap=30m
    [purchase where amount > 0] as p
emit: {spent: sum(p.amount), cards: values(p.card)}
"""


def tables_of(service: Service, sees_all: bool) -> Iterator[tuple[str, Any, Any]]:
    """Each table, as both engines have it."""
    with opened(service.settings) as log:
        masks = TableMasks(service.settings, log, sees_all)
        local = LocalEngine(settings=service.settings, log=log, masks=masks)
        spark = SparkEngine(service.settings, log, masks, None)
        try:
            for name in local.tables().names:
                (statement,) = statements_in(f"select * from {name}", "<query>")
                with local.run(statement) as rows:
                    batches = list(rows.batches)
                    here = rows.columns, batches
                with spark.run(statement) as rows:
                    yield name, here, (rows.columns, list(rows.batches))
        finally:
            spark.close()


def comparable(batches: list[pa.RecordBatch]) -> list[str]:
    return sorted(json.dumps(row) for row in rows_of(batches))


def kind(type: pa.DataType) -> str:
    """Without what engines call the inside of lists."""
    if pa.types.is_map(type):
        return f"map<{kind(type.key_type)}, {kind(type.item_type)}>"
    if pa.types.is_list(type):
        return f"list<{kind(type.value_type)}>"
    if pa.types.is_struct(type):
        fields = map(type.field, range(type.num_fields))
        return f"struct<{', '.join(f'{each.name}: {kind(each.type)}' for each in fields)}>"
    return str(type)


def assert_equal(name: str, here: Any, there: Any) -> int:
    assert here[0] == there[0], name
    assert comparable(here[1]) == comparable(there[1]), name
    for one, other in zip(here[1][:1], there[1][:1], strict=False):
        assert [kind(each.type) for each in one.schema] == [kind(each.type) for each in other.schema], name
    return sum(batch.num_rows for batch in here[1])


def test_both_engines_have_the_same_tables(spark: OpenSession, tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    (tmp_path / "s" / "rules" / "visits.yml").write_text(VISITS)
    (tmp_path / "s" / "views").mkdir()
    service.process(many(120))
    service.process([purchase("c1", 9_000, 3), {**purchase("c2", 9_001, 3), "ts": "never"}])
    service.settle()
    service.process([purchase("c1", 1, 3)])  # late
    with service.log() as log:
        label = {"alert": "a", "rule": "testing", "key": "c1", "label": "confirmed", "by": "b", "at": 1, "note": "n"}
        log.append([Append(topic="s-labels", records=[(b"a", json.dumps(label).encode())], partition=0)])
    put(service, CARDS, BY_DAY)
    views(service, "rebuild")
    counts = {name: assert_equal(name, here, there) for name, here, there in tables_of(service, sees_all=True)}
    empty = {name for name, count in counts.items() if not count}
    assert not empty, counts
    assert {"cards", "by_day", "alerts_visits", "sessions", "late", "dead_letters", "labels", "changes"} <= set(counts)


def test_both_engines_hide_the_same(spark: OpenSession, tmp_path: Path) -> None:
    planted = Planted("sql")
    service = marked_service.make(tmp_path / "s", planted, START + 10**9)
    pieces = planted.pieces()
    for name, here, there in tables_of(service, sees_all=False):
        if "_key" in here[0] or name in ("known", "unknown"):  # of states, too: nobody looks at them by rows
            shown = json.dumps(list(rows_of(here[1])), ensure_ascii=False).lower()
            assert not [piece for piece in pieces if piece in shown], name
        assert_equal(name, here, there)


def test_queries_of_spark_are_in_its_sql(spark: OpenSession, tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.produce(many(50))
    query = "select collect_set(country) as c, count_if(amount > 2) as n from purchase"
    done = run("sql", service.config, query, "--engine", "spark", "--json")
    assert json.loads(done.stdout)["n"] == sum(event["amount"] > 2 for event in many(50)), done.output
    for wrong, said in {
        "select crad from purchase": "<query>:1:8", "from purchse": "no table `purchse`", "drop table x": "sql-query",
        "select * from parquet.`/etc`": "sql-query", "select reflect('java.lang.System', 'getenv')": "not for queries",
    }.items():  # fmt: skip
        done = run("sql", service.config, wrong, "--engine", "spark")
        assert done.exit_code == 2, wrong
        assert said in done.stderr, wrong
