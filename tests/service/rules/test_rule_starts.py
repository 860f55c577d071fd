"""How a rule begins that was not there before: in shadow while it has too little history, or with its history folded;
and what keeps a rule from flooding anyone who reads alerts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from samovar.patterns.engine.matcher import Matches, PendingMatches
from tests.service.rules.test_rule_changes import BIG, alerts, equal, published, take, tide
from tests.support.small_service import HOUR, START, Service, catch_up, make, many, purchase, run, wipe

NEW_COUNTRY = """
rule: new-country
match: |
  sequence by card with maxspan=0ms
    [purchase where not seen(country, 2h)] as p
"""
DAY_S = 86_400


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make(tmp_path / "s")


def of(rule: str, service: Service) -> list[dict[str, Any]]:
    return [alert for alert in alerts(service) if alert["rule"] == rule]


def test_a_rule_with_history_stays_in_shadow_for_its_longest_span(service: Service) -> None:
    service.produce([purchase("c1", 0, 5, "FR"), *tide(10)])
    with service.container() as container:
        plan = published(service, NEW_COUNTRY)
        (rule,) = plan["rules"]
        assert rule["cold_start"]["shadow_ms"] == 2 * HOUR
        assert "in shadow for its longest span, 2 hours" in rule["cold_start"]["text"]
        take(container)
        # c1 was in FR before; the rule does not know it, and must not say so
        service.produce([purchase("c1", 60, 5, "FR"), *tide(100), purchase("c1", 7100, 5, "FR"), *tide(7_200)])
        catch_up(container)
        assert of("new-country", service) == []
        service.produce([purchase("c1", 7_300, 5, "DE"), purchase("c1", 7_301, 5, "FR"), *tide(7_400)])
        catch_up(container)
    found = [alert["at"] - START for alert in of("new-country", service) if alert["key"]["card"] == "c1"]
    assert found == [7_300_000]
    equal(service)


def test_a_warm_rule_knows_what_was_before_it_and_may_alert_at_once(service: Service) -> None:
    service.produce([purchase("c1", 0, 5, "FR"), purchase("c2", 1, 5, "FR"), *tide(10), purchase("c1", 11, 5, "IT")])
    with service.container() as container:
        plan = published(service, NEW_COUNTRY, "--warm-from", START - HOUR)
        assert plan["rules"][0]["cold_start"]["text"] == "its history is folded before it may alert"
        take(container)
        assert of("new-country", service) == []
        service.produce([purchase("c1", 60, 5, "FR"), purchase("c1", 61, 5, "DE"), *tide(100)])
        catch_up(container)
    # IT still waited for event time when the rule came, and is judged by it once; FR was known by then
    found = [alert["at"] - START for alert in of("new-country", service) if alert["key"]["card"] == "c1"]
    assert found == [11_000, 61_000]
    equal(service)


def test_a_warm_rule_goes_on_with_partial_matches_of_before(service: Service) -> None:
    service.produce([purchase("c1", 0, 700), *tide(10)])
    with service.container() as container:
        twice = BIG.replace("maxspan=0ms", "maxspan=10m").replace(
            "as p\n", "as p\n    [purchase where amount > 600] as q\n"
        )
        published(service, twice, "--warm-from", START - HOUR)
        take(container)
        service.produce([purchase("c1", 60, 700), *tide(100)])
        catch_up(container)
    (alert,) = of("big", service)
    assert (alert["start"], alert["at"]) == (START, START + 60_000)
    equal(service)


def test_a_lost_store_of_a_warm_rule_is_folded_again(service: Service) -> None:
    service.produce([*many(60), *tide(300)])
    with service.container() as container:
        published(service, NEW_COUNTRY, "--warm-from", START - HOUR)
        take(container)
        service.produce([*many(60, start_s=400), *tide(700)])
        catch_up(container)
    before = service.digests()
    wipe(service)
    done = run("restore", service.config, "--from", "source", "--verify")
    assert done.exit_code == 0, done.output
    assert service.digests() == before
    equal(service)


# ---------------------------------------------------------------- storms


def stormy(service: Service, **limit: Any) -> None:
    service.config.write_text(service.config.read_text() + f"storm: {json.dumps(limit)}\n")


def test_a_storm_is_throttled_with_an_alarm_and_a_count(service: Service) -> None:
    stormy(service, alerts=100, rules={"unusual": {"alerts": 3, "per": "1m"}})
    burst = [event for n in range(30) for event in (purchase(f"s{n}", n, 1), purchase(f"s{n}", n + 0.5, 500))]
    service.produce([*burst, *tide(100)])
    with service.container() as container:
        raised = of("unusual", service)
        alarms = [alert for alert in raised if "alarm" in alert]
        real = [alert for alert in raised if "alarm" not in alert]
        throttled = sum(task.processor.counts.throttled for task in container.tasks.values())
        assert {alert["alarm"] for alert in alarms} == {"storm"}
        assert len(alarms) == 2  # one per partition
        assert len(real) + throttled == 30
        assert len(real) == 6
        assert all(alert["message"] for alert in alarms)
        calm = [event for n in range(4) for event in (purchase(f"r{n}", 400 + n, 1), purchase(f"r{n}", 401 + n, 500))]
        service.produce([*calm, *tide(500)])
        catch_up(container)
    over = [alert for alert in of("unusual", service) if alert.get("alarm") == "storm-over"]
    assert sum(alert["emit"]["kept_back"] for alert in over) == throttled
    equal(service)


def test_only_alerts_that_are_raised_are_rendered(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[Matches] = []
    render = PendingMatches.render

    def noted(found: PendingMatches, rows: Sequence[int] | None = None) -> Matches:
        rendered.append(render(found, rows))
        return rendered[-1]

    monkeypatch.setattr(PendingMatches, "render", noted)
    stormy(service, alerts=100, rules={"unusual": {"alerts": 3, "per": "1m"}})
    service.produce([event for n in range(30) for event in (purchase(f"s{n}", n, 1), purchase(f"s{n}", n + 0.5, 500))])
    service.process(tide(100))
    raised = [alert["id"] for alert in alerts(service) if "alarm" not in alert]
    assert len(raised) == 6
    assert sorted(match["id"] for found in rendered for match in found) == sorted(raised)


def test_a_storm_is_the_same_however_the_input_is_cut(service: Service, tmp_path: Path) -> None:
    events = [purchase(f"s{n}", n / 10, 1) for n in range(40)] + [purchase(f"s{n}", 9 + n / 10, 500) for n in range(40)]
    found = []
    for cut in (80, 7):
        own = make(tmp_path / str(cut))
        stormy(own, alerts=5, per="10s")
        for first in range(0, len(events), cut):
            own.process(events[first : first + cut])  # with a restart after each of them
        own.process(tide(60))
        equal(own)
        found.append(sorted(alert["id"] for alert in alerts(own)))
        assert [alert["alarm"] for alert in alerts(own) if "alarm" in alert] == ["storm", "storm"]
        assert len(alerts(own)) < 40
    assert found[0] == found[1]


def test_a_limit_that_changes_is_in_the_journal(service: Service) -> None:
    burst = [event for n in range(20) for event in (purchase(f"s{n}", n, 1), purchase(f"s{n}", n + 0.5, 500))]
    service.process([*burst, *tide(100)])
    stormy(service, alerts=2)
    service.process(
        [{**event, "card": f"l{event['card']}", "ts": event["ts"] + HOUR} for event in [*burst, *tide(100)]]
    )
    kept = [alert for alert in of("unusual", service) if alert["at"] > START + HOUR and "alarm" not in alert]
    assert len(kept) == 4
    assert len([alert for alert in of("unusual", service) if alert["at"] < START + HOUR]) == 20
    equal(service)


# ---------------------------------------------------------------- fields


def test_a_field_that_breaks_a_rule_is_refused_and_one_more_is_not(service: Service) -> None:
    service.process(many(5))
    published(service, BIG)
    text = service.config.read_text()
    service.config.write_text(text.replace("country: string", "country: string, city: string"))
    fine = run("rules", "plan", service.config)
    assert fine.exit_code == 0, fine.output
    assert "purchase.city is new (string)" in fine.stdout
    service.process(many(5, start_s=60))
    service.config.write_text(text.replace("amount: double", "amount: string"))
    broken = run("rules", "plan", service.config, "--json")
    assert broken.exit_code == 1
    plan = json.loads(broken.stdout)
    assert plan["fields"] == [{"type": "purchase", "field": "amount", "before": "double", "now": "string"}]
    assert {each["rule"] for each in plan["rules"] if not each["ok"]} == {"testing", "unusual", "big"}
    assert all(each["reads"] == ["amount"] for each in plan["rules"] if not each["ok"])
    refused = run("run", service.config, "--until-caught-up")
    assert refused.exit_code == 2
    assert "schema-breaks-rules: " in refused.stderr
