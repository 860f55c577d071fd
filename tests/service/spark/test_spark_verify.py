"""`samovar verify --engine spark`: all stores at once, and every key that differs by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.formats.record import key_prefix
from samovar.changelog.spark.session import OpenSession
from samovar.state.rocks import RocksStore
from tests.support.small_service import Service, key_of, make, many, run
from tests.support.views import CARDS, put


@pytest.fixture
def service(tmp_path: Path) -> Service:
    made = make(tmp_path / "s")
    (tmp_path / "s" / "views").mkdir()
    made.process(many(100))
    return made


def verified(service: Service, *options: object) -> tuple[int, list[dict[str, Any]]]:
    done = run("verify", service.config, "--json", *options)
    return done.exit_code, json.loads(done.stdout)


def test_p2_store_changelog_and_source_are_equal(spark: OpenSession, service: Service) -> None:
    code, found = verified(service, "--engine", "spark")
    assert code == 0
    assert (code, found) == verified(service)
    assert all(set(each["digests"]) == {"store", "changelog", "source"} for each in found)


def test_every_key_that_differs_is_listed(spark: OpenSession, service: Service) -> None:
    """Rows of two keys of one partition are lost: both are named, in both comparisons."""
    own = [card for card in (f"c{n}" for n in range(7)) if service.partition(card) == service.partition("c1")][:2]
    store = RocksStore(service.store(service.partition("c1")))
    for card in own:
        prefix = key_prefix(key_of(card))
        store.write([(row, None) for row, _ in store.range(prefix, prefix + b"\xff")])
    store.close()
    code, found = verified(service, "--engine", "spark")
    assert code == 1
    (wrong,) = [each for each in found if not each["equal"]]
    assert {tuple(each["between"]) for each in wrong["differences"]} == {("store", "changelog"), ("store", "source")}
    for difference in wrong["differences"]:
        assert {each["key"][0] for each in difference["keys"]} == set(own)
    text = run("verify", service.config, "--engine", "spark").stdout
    assert all(f"key {card}" in text for card in own)


def test_only_where_the_stores_are(service: Service, monkeypatch: pytest.MonkeyPatch, spark: OpenSession) -> None:
    monkeypatch.setattr(OpenSession, "is_local", False)
    done = run("verify", service.config, "--engine", "spark")
    assert done.exit_code == 2
    assert "engine-unfit" in done.stderr
    done = run("restore", service.config, "--engine", "spark")
    assert (done.exit_code, "staging-needed" in done.stderr) == (2, True)
    put(service, CARDS)
    for command in (
        ["restore", service.config, "--engine", "spark", "--staging", service.config.parent / "staging"],
        ["rules", "backtest", service.config.parent / "rules" / "testing.yml", service.config, "--engine", "spark"],
        ["views", "rebuild", service.config],
    ):
        done = run(*command)  # the embedded log is a file of this machine
        assert (done.exit_code, "engine-unfit: the embedded log" in done.stderr) == (2, True), done.output
