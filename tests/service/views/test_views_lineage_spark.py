"""Where a view's columns come from, by Spark's own plan, and what who may not see marked fields sees of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from samovar.changelog.spark.lineage import lineage_of
from samovar.changelog.spark.session import OpenSession
from samovar.service.masking.fields import HIDDEN
from tests.support.http_server import Served
from tests.support.marked_service import Planted, planted_site
from tests.support.views import views

PLAIN, COMPUTED, CLEAR, UNKNOWN = "plain", "computed", "clear", "unknown"
WITH_CARDS = "with x as (select *, row_number() over (partition by country order by card) as r from purchase)"
# A query, and by column what comes of `card`.
QUERIES = {
    "select card, upper(card) as u, count(*) as n, max(amount) as m from purchase group by card": {
        "card": PLAIN, "u": COMPUTED, "n": CLEAR, "m": CLEAR
    },
    "select count(distinct card) as d, count_if(card > '4') as c from purchase": {"d": CLEAR, "c": COMPUTED},
    "select * from purchase": {"card": PLAIN, "country": CLEAR, "amount": CLEAR, "key": CLEAR},
    "select card as c, country as d from purchase group by all": {"c": PLAIN, "d": CLEAR},
    f"{WITH_CARDS} select x.r, y.country, (select max(card) from purchase) as s from x join purchase y using (card)": {
        "r": COMPUTED, "country": CLEAR, "s": COMPUTED
    },
    "select country as c from purchase union all select card from purchase": {"c": PLAIN},
    "select explode(split(card, '9')) as e, country from purchase": {"e": COMPUTED, "country": CLEAR},
    "select country, sum(amount) as s from purchase group by rollup(country)": {"country": CLEAR, "s": CLEAR},
    "select case when card like '4%' then 1 else 0 end as x from purchase": {"x": COMPUTED},
    "select first(card) as f, max_by(amount, card) as m, collect_set(card) as s from purchase": {
        "f": PLAIN, "m": COMPUTED, "s": COMPUTED
    },
    "select (select count(*) from purchase where card > '4') as n": {"n": COMPUTED},
    "select country in (select card from purchase) as b from purchase": {"b": COMPUTED},
    "select transform(array(1), x -> card) as t, named_struct('c', card) as s from purchase": {
        "t": COMPUTED, "s": COMPUTED
    },
    "select t.country, l.z from purchase t, lateral (select t.card as z) l": {"country": CLEAR, "z": UNKNOWN},
    "with recursive r as (select 'x' as c, 1 as n union all select p.card, n + 1 from r join purchase p on n < 2)"
    " select c from r": {"c": UNKNOWN},
    "select * except (card) from purchase": {"country": CLEAR, "amount": CLEAR, "key": CLEAR},
    "values (1, 2)": {"col1": CLEAR, "col2": CLEAR},
}  # fmt: skip


@pytest.mark.parametrize("query", QUERIES)
def test_a_column_comes_of_what_spark_says(spark: OpenSession, query: str) -> None:
    rows = [("4929", "US", 1.0, {"card": "x"})]
    frame = spark.spark.createDataFrame(rows, "card string, country string, amount double, key map<string, string>")
    frame.createOrReplaceTempView("purchase")
    asked = spark.spark.sql(query)
    found = lineage_of(asked, ["purchase"])
    seen = {}
    for column in asked.columns:
        origin = found.get(column)
        marked = origin is not None and "purchase.card" in origin.reads
        seen[column] = UNKNOWN if origin is None else CLEAR if not marked else PLAIN if origin.plain else COMPUTED
    assert seen == QUERIES[query]


def test_a_table_that_is_not_ours_has_no_lineage(spark: OpenSession) -> None:
    spark.spark.range(3).createOrReplaceTempView("foreign")
    assert lineage_of(spark.spark.sql("select id from foreign"), ["purchase"]) == {}


# ---------------------------------------------------------------- over a service

VIEWS = {
    "said": "select message, _key, count(1) as n from alerts group by all",
    "events": "select *, upper(card) as shouted, substring(card, 2, 6) as part from purchase where _error is null",
    "letters": "select * from dead_letters",
    "state": "select * from states",
    "labelled": "select l.*, a.message from labels l join alerts a on a.id = l.alert",
    "testing": "select emit.spent, emit.card, emit, key['card'] as k, key, message from alerts_testing",
}


@pytest.fixture(scope="module")
def viewed(
    tmp_path_factory: pytest.TempPathFactory, spark: OpenSession
) -> Iterator[tuple[Served, dict[str, str], Planted]]:
    planted = Planted("views")
    del spark  # it is open, and found by anyone who makes views
    with planted_site(tmp_path_factory.mktemp("viewed") / "s", planted, int(time.time() * 1000)) as (site, tokens):
        folder: Path = site.service.config.parent / "views"
        for name, text in VIEWS.items():
            (folder / f"{name}.yml").write_text(f"view: {name}\nsql: |\n  {text}\n")
        views(site.service, "rebuild", *VIEWS)
        yield site, tokens, planted


def test_no_row_of_a_view_has_a_piece_of_a_marked_value(viewed: tuple[Served, dict[str, str], Planted]) -> None:
    site, tokens, planted = viewed
    viewer, operator = site.as_(tokens["viewer"]), site.as_(tokens["operator"])
    pieces = {piece for piece in planted.pieces() if not piece.isdigit()}
    for name in VIEWS:
        found = viewer.post(f"/views/{name}/query", {"limit": 1000})
        assert found["rows"], name
        text = json.dumps(found).lower()
        assert not [piece for piece in pieces if piece in text], (name, text[:2_000])
        for column in viewer.get(f"/views/{name}")["hidden"]:
            for body in ({"order": column}, {"where": [{"column": column, "value": "x"}]}):
                if not column.startswith("_"):
                    assert viewer.post(f"/views/{name}/query", body, 403)["code"] == "pii-comparison"
    assert planted.text("a") in json.dumps(operator.post("/views/said/query", {"limit": 1000}))


def test_what_holds_nothing_marked_is_shown_and_compared(viewed: tuple[Served, dict[str, str], Planted]) -> None:
    site, tokens, _ = viewed
    viewer = site.as_(tokens["viewer"])
    hidden = {name: set(viewer.get(f"/views/{name}")["hidden"]) for name in VIEWS}
    assert hidden["testing"] == {"card", "emit", "k", "key", "message"}
    assert hidden["said"] == {"message", "_key"}
    found = viewer.post("/views/testing/query", {"order": "spent", "columns": ["spent", "card", "k", "message"]})[
        "rows"
    ]
    assert [row[0] for row in found] == sorted(row[0] for row in found)
    assert all(row[1] == row[2] and row[1].startswith("pii:") for row in found)
    assert {row[3] for row in found} == {HIDDEN}
