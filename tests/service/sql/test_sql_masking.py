"""Who is not told `--pii` sees pseudonyms in the tables themselves, so in all that is computed of them too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from samovar.service.auth.audit import entries
from samovar.service.auth.tokens import Role, add_token, load_tokens
from samovar.service.masking.fields import HIDDEN
from samovar.service.sql.masking import TableMasks
from samovar.service.sql.tables import Catalog
from samovar.service.topology.logs import opened
from tests.support import marked_service
from tests.support.marked_service import Planted
from tests.support.small_service import START, Service, run

PLANTED = Planted("masking of sql")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    made = marked_service.make(tmp_path_factory.mktemp("masked") / "s", PLANTED, START + 10**9)
    with opened(made.settings) as log:
        add_token(made.settings, log, "viewer", Role.VIEWER, "test")  # with it comes the secret of pseudonyms
    return made


def rows(service: Service, query: str, *options: object) -> list[dict[str, Any]]:
    done = run("sql", service.config, query, "--json", *options)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_no_table_shows_anything_that_is_marked(service: Service) -> None:
    pieces = PLANTED.pieces()
    with opened(service.settings) as log:
        names = Catalog(service.settings, log, TableMasks(service.settings, log, sees_all=False)).names
    seen = 0
    for name in names:
        found = rows(service, f"select * from {name}")
        shown = json.dumps(found, ensure_ascii=False).lower()
        assert not [piece for piece in pieces if piece in shown], name
        seen += len(found)
    assert {"alerts_testing", "states", "known", "purchase", "transfer", "dead_letters", "late"} <= {*names}
    assert seen > 100


def test_what_is_not_marked_is_shown(service: Service) -> None:
    (found,) = rows(service, "select sum(amount) as total, count(distinct country) as n from purchase")
    assert found == {"total": 4824.5 + 3 + 4, "n": 1} or found["total"] > 4000
    assert rows(service, "select distinct rule from alerts where rule = 'testing'") == [{"rule": "testing"}]


def test_pseudonyms_are_those_of_pages_and_are_grouped_and_joined_by(service: Service) -> None:
    with opened(service.settings) as log:
        secret = load_tokens(log, "s").mask_secret
        masks = TableMasks(service.settings, log, sees_all=False)
        alias = masks.of_table("purchase", ["card"]).masks.alias(PLANTED.text("a"))  # type: ignore[union-attr]
    assert secret is not None
    found = rows(service, "select card, count(*) as n from purchase where card is not null group by card")
    assert {row["card"]: row["n"] for row in found}[alias] > 5
    assert len(found) == 3
    joined = rows(
        service,
        "select count(*) as n from alerts_testing a join purchase p on p.card = a.key['card'] and p.amount > 200",
    )
    assert joined[0]["n"] > 0
    assert rows(service, f"select distinct card from purchase where card = '{alias}'") == [{"card": alias}]
    assert rows(service, f"select count(*) as n from purchase where card = '{PLANTED.text('a')}'") == [{"n": 0}]


def test_what_was_computed_of_marked_values_is_hidden_whole(service: Service) -> None:
    assert {row["said"] for row in rows(service, "select shouted as said from known")} == {HIDDEN}
    emits = rows(service, "select emit.upper as u, emit.twice as t, emit.amount as a from alerts_computing")
    assert {row["u"] for row in emits} == {HIDDEN}
    assert {row["t"] for row in emits} == {None}
    assert all(float(row["a"]) > 200 for row in emits)


def test_rows_of_a_view_stand_in_an_order_that_tells_nothing(service: Service) -> None:
    """Not in that of their key, which is how a file has them: it would say whose value is the least."""
    assert sorted(row["n"] for row in rows(service, "select card, n from known")) == [1, 2, 3]
    with opened(service.settings) as log:
        masks = TableMasks(service.settings, log, sees_all=False)
        mask = masks.of_table("purchase", ["card"])
    assert mask is not None
    table = pa.table({"card": [f"{n:03}" for n in range(100)], "n": list(range(100))})
    shown = [
        [row for batch in mask.rows_of_view(ds.dataset(each), ["card", "n"]) for row in batch.to_pylist()]
        for each in (table, table.take(list(reversed(range(100)))))
    ]
    assert shown[0] == shown[1]
    assert {row["n"] for row in shown[0]} == set(range(100))


def test_who_asks_for_all_is_written_down(service: Service) -> None:
    found = rows(service, "select distinct card from purchase where card is not null", "--pii")
    assert {row["card"] for row in found} == {PLANTED.text(card) for card in "abc"}
    with opened(service.settings) as log:
        last = entries(log, service.settings, 1)[0]
    assert (last["what"], last["detail"]["command"]) == ("unmasked read", "sql --pii")


def test_faults_quote_no_values(service: Service) -> None:
    done = run("sql", service.config, "select card::int from purchase")
    assert done.exit_code == 2
    assert PLANTED.text("a")[:5] not in done.stderr


def test_of_a_service_without_marked_fields_nothing_is_hidden(tmp_path: Path) -> None:
    from tests.support.small_service import make, many  # noqa: PLC0415 - of another service

    plain = make(tmp_path / "s")
    plain.produce(many(9))
    assert {row["card"] for row in rows(plain, "select card from purchase")} == {f"c{n}" for n in range(7)}
