"""Which queries can be completed by new rows, and that what is completed is what all rows together give."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.service.views.live_sql import NotLive, live_query, splice, state_columns

PURCHASE = {
    "card": "string", "amount": "double", "items": "bigint", "country": "string", "ok": "boolean",
    "_event_time": "timestamp", "_offset": "bigint", "day": "date", "emit": "struct", "emit\0probes": "bigint",
}  # fmt: skip
TABLES = {"purchase": PURCHASE}
SQL = """
select card, count(*) as n, count(amount) as paid, round(sum(amount), 2) as spent, sum(items) items,
  min(amount) as least, max(country) as last_name, max_by(country, _offset) as last_country,
  min_by(amount, _offset) filter (where amount > 1) as first_big, avg(items) as mean,
  sum(case when country in ('FR', 'DE') then 1 else 0 end) as abroad, count_if(coalesce(ok, false)) as oks,
  bool_and(ok) as all_ok,
  max(date_trunc('hour', _event_time)) as hour, coalesce(sum(amount), 0.0) / count(*) as per_row
from purchase
where not (country = 'XX') and (amount is null or amount between 0.5 and 500)
group by card
"""
ROW = st.fixed_dictionaries(
    {
        "card": st.sampled_from(["a", "b", None]),
        "amount": st.none() | st.integers(0, 4000).map(lambda n: n / 4),
        "items": st.none() | st.integers(-5, 5),
        "country": st.sampled_from(["FR", "DE", "US", "XX", None]),
        "ok": st.sampled_from([True, False, None]),
        "_event_time": st.integers(0, 10**6).map(lambda s: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=s)),
    }
)
SCHEMA = pa.schema(
    [
        ("card", pa.string()), ("amount", pa.float64()), ("items", pa.int64()), ("country", pa.string()),
        ("ok", pa.bool_()), ("_event_time", pa.timestamp("us", "UTC")), ("_offset", pa.int64()),
    ]
)  # fmt: skip


def rows_of(sql: str, rows: list[dict[str, Any]]) -> dict[Any, tuple[Any, ...]]:
    """By DuckDB, which is not Spark, and not us; by the first column."""
    purchase = pa.Table.from_pylist(rows, SCHEMA)
    with duckdb.connect() as base:
        base.execute("set timezone = 'UTC'")
        base.register("purchase", purchase)
        return {row[0]: row for row in base.sql(sql).fetchall()}


@given(rows=st.lists(ROW, max_size=25), cut=st.integers(0, 25))
def test_old_states_and_new_rows_are_all_rows(rows: list[dict[str, Any]], cut: int) -> None:
    rows = [{**row, "_offset": offset} for offset, row in enumerate(rows)]
    query = live_query(SQL, ["card"], TABLES)
    held: dict[Any, list[Any]] = {}
    # The states of the older rows are those that the spliced query gives, as a version has them.
    for card, found in rows_of(splice(SQL, query), rows[:cut]).items():
        held[card] = query.unpacked(found[-len(state_columns(query)) :])
    newer: dict[Any, list[Any]] = {}
    for row in rows[cut:]:
        key = query.key_of(row)
        if key is not None:
            newer[key[0]] = query.add(newer.get(key[0]), row)
    merged = {
        card: query.joined(held[card], newer[card]) if card in held and card in newer else {**held, **newer}[card]
        for card in {*held, *newer}
    }
    expected = rows_of(SQL, rows)
    assert {card: tuple(query.row([card], states).values()) for card, states in merged.items()} == expected


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("select card, count(*) n from purchase p join cards c using (card) group by card", "joins"),
        ("select card, count(distinct country) n from purchase group by card", "older values"),
        ("select card, count(*) n from purchase group by card having count(*) > 1", "having"),
        ("select card, count(*) n from (select * from purchase) group by card", "a query or a window"),
        ("select card, count(*) n from purchase where card in (select 1) group by card", "a query or a window"),
        ("with p as (select 1) select card, count(*) n from purchase group by card", "`with`"),
        ("select card, sum(count(*)) over () n from purchase group by card", "a query or a window"),
        ("select card, first(country) c from purchase group by card", "cannot be completed"),
        ("select card, percentile(amount, 0.5) p from purchase group by card", "percentile|PERCENTILE"),
        ("select card, count(*) n from purchase group by card limit 3", "limit"),
        ("select card, count(*) n from states group by card", "not only added"),
        ("select card, country, count(*) n from purchase group by card, country", "not in the view's `key`"),
        ("select card, amount from purchase", "does not group"),
        ("select card, count(*) from purchase group by card", "has no name"),
        ("select card, sum(rand()) n from purchase group by card", "not computed here"),
        ("select card, sum(items * 0.5) n from purchase group by card", "not computed here"),
        ("select card, count(*) n from purchase where amount > '3' group by card", "different types"),
        ("select card, count(*) n from purchase group by rollup(card)", "."),
        ("select card, count(*) n from purchase union select 1, 2", "not one select"),
        ("select card, count(*) n from purchase lateral view explode(x) t as y group by card", "laterals"),
    ],
)
def test_what_cannot_be_completed_says_why(sql: str, reason: str) -> None:
    with pytest.raises(NotLive, match=reason):
        live_query(sql, ["card"], TABLES)


@pytest.mark.parametrize("groups", ["all", "1, 2", "day, date_trunc('hour', _event_time)", "day, hour"])
def test_groups_are_named_in_any_way(groups: str) -> None:
    columns = "day, date_trunc('hour', _event_time) as hour, max(p.emit.probes) as m"
    sql = f"select {columns} from purchase p group by {groups}"
    query = live_query(sql, ["hour", "day"], TABLES)
    assert list(query.key) == ["hour", "day"]  # in the order of the view's key
    time = datetime(2026, 1, 5, 8, 30, 1, tzinfo=UTC)
    row = {"day": time.date(), "_event_time": time, "emit": {"probes": 7}}
    key = query.key_of(row)
    assert key == (time.replace(minute=0, second=0), time.date())
    assert query.row(key, query.add(None, row))["m"] == 7
    assert splice(sql, query).split(" from purchase")[0].endswith("MAX(p.emit.probes) as _samovar_state_0")
