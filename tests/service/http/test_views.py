"""Views over HTTP: their rows picked and ordered, with no SQL, and nothing but the view's own files."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from samovar.service.masking.fields import HIDDEN
from samovar.service.views.store import ViewManifest, ViewStore
from tests.service.http.test_access import tokens_of
from tests.support.http_server import Served, served
from tests.support.small_service import make
from tests.support.used_service import MARKED, ROWS, VIEW


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    service = make(tmp_path_factory.mktemp("views") / "s")
    service.config.write_text(MARKED)
    (service.config.parent / "views").mkdir()
    (service.config.parent / "views" / "cards.yml").write_text(VIEW)
    store = ViewStore(service.settings.views.store, "cards")
    with store.writing():
        part = store.being_made(store.next_version())
        part.mkdir()
        pq.write_table(pa.table(ROWS), part / "part-0.parquet")
        lineage = {"card": {"reads": ["purchase.card"], "plain": True}, "purchases": {"reads": [], "plain": True}}
        store.publish(
            ViewManifest(
                view="cards",
                version=1,
                digest="d",
                made_ms=0,
                kind="full",
                rows=3,
                sources={},
                rules={},
                columns={"card": "string"},
                lineage=lineage,
            ),
            3,
        )
    tokens = tokens_of(service)
    with served(service) as made:
        operator = made.as_(tokens["operator"])
        operator.headers["x-viewer"] = tokens["viewer"]
        yield operator


def test_a_view_is_listed_and_its_rows_are_read(site: Served) -> None:
    (view,) = site.get("/views")["views"]
    assert (view["view"], view["rows"], view["version"]) == ("cards", 3, 1)
    assert "path" not in view
    found = site.post("/views/cards/query", {})
    assert found["columns"] == ["card", "purchases", "paid"]
    assert sorted(found["rows"]) == [["c1", 3, 10.5], ["c2", 1, 900.0], ["c3", 2, None]]


def test_rows_are_picked_and_ordered(site: Served) -> None:
    asked = {"where": [{"column": "purchases", "op": ">=", "value": 2}], "order": "purchases", "desc": True}
    assert site.post("/views/cards/query", {**asked, "columns": ["card"]})["rows"] == [["c1"], ["c3"]]
    null = {"where": [{"column": "paid", "value": None}], "columns": ["card"]}
    assert site.post("/views/cards/query", null)["rows"] == [["c3"]]
    assert site.post("/views/cards/query", {"order": "paid", "limit": 1})["rows"][0][0] == "c1"


def test_what_cannot_be_asked_is_a_problem(site: Served) -> None:
    assert site.post("/views/none/query", {}, 404)["code"] == "unknown-view"
    assert site.post("/views/cards/query", {"order": "carb"}, 404)["hint"] == "did you mean `card`?"
    wrong = {"where": [{"column": "purchases", "value": "many"}]}
    assert site.post("/views/cards/query", wrong, 400)["code"] == "view-query"
    assert site.post("/views/cards/query", {"sql": "SELECT * FROM text.`/etc/passwd`"}, 422)["code"] == "bad-request"
    for name in ("..", "..%2f..%2f", "%2fetc"):
        assert site.ask("POST", f"/views/{name}/query", json={}).status_code in (404, 405)


def test_marked_values_are_pseudonyms_in_views_too(site: Served) -> None:
    viewer = site.as_(site.headers["x-viewer"])
    rows = viewer.post("/views/cards/query", {})["rows"]
    assert not {"c1", "c2"} & {value for row in rows for value in row}  # its letters may be in a pseudonym by chance
    assert sorted(row[1] for row in rows) == [1, 2, 3]
    assert {row[2] for row in rows} <= {HIDDEN, None}  # nobody knows where it comes from
    assert viewer.post("/views/cards/query", {"order": "purchases"})["rows"][0][1] == 1
    for column in ("card", "paid"):
        assert viewer.post("/views/cards/query", {"order": column}, 403)["code"] == "pii-comparison"
        where = [{"column": column, "op": ">", "value": "c1"}]
        assert viewer.post("/views/cards/query", {"where": where}, 403)["code"] == "pii-comparison"


def test_versions_are_listed_and_an_operator_goes_back(site: Served) -> None:
    store = ViewStore(site.service.settings.views.store, "cards")
    with store.writing():
        part = store.being_made(2)
        part.mkdir()
        pq.write_table(pa.table(ROWS).slice(0, 1), part / "part-0.parquet")
        store.publish(
            ViewManifest(
                view="cards",
                version=2,
                digest="d",
                made_ms=5,
                kind="full",
                rows=1,
                sources={},
                rules={},
                columns={"card": "string"},
            ),
            3,
        )
    found = site.get("/views/cards")
    assert (found["version"], [each["version"] for each in found["kept"]]) == (2, [2, 1])
    viewer = site.as_(site.headers["x-viewer"])
    assert viewer.post("/views/cards/rollback", {}, 403)["code"] == "access-role"
    assert viewer.post("/views/cards/refresh", {}, 403)["code"] == "access-role"
    assert site.post("/views/cards/rollback", {"to": 7}, 404)["code"] == "view-version"
    assert site.post("/views/cards/rollback", {})["version"] == 1
    assert len(site.post("/views/cards/query", {})["rows"]) == 3
    entry = site.get("/audit")["entries"][0]
    assert (entry["what"], entry["detail"]) == ("view rolled back", {"view": "cards", "from": 2, "to": 1})
    assert site.post("/views/none/refresh", {}, 404)["code"] == "unknown-view"
    assert site.get("/views/none", 404)["code"] == "unknown-view"
