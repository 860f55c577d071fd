"""Previews over HTTP: one at a time, the newest of each person, and samples made behind them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from samovar.common.errors import Refused
from samovar.service.backtest import preview as previews
from samovar.service.backtest import samples
from samovar.service.http.jobs import Jobs
from samovar.service.http.previews import Previews
from tests.support.http_server import Served, served, wait_for
from tests.support.matching import rules_of
from tests.support.small_service import RULES, Service, make, many

(PROBES,) = rules_of(RULES["testing"])


@pytest.fixture
def service(tmp_path: Path) -> Service:
    made = make(tmp_path / "s")
    made.process(many(600, cards=61))
    return made


@pytest.fixture
def site(service: Service) -> Iterator[Served]:
    with served(service) as made:
        yield made


def test_a_preview_of_little_data_is_what_the_backtest_finds(site: Served) -> None:
    found = site.post("/rules/preview", {"text": RULES["testing"]})
    assert (found["share"], found["complete"], found["sampling"]) == (1.0, True, None)
    job = site.post("/rules/backtest", {"text": RULES["testing"]}, 202)["job"]
    wait_for(lambda: site.get(f"/jobs/{job}")["state"] == "done")
    assert site.get(f"/jobs/{job}")["result"]["rules"][0]["found"] == found["found"]["count"] > 0
    bad = site.post("/rules/preview", {"text": "rule: x"}, 422)
    assert bad["code"] == "rule-errors"


def test_of_much_data_a_sample_is_made_and_then_used(site: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(previews, "DIRECT", 100)
    monkeypatch.setattr(samples, "SAMPLED", 300)
    first = site.post("/rules/preview", {"text": RULES["testing"]})
    assert (first["complete"], first["sampled"], first["events"]) == (False, False, 100)
    assert first["sampling"] is not None

    def whole() -> Any:
        found = site.post("/rules/preview", {"text": RULES["testing"]})
        return found if found["sampled"] else None

    wait_for(whole)
    found = whole()
    assert (found["share"], found["complete"], found["behind"], found["sampling"]) == (0.5, True, 0, None)
    assert found["found"]["low"] <= found["found"]["count"] <= found["found"]["high"]


def test_a_newer_preview_takes_the_place_of_an_older_one(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, first = threading.Event(), threading.Event()

    def slow(*_: Any, is_wanted: Any) -> Any:
        """The first one goes on until nobody wants it; later ones answer at once."""
        if first.is_set():
            return "found"
        first.set()
        begun.set()
        while is_wanted():
            pass
        raise previews.NotWanted

    monkeypatch.setattr("samovar.service.http.previews.preview", slow)
    with service.log() as log:
        made, refused = Previews(service.settings, log, Jobs()), list[Refused]()

        def ask() -> None:
            try:
                made.run("ann", PROBES, lambda: True)
            except Refused as error:
                refused.append(error)

        older = threading.Thread(target=ask)
        older.start()
        assert begun.wait(30)
        assert str(made.run("ann", PROBES, lambda: True)) == "found"
        older.join(30)
    assert [error.code for error in refused] == ["preview-overtaken"]


def test_nobody_waits_for_one_who_has_gone(service: Service) -> None:
    with service.log() as log, pytest.raises(Refused) as refused:
        Previews(service.settings, log, Jobs()).run("ann", PROBES, lambda: False)
    assert refused.value.code == "preview-overtaken"


def test_so_many_wait_and_no_more(service: Service) -> None:
    with service.log() as log:
        made = Previews(service.settings, log, Jobs())
        made._newest |= {f"p{number}": object() for number in range(8)}
        with pytest.raises(Refused) as refused:
            made.run("ann", PROBES, lambda: True)
        assert made.run("p3", PROBES, lambda: True).share == 1.0
    assert refused.value.code == "too-much-at-once"
