"""`samovar state` as a person types it, with the service stopped and running."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from samovar.patterns.explain.key_trace import iso_time
from samovar.service.query.state.view import resolve_key
from samovar.service.topology.stores import site_of
from tests.support.small_service import START, Service, catch_up, make, many, purchase, run


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make(tmp_path / "s")


def got(service: Service, card: str, *options: object) -> dict[str, Any]:
    done = run("state", "get", service.config, card, "--json", *options)
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_get_shows_partial_matches_and_what_they_wait_for(service: Service) -> None:
    service.process([purchase("c1", 0, 1), purchase("c1", 5, 1.5), purchase("c1", 60, 30), purchase("c2", 60, 1)])
    found = got(service, "c1", "--rule", "testing")
    (rule,) = found["rules"]
    assert found["partition"] == service.partition("c1")
    assert [(each["step"], each["events"], each["waits_for"]) for each in rule["partials"]] == [("probe", 2, ["big"])]
    text = run("state", "get", service.config, "c1").stdout
    assert f"probe: 2 events since {iso_time(START)}; waits for big" in text


def test_get_shows_what_each_partial_match_has_bound(service: Service) -> None:
    events = [purchase("c1", 0, 1), purchase("c1", 5, 1.5), purchase("c1", 60, 30)]
    service.process(events)
    (rule,) = got(service, "c1", "--rule", "testing")["rules"]
    bound = rule["partials"][0]["bound"]
    assert [(each["as"], each["event"]) for each in bound] == [("probe", event) for event in events[:2]]
    assert [(each["stream"], each["partition"], each["offset"]) for each in bound] == [
        ("purchase", service.partition("c1"), offset) for offset in (0, 1)
    ]
    (rule,) = got(service, "c1", "--rule", "countries")["rules"]
    assert [each["event"] for each in rule["partials"][0]["bound"]] == events[:2]
    assert '"amount": 1.5' in run("state", "get", service.config, "c1").stdout


def test_get_shows_one_probe_waiting_for_another(service: Service) -> None:
    service.process([purchase("c1", 0, 1), purchase("c1", 60, 30)])
    (rule,) = got(service, "c1", "--rule", "testing")["rules"]
    assert [each["waits_for"] for each in rule["partials"]] == [["probe"]]


def test_get_shows_what_history_functions_remember(service: Service) -> None:
    service.process([purchase("c1", second, amount) for second, amount in ((0, 1), (5, 30.5), (60, 7), (90, 1))])
    (history,) = got(service, "c1")["histories"]
    assert (history["call"], history["of"]) == ("avg(amount, 1d)", "purchase")
    assert history["events"] == [
        {"time": START, "value": 1},
        {"time": START + 5_000, "value": 30.5},
        {"time": START + 60_000, "value": 7},
    ]


def test_a_long_history_is_read_from_its_chunks(service: Service) -> None:
    service.process([purchase("c1", n, n) for n in range(400)])
    (history,) = got(service, "c1")["histories"]
    assert [each["value"] for each in history["events"]] == list(range(398))  # the slack holds the rest back
    assert "(393 earlier events)" in run("state", "get", service.config, "c1").stdout


def test_get_shows_the_last_alert_and_how_long_it_is_quiet(service: Service) -> None:
    service.process([purchase("c1", 0, 10, "US"), purchase("c1", 5, 10, "FR"), purchase("c1", 60, 10, "FR")])
    (rule,) = got(service, "c1", "--rule", "countries")["rules"]
    assert rule["alerted"] == START + 5_000
    assert rule["quiet_until"] == START + 3_605_000


def test_get_says_where_nothing_is_held(service: Service) -> None:
    service.process([purchase("c1", 0, 1), purchase("c1", 60, 1)])
    done = run("state", "get", service.config, "c99")
    assert (done.exit_code, done.stdout) == (1, "nothing is held of c99\n")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("get", "c1", "--rule", "tasting"), "unknown-rule"), (("scan", "--rule", "x"), "unknown-rule"),
     (("scan", "--partition", "9"), "unknown-partition"), (("get", "c1", "--store", "nowhere"), "store-missing")],
)  # fmt: skip
def test_refusals(service: Service, arguments: tuple[str, ...], code: str) -> None:
    service.process([purchase("c1", 0, 1)])
    done = run("state", arguments[0], service.config, *arguments[1:])
    assert (done.exit_code, done.stderr.split(":")[0]) == (2, code)


def test_keys_of_several_fields_are_written_in_three_ways(service: Service) -> None:
    (service.config.parent / "rules" / "two.yml").write_text(
        "rule: two\nmatch: |\n  session by card, country with gap=1h [purchase where true]\n"
    )
    service.process([purchase("c1", 0, 1, "FR"), purchase("c1", 60, 1, "FR")])
    for text in ("c1,FR", "card=c1,country=FR", '["c1", "FR"]'):
        found = got(service, text, "--rule", "two")
        assert found["key"] == ["c1", "FR"], text
        assert found["rules"][0]["partials"][0]["events"] == 1
    with service.log() as log:
        plan = site_of(service.settings, log).plan
    assert resolve_key(plan, "7", "testing").keys() != resolve_key(plan, "7,8", "testing").keys()


def test_scan_lists_keys_with_state(service: Service) -> None:
    service.process(many(60))
    done = run("state", "scan", service.config, "--json")
    found = json.loads(done.stdout)
    assert sorted(each["key"] for each in found) == [[f"c{n}"] for n in range(7)]
    assert all("countries" in each["rules"] for each in found)
    one = run("state", "scan", service.config, "--limit", 2).stdout.splitlines()
    assert len(one) == 3
    assert one[-1] == "(more: raise --limit)"


def test_history_tells_every_change_of_a_key(service: Service) -> None:
    service.process([purchase("c1", 0, 1), purchase("c1", 60, 30)])
    service.process([purchase("c1", 70, 1), purchase("c1", 90, 30)])
    service.process([purchase("c1", 100, 900), purchase("c1", 190, 30)])
    done = run("state", "history", service.config, "c1", "--rule", "testing", "--json")
    changes = json.loads(done.stdout)
    held = [sum(part["events"] for rule in each["rules"] for part in rule["partials"]) for each in changes]
    assert held == [1, 2, 0]
    assert [each["offset"] for each in changes] == sorted(each["offset"] for each in changes)
    assert run("state", "history", service.config, "c77").exit_code == 1


def test_p3_state_is_read_while_the_service_runs(service: Service) -> None:
    """P3: what is seen is what is committed, and a reader takes no lock from the container."""
    service.process([purchase("c1", 0, 1), purchase("c1", 60, 30)])
    with service.container() as container:
        assert got(service, "c1", "--rule", "testing")["rules"][0]["partials"][0]["events"] == 1
        service.produce([purchase("c1", 70, 1), purchase("c1", 90, 30)])
        catch_up(container)
        assert got(service, "c1", "--rule", "testing")["rules"][0]["partials"][0]["events"] == 2
        assert run("state", "scan", service.config).exit_code == 0
        assert len(service.digests()) == 2


def test_diff_names_the_keys_that_differ(service: Service, tmp_path: Path) -> None:
    service.process(many(60))
    assert run("restore", service.config, "--out", tmp_path / "old").exit_code == 0
    same = run("state", "diff", service.config, tmp_path / "old")
    assert (same.exit_code, same.stdout) == (0, "equal\n")
    service.process([purchase("c1", 190, 1), purchase("c1", 195, 1)])
    done = run("state", "diff", service.config, tmp_path / "old", "--json")
    assert done.exit_code == 1
    assert ["c1"] in [each["key"] for each in json.loads(done.stdout)]
    assert run("state", "diff", service.config, tmp_path / "old", tmp_path / "old").exit_code == 0


def test_state_of_rules_that_were_edited_since_is_still_read(service: Service) -> None:
    service.process([purchase("c1", 0, 1), purchase("c1", 60, 30)])
    before = service.digests()
    path = service.config.parent / "rules" / "testing.yml"
    path.write_text(path.read_text().replace("amount < 2", "amount < 3"))
    assert service.digests() == before
    assert got(service, "c1", "--rule", "testing")["rules"][0]["partials"][0]["events"] == 1
