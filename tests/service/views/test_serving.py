"""Views read by key: the version's tables, completed by what came since; no Spark is needed."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.changelog.log import TopicPartition
from samovar.changelog.spark.sorted_tables import write_files
from samovar.common.errors import Refused
from samovar.service.masking.fields import HIDDEN
from samovar.service.views.live_sql import live_query, state_columns
from samovar.service.views.served_rows import FOLDER, RowCodec, pack_value
from samovar.service.views.serving import ViewServer
from samovar.service.views.store import ViewManifest, ViewStore
from tests.service.http.test_access import tokens_of
from tests.support.http_server import served
from tests.support.small_service import Service, make, many, purchase
from tests.support.used_service import MARKED
from tests.support.views import views

SQL = """select card, count(*) as purchases, sum(amount) as spent, max_by(country, _event_time) as last_country
from purchase where _error is null group by card"""
COLUMNS = {"card": "string", "purchases": "bigint", "spent": "double", "last_country": "string"}
TYPES = {"card": "string", "amount": "double", "country": "string", "_event_time": "timestamp", "_error": "string"}
LINEAGE = {
    "card": {"reads": ["purchase.card"], "plain": True},
    "purchases": {"reads": [], "plain": False},
    "spent": {"reads": ["purchase.amount"], "plain": False},
}


def publish(service: Service, events: Sequence[dict[str, Any]], *, sql: str = SQL, reason: str = "") -> int:
    """A version as Spark would make it of these events, which are all that the log has: by the same functions."""
    query = live_query(SQL, ["card"], {"purchase": TYPES})
    groups: dict[str, list[Any]] = {}
    for event in events:
        time = datetime.fromtimestamp(event["ts"] / 1000, UTC)
        groups[event["card"]] = query.add(groups.get(event["card"]), {**event, "_event_time": time, "_error": None})
    names = list(state_columns(query))
    codec = RowCodec({**COLUMNS, "_samovar_state_3": "timestamp"}, ("card",))
    pairs = []
    for card, states in groups.items():
        shown = list(query.row([card], states).values())
        (count, total, (at, country)) = states
        pairs.append((codec.packed_key([card]), codec.packed([*shown, count, total, country, at])))
    store = ViewStore(service.settings.views.store, "cards")
    with service.log() as log, store.writing():
        places = [TopicPartition("purchase", number) for number in range(2)]
        bounds = log.bounds(places)
        version = store.next_version()
        part = store.being_made(version)
        (part / FOLDER).mkdir(parents=True)
        files = list(write_files(part / FOLDER, "", iter(sorted(pairs))))
        store.publish(
            ViewManifest(
                view="cards",
                version=version,
                digest="d",
                made_ms=1_767_600_000_000,
                kind="full",
                rows=len(pairs),
                sources={"purchase": {str(at): (0, bounds[at].end) for at in places}},
                rules={},
                columns=COLUMNS,
                lineage=LINEAGE,
                serving={
                    "format": 1,
                    "key": ["card"],
                    "sql": sql,
                    "states": names,
                    "reason": reason,
                    "files": {each.name: [each.place, each.rows, each.sha256] for each in files},
                },
            ),
            2,
        )
    return version


@pytest.fixture
def service(tmp_path: Path) -> Service:
    made = make(tmp_path / "s")
    (tmp_path / "s" / "views").mkdir()
    (tmp_path / "s" / "views" / "cards.yml").write_text(
        f"view: cards\nkey: card\nserve: true\nsql: {json.dumps(SQL)}\n"
    )
    return made


def expected(events: Sequence[dict[str, Any]], card: str) -> dict[str, Any]:
    own = [event for event in events if event["card"] == card]
    last = max(own, key=lambda event: event["ts"])["country"]
    return {"card": card, "purchases": len(own), "spent": sum(each["amount"] for each in own), "last_country": last}


def test_a_version_is_completed_by_what_came_since(service: Service) -> None:
    before, since = many(40), [*many(21, start_s=500), purchase("new", 1, 3.0)]
    service.produce(before)
    publish(service, before)
    with service.log() as log, closing(ViewServer(settings=service.settings, log=log)) as server:
        found = server.get("cards", ["c1"])
        assert (found.row, found.live, found.records_since) == (expected(before, "c1"), True, 0)
        service.produce(since)
        events = before + since
        for card in sorted({event["card"] for event in events}):
            found = server.get("cards", [card])
            assert (found.row, found.live, found.manifest.version) == (expected(events, card), True, 1)
            assert list(found.offsets) == [f"purchase/{service.partition(card)}"]  # where its records are
            at = TopicPartition("purchase", service.partition(card))
            assert found.offsets[str(at)] == log.bounds([at])[at].end
        assert server.get("cards", ["c1"]).row == expected(events, "c1")  # once more: nothing is counted twice
        with pytest.raises(Refused, match="unknown-row"):
            server.get("cards", ["never"])


def test_more_than_may_be_read_is_left_to_the_next_refresh(service: Service) -> None:
    before = many(20)
    service.produce(before)
    publish(service, before)
    service.config.write_text(service.config.read_text() + "views: {tail_records: 3}\n")
    service.produce([purchase("c1", 900 + n, 1) for n in range(4)])
    with service.log() as log, closing(ViewServer(settings=service.settings, log=log)) as server:
        found = server.get("cards", ["c1"])
        assert (found.row, found.live) == (expected(before, "c1"), False)
        assert "4 records came since, and at most 3" in found.reason
        assert found.records_since == 4
        assert server.get("cards", ["c1"]).to_json()["live"] is False


def test_a_query_that_cannot_be_completed_says_so(service: Service) -> None:
    before = many(20)
    service.produce(before)
    publish(service, before, reason="it has `joins`")
    service.produce(many(5, start_s=900))
    with service.log() as log, closing(ViewServer(settings=service.settings, log=log)) as server:
        found = server.get("cards", ["c1"])
    assert (found.row, found.live, found.reason) == (expected(before, "c1"), False, "it has `joins`")
    assert found.records_since == 5
    assert sum(found.offsets.values()) == 20


def test_a_newer_version_takes_the_place_of_the_old_one(service: Service) -> None:
    before = many(20)
    service.produce(before)
    publish(service, before)
    with service.log() as log, closing(ViewServer(settings=service.settings, log=log)) as server:
        with server._reading("cards") as old:
            data = old.tables.get(old.codec.packed_key(["c1"]))
            service.produce(many(10, start_s=900))
            publish(service, before + many(10, start_s=900))
            found = server.get("cards", ["c1"])
            assert (found.manifest.version, found.records_since) == (2, 0)
            assert found.row == expected(before + many(10, start_s=900), "c1")
            assert old.tables.get(old.codec.packed_key(["c1"])) == data  # who reads the old one finishes
        assert len(list((server.folder / "cards").glob("[0-9]*"))) == 1  # and its disk is free
        views(service, "rollback", "cards")
        found = server.get("cards", ["c1"])  # of the first, completed again
        assert (found.manifest.version, found.row) == (1, expected(before + many(10, start_s=900), "c1"))


def test_many_threads_read_while_versions_change(service: Service) -> None:
    events = many(30)
    service.produce(events)
    publish(service, events)
    wrong: list[Any] = []
    with service.log() as log, closing(ViewServer(settings=service.settings, log=log)) as server:
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                row = server.get("cards", ["c2"]).row
                if row != expected(events, "c2"):
                    wrong.append(row)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for each in threads:
            each.start()
        for _ in range(5):
            publish(service, events)
            server.get("cards", ["c1"])
        done.set()
        for each in threads:
            each.join()
        assert server.get("cards", ["c1"]).manifest.version == 6
    assert not wrong


def test_a_damaged_file_is_never_read(service: Service) -> None:
    service.produce(many(10))
    publish(service, many(10))
    (file,) = service.settings.views.store.rglob("*.sst")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with (
        service.log() as log,
        closing(ViewServer(settings=service.settings, log=log)) as server,
        pytest.raises(Refused) as refused,
    ):
        server.get("cards", ["c1"])
    assert refused.value.code == "view-damaged"


def test_the_command_and_http_answer_alike(service: Service) -> None:
    before = many(20)
    service.produce(before)
    assert "view-not-made" in views(service, "get", "cards", "c1", code=2)
    assert "did you mean `cards`?" in views(service, "get", "cardz", "c1", code=2)
    publish(service, before)
    since = [purchase("c1", 900, 5.0, "DE"), purchase("a/b", 901, 2.0)]
    service.produce(since)
    said = json.loads(views(service, "get", "cards", "c1", "--json"))
    assert said["row"] == expected(before + since, "c1")
    assert "purchases: 4\n" in views(service, "get", "cards", "c1")
    with served(service) as site:
        assert site.get("/views/cards/c1") == said
        assert site.get("/views/cards/a%2Fb")["row"]["spent"] == 2.0
        assert site.get("/views/cards/c99", 404)["code"] == "unknown-row"
        assert site.get("/views/cardz/c1", 404)["hint"] == "did you mean `cards`?"
        assert site.get("/views/cards/c1?key=x", 400)["code"] == "bad-key"
        store = ViewStore(service.settings.views.store, "cards")
        with store.writing():
            part = store.being_made(2)
            part.mkdir()
            store.publish(replace(store.manifest(1), version=2, serving={}), 2)
        assert site.get("/views/cards/c1", 409)["code"] == "view-not-served"


def test_marked_columns_are_hidden_and_marked_keys_are_asked_for_by_pseudonyms(service: Service) -> None:
    service.config.write_text(MARKED)
    service.produce(many(20))
    publish(service, many(20))
    tokens = tokens_of(service)
    with served(service) as site:
        operator, viewer = site.as_(tokens["operator"]), site.as_(tokens["viewer"])
        assert operator.get("/views/cards/c1")["row"] == expected(many(20), "c1")
        assert viewer.get("/views/cards/c1", 403)["code"] == "pii-comparison"
        alias = operator.post("/keys/resolve", {"key": "c1"})["key_ref"]
        found = viewer.get(f"/views/cards/{alias}")
        own = expected(many(20), "c1")
        assert found["row"] == {**own, "card": alias, "last_country": HIDDEN}  # nobody knows what is in that one
        assert found["key"] == {"card": alias}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bigint", st.integers(-(2**63), 2**63 - 1)),
        ("double", st.floats(allow_nan=False)),
        ("string", st.text()),
        ("boolean", st.booleans()),
        ("date", st.dates()),
        ("timestamp", st.datetimes(timezones=st.just(UTC))),
        ("decimal(20,2)", st.decimals(-(10**15), 10**15, places=2)),
    ],
)
def test_keys_are_in_the_order_of_their_values(kind: str, values: st.SearchStrategy[Any]) -> None:
    @given(values, values)
    def check(one: Any, other: Any) -> None:
        first, then = pack_value(kind, one), pack_value(kind, other)
        assert (first < then, first == then) == (one < other, one == other)
        assert pack_value(kind, None) < first

    check()


def test_values_come_back_with_their_types() -> None:
    codec = RowCodec({"a": "string"}, ("a",))
    values = [
        None, True, 2**60, 0.1, float("inf"), "ä\0", date(2026, 1, 5), datetime(2026, 1, 5, 1, 2, 3, 4, UTC),
        datetime.fromisoformat("2026-01-05"), Decimal("1.20"), b"\0\xff", [1, [date(2026, 1, 1)]],
        {"$time": 1, "b": {"c": None}},
    ]  # fmt: skip
    assert codec.unpacked(codec.packed(values)) == values


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("date", "2026-01-05", date(2026, 1, 5)),
        ("timestamp", "2026-01-05T08:00:00Z", datetime(2026, 1, 5, 8, tzinfo=UTC)),
        ("bigint", "-7", -7), ("boolean", "TRUE", True), ("double", "2", 2.0), ("decimal(9,2)", "1.5", Decimal("1.5")),
        ("date", "soon", None), ("bigint", "1.5", None), ("bigint", str(2**70), None), ("boolean", "1", None),
    ],
)  # fmt: skip
def test_a_key_is_read_by_the_types_of_its_columns(kind: str, text: str, value: Any) -> None:
    codec = RowCodec({"k": kind}, ("k",))
    if value is not None:
        assert codec.parsed([text]) == [value]
        return
    with pytest.raises(Refused, match="bad-key"):
        codec.parsed([text])


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("serve: true", "a served view needs `key`, by which its rows are read"),
        ("serve: often\nkey: card", "`serve` must be true or false"),
        (
            "serve: true\nkey: card\nrefresh: incremental\npartitioning: day\npartition_of: {purchase: day}",
            "a served view needs `key`, which `day` must be in",
        ),
    ],
)
def test_a_file_that_cannot_be_served_is_refused(service: Service, file: str, said: str) -> None:
    (service.config.parent / "views" / "cards.yml").write_text(f"view: cards\nsql: select 1 from purchase\n{file}\n")
    assert said in views(service, "list", code=1)
