"""Why an alert was raised: a run over its key's events finds it again, with the same id, whatever the rule rests on.

SAMOVAR_EXPLAIN_ALL=1 asks for all alerts of the generated streams, not for some of each rule.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.log import Append
from samovar.service.config.models import ServiceFile
from samovar.service.offline.generate import generate
from samovar.service.query import lookback
from samovar.service.runtime.running import container_of
from tests.support.http_server import Served, served
from tests.support.project import ROOT
from tests.support.small_service import HOUR, START, Service, catch_up, make, purchase

EXAMPLES = ROOT / "examples"
SOME = None if os.environ.get("SAMOVAR_EXPLAIN_ALL") else 6  # alerts of a rule
MINUTE = 60_000
QUICK = "\nhttp: {requests_per_s: 100000}\n"


def generated(kind: str, events: int, keys: int) -> Iterator[dict[str, Any]]:
    """Out of order, a few of them by more than the streams' slack."""
    return map(json.loads, generate(kind, events, keys, seed=7, disorder_ms=1_200))


def card_purchases() -> list[dict[str, Any]]:
    lines = (EXAMPLES / "card-profiles" / "purchases.jsonl").read_text("utf-8").splitlines()
    return [{"type": "purchase", **json.loads(line)} for line in lines]


PACKS: dict[str, Callable[[], Iterable[dict[str, Any]]]] = {
    "fraud": lambda: generated("fraud", 45_000, 2_000),
    "sessions": lambda: generated("sessions", 15_000, 600),
    "card-profiles": card_purchases,
}


@contextmanager
def processed(service: Service, events: Iterable[dict[str, Any]]) -> Iterator[Served]:
    """A service that has taken these events, served."""
    with service.log() as log:
        container = container_of(service.settings, log, 0, lambda _: None, service.clock)  # makes the topics
        try:
            for appends in appended(service.settings, events):
                log.append(appends)
                catch_up(container)
            for _ in range(20):  # streams are idle, and timers come due
                service.clock.pass_ms(5 * MINUTE)
                catch_up(container)
        finally:
            container.close()
    with served(service) as site:
        site.caught_up()
        yield site


def appended(settings: ServiceFile, events: Iterable[dict[str, Any]]) -> Iterator[list[Append]]:
    """Events by their streams, in the order in which they come."""
    part: dict[str, list[tuple[bytes, bytes]]] = {}
    for number, event in enumerate(events):
        name = (
            event["type"]
            if event["type"] in settings.streams
            else next(each for each, stream in settings.streams.items() if stream.type is not None)
        )
        stream = settings.streams[name]
        key = event.get(stream.key)
        if key is not None:
            part.setdefault(stream.topic, []).append((str(key).encode(), json.dumps(event).encode()))
        if number % 2_000 == 1_999:
            yield [Append(topic=topic, records=pairs) for topic, pairs in part.items()]
            part = {}
    yield [Append(topic=topic, records=pairs) for topic, pairs in part.items()]


def alerts_of(site: Served, rule: str) -> Iterator[dict[str, Any]]:
    """Some of them, or all."""
    page = site.get(f"/alerts?rule={rule}&limit={SOME or 500}")
    yield from page["alerts"]
    while SOME is None and page["next"]:
        page = site.get("/alerts", params={"rule": rule, "limit": 500, "after": page["next"]})
        yield from page["alerts"]


def explained(site: Served, rule: str) -> list[dict[str, Any]]:
    """Every alert of a rule, each of which a run found again."""
    found = [site.get(f"/alerts/{alert['id']}") for alert in alerts_of(site, rule)]
    assert [alert["why"]["id"] for alert in found] == [alert["id"] for alert in found], found
    return found


@pytest.mark.parametrize("pack", PACKS)
def test_every_alert_of_every_rule_of_the_examples_explains_itself(pack: str, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / pack, tmp_path / pack, ignore=shutil.ignore_patterns(".samovar"))
    service = Service(tmp_path / pack / "service.yml")
    service.config.write_text(service.config.read_text("utf-8") + QUICK)
    with processed(service, PACKS[pack]()) as site:
        rules = sorted(site.world.rule_cache.get().rules)
        asked, unexplained = Counter[str](), list[Any]()
        for rule in rules:
            for alert in alerts_of(site, rule):
                why = site.get(f"/alerts/{alert['id']}")["why"]
                asked[rule] += 1
                if why["id"] != alert["id"] or not why["matches"]:
                    unexplained.append((rule, alert["id"], why["conclusion"]))
        assert not unexplained
        assert set(asked) == set(rules)


# ---------------------------------------------------------------- what a run depends on

UNPAID = """
rule: unpaid
match: |
  sequence by card with maxspan=10m
    [purchase where amount > 100] as order
    ![purchase where amount < 2]
"""
NEW_COUNTRY = """
rule: new-country
match: |
  sequence by card with maxspan=0ms
    [purchase where count(30d) > 2 and not seen(country, 30d)] as there
"""
LISTED = """
rule: listed
lists: {far: [FR]}
params: {most: 10}
match: |
  sequence by card with maxspan=10m
    [purchase where country in $far and amount < $most] as there
    [purchase where country == "US"] as back
"""
PAIRS = """
rule: pairs
match: |
  sequence by card with maxspan=1h
    [purchase where true] as one
    [purchase where true] as other
"""


def service_with(folder: Path, more: str = "", **rules: str) -> Service:
    """The small service with these rules alone."""
    service = make(folder)
    for path in (folder / "rules").iterdir():
        path.unlink()
    for name, text in rules.items():
        (folder / "rules" / f"{name}.yml").write_text(text)
    service.config.write_text(service.config.read_text() + QUICK + more)
    return service


def typed(*events: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "purchase", **event} for event in events]


def test_event_time_goes_on_to_where_a_timer_fired(tmp_path: Path) -> None:
    service = service_with(tmp_path, unpaid=UNPAID)
    with processed(service, typed(purchase("c1", 0, 500))) as site:
        (alert,) = explained(site, "unpaid")
        assert alert["why"]["conclusion"] == ["It matched once: at 2026-01-05T08:10:00.000Z."]
        told = site.get("/keys/c1/why?rule=unpaid")
        assert (told["matches"], told["conclusion"]) == (1, alert["why"]["conclusion"])


def test_history_is_read_as_far_back_as_the_rule_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookback, "FIRST_RECORDS", 3)
    monkeypatch.setattr(lookback, "AFTER_RECORDS", 1)
    service = service_with(tmp_path, new_country=NEW_COUNTRY)
    days = [purchase("c1", day * 86_400, 5) for day in range(5)]
    others = [purchase(f"o{number}", 5 * 86_400 + number, 5) for number in range(300)]
    with processed(service, typed(*days, *others, purchase("c1", 6 * 86_400, 5, "FR"))) as site:
        (alert,) = explained(site, "new-country")
        (event,) = alert["why"]["events"]
        assert event["told"] == ["completes a match"]


def test_matches_that_depend_on_each_other_are_read_back_to_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which two events make a pair depends on all pairs before it."""
    monkeypatch.setattr(lookback, "FIRST_RECORDS", 8)
    monkeypatch.setattr(lookback, "AFTER_RECORDS", 1)
    service = service_with(tmp_path, pairs=PAIRS)
    with processed(service, typed(*(purchase("c1", number * 1_800, 5) for number in range(41)))) as site:
        assert site.get("/alerts?rule=pairs")["total"] == 20
        explained(site, "pairs")


def test_a_late_event_has_no_part_in_it(tmp_path: Path) -> None:
    service = service_with(tmp_path, pairs=PAIRS)
    late = purchase("c1", 30, 5)
    first = [purchase("c1", 0, 5), purchase("c1", 60, 5), late, purchase("c1", 61, 5), purchase("c1", 62, 5)]
    with processed(service, typed(*first)) as site:
        found = explained(site, "pairs")
        times = {event["time"] for alert in found for event in alert["why"]["events"]}
        assert (len(found), late["ts"] in times) == (2, False)
        assert site.get("/keys/c1/why?rule=pairs")["matches"] == 2


def test_an_alert_of_an_earlier_version_is_explained_with_the_parameters_and_lists_it_had(tmp_path: Path) -> None:
    service = service_with(tmp_path, "params: {most: 50}\nlists: {far: [DE]}\n", listed=LISTED)
    events = typed(purchase("c1", 0, 40, "DE"), purchase("c1", 60, 5))
    with processed(service, events) as site:
        explained(site, "listed")
        site.post("/lists/far/add", {"items": ["JP"], "note": "others"})
        site.world.rule_cache.look_again()
        (alert,) = explained(site, "listed")
        assert not alert["rule_current"]


def test_a_rule_that_began_with_no_history_is_explained_with_none(tmp_path: Path) -> None:
    service = service_with(tmp_path, unpaid=UNPAID)
    first_seen = NEW_COUNTRY.replace("count(30d) > 2 and ", "")
    with processed(service, typed(*(purchase("c1", number, 5) for number in range(4)))):
        pass
    (tmp_path / "rules" / "new_country.yml").write_text(first_seen)
    with processed(service, typed(purchase("c1", HOUR, 5))) as site:
        (alert,) = explained(site, "new-country")
        assert alert["start"] == START + HOUR * 1_000


def test_what_a_run_does_not_find_again_is_not_said_to_have_not_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookback, "FIRST_RECORDS", 2)
    monkeypatch.setattr(lookback, "AFTER_RECORDS", 1)
    monkeypatch.setattr(lookback, "MOST_RECORDS", 4)
    service = service_with(tmp_path, new_country=NEW_COUNTRY)
    others = [purchase(f"o{number}", number, 5) for number in range(200)]
    events = [*(purchase("c1", number, 5) for number in range(4)), *others, purchase("c1", 1_000, 5, "FR")]
    with processed(service, typed(*events)) as site:
        (alert,) = site.get("/alerts?rule=new-country")["alerts"]
        why = site.get(f"/alerts/{alert['id']}")["why"]
        assert why["id"] is None
        assert why["conclusion"][0].startswith("This alert cannot be shown event by event")
        assert "the rule reads 30d back" in why["conclusion"][1]
