"""The HTTP API, asked over a socket: status, alerts, keys, rules, streams; and what it answers to nonsense."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.log import Append
from samovar.service.alerts.follow import Follower
from samovar.service.alerts.index import AlertsIndex
from samovar.tasks.model.clock import SystemClock
from samovar.tasks.runtime.heartbeat import HeartbeatReporter
from samovar.tasks.runtime.metrics import MetricsSampler
from tests.support.http_server import Served, listening_to, served, wait_for
from tests.support.small_service import RULES, make, many, purchase


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service with a history, served. Tests only read it, or write what no other test reads."""
    service = make(tmp_path_factory.mktemp("http") / "s")
    service.process(
        [*many(120), purchase("open", 400, 1), purchase("open", 410, 1.5), purchase("open", 500, 3)], snapshot=True
    )
    with service.log() as log:
        log.append([Append(topic="purchase", records=[(b"x", b"no json"), (b"x", b'{"card": "x"}')])])
    service.process([purchase("c1", 600, 5)])
    with served(service) as made:
        made.caught_up()
        yield made


# ---------------------------------------------------------------- health and status


def test_it_lives_and_says_why_it_is_not_ready_while_no_container_runs(site: Served) -> None:
    assert site.get("/live") == {"live": True}
    found = site.client.get("/ready")
    assert (found.status_code, found.json()) == (503, {"ready": False, "why": "no container is in the group"})


def test_it_is_ready_and_caught_up_when_a_container_is_in_the_group(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.produce(many(5))
    with served(service) as site, service.container() as container:
        observer = MetricsSampler(container, SystemClock())
        reporter = HeartbeatReporter(site.log, "s", observer, address=site.world.place.advertised)
        observer(now=True)
        reporter.report()
        wait_for(lambda: site.client.get("/ready").status_code == 200)
        wait_for(lambda: site.client.get("/caught-up").status_code == 200)
        found = site.get("/status")
        assert (found["running"], found["caught_up"], found["lag"]) == (True, True, 0)
        assert found["containers"][0]["address"] == site.world.place.advertised
        assert found["counts"]["events"] == 5
        assert {each["rule"] for each in site.get("/status/rules")["rules"]} == set(RULES)
        text = site.client.get("/metrics").text
        assert (
            'samovar_rule_matches_total{rule="testing",slot="0"}' in text or "samovar_rule_matches_total{slot" in text
        )
        assert "samovar_caught_up 1.0" in text
        assert 'samovar_events_total{slot="0"} 5.0' in text


def test_the_status_is_that_of_the_command(site: Served) -> None:
    found = site.get("/status")
    assert {(task["partition"], task["life"]) for task in found["tasks"]} == {(0, "stopped"), (1, "stopped")}
    assert (found["service"], found["log"], found["lag"]) == ("s", "embedded", 0)
    wait_for(lambda: len(site.get("/status/history")["samples"]) > 1)


def test_snapshots_are_listed(site: Served) -> None:
    found = site.get("/snapshots")["tasks"]
    assert [task["partition"] for task in found] == [0, 1]
    assert all(task["snapshots"][0]["bytes"] > 0 for task in found)


# ---------------------------------------------------------------- alerts


def all_alerts(site: Served, **params: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after: str | None = None
    while True:
        page = site.get("/alerts", params={**params, "limit": 3, **({"after": after} if after else {})})
        found += page["alerts"]
        after = page["next"]
        if after is None:
            assert page["total"] == len(found)
            return found


def test_alerts_are_found_in_pages_newest_first_each_once(site: Served) -> None:
    found = all_alerts(site)
    assert len(found) > 6
    assert [(each["at"], each["id"]) for each in found] == sorted(((e["at"], e["id"]) for e in found), reverse=True)
    assert len({each["id"] for each in found}) == len(found)


def test_alerts_are_found_by_rule_key_and_time(site: Served) -> None:
    every = all_alerts(site)
    rule, key = every[0]["rule"], every[0]["key_text"]
    assert all_alerts(site, rule=rule) == [each for each in every if each["rule"] == rule]
    assert all_alerts(site, key=key) == [each for each in every if each["key_text"] == key]
    middle = every[len(every) // 2]["at"]
    assert all_alerts(site, **{"from": middle}) == [each for each in every if each["at"] >= middle]
    assert all_alerts(site, to=middle) == [each for each in every if each["at"] < middle]
    assert all_alerts(site, rule="none") == []


def test_an_alert_has_its_events_the_keys_others_and_its_why(site: Served) -> None:
    alert = all_alerts(site, rule="testing")[0]
    found = site.get(f"/alerts/{alert['id']}")
    steps = [each["step"] for each in found["timeline"] if each["step"]]
    assert steps[-1] == "big"
    assert set(steps[:-1]) == {"probe"}
    assert len(steps) == found["events"] == alert["events"]
    matched = [each["event"] for each in found["timeline"] if each["step"]]
    assert all(event["card"] == alert["key_text"] for event in matched)
    assert matched[-1]["amount"] > 200
    others = [each for each in found["timeline"] if each["step"] is None]
    assert others, "the key has other events around it"
    assert all(each["event"]["card"] == alert["key_text"] for each in others)
    times = [each["time"] for each in found["timeline"]]
    assert times == sorted(times)
    assert found["timeline"][-1]["values"].keys() <= {"card", "amount", "country"}
    told = [sentence for each in found["why"]["events"] for sentence in each["told"]]
    assert "completes a match" in told
    assert "rule: testing" in found["rule_text"]
    assert found["rule_current"] is True


def test_an_unknown_alert_is_a_problem(site: Served) -> None:
    found = site.refused("/alerts/nope", 404, "unknown-alert")
    assert found["type"] == "urn:samovar:error:unknown-alert"
    assert found["hint"]


def test_alerts_are_counted_over_time_and_their_values_spread(site: Served) -> None:
    every = all_alerts(site)
    assert sum(site.get("/alerts/counts")["total"]) == len(every)
    spread = site.get("/alerts/values", params={"rule": "testing", "field": "duration_ms"})
    assert spread["count"] == sum(each["rule"] == "testing" for each in every)
    assert sum(each["count"] for each in spread["buckets"]) == spread["count"]


# ---------------------------------------------------------------- live alerts


def alerting(card: str, second: int) -> list[dict[str, Any]]:
    """Three that match, and one with which event time passes them."""
    amounts = [(0, 1), (1, 1), (2, 900), (30, 3)]
    return [purchase(card, second + later, amount) for later, amount in amounts]


ONE = {"rule": "testing"}


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Served]:
    service = make(tmp_path / "s")
    service.process(alerting("first", 0))
    with served(service) as site:
        site.caught_up()
        yield site


def test_a_live_alert_comes_and_a_gap_is_filled_from_where_it_began(fresh: Served) -> None:
    service = fresh.service
    with listening_to(fresh, params=ONE) as stream:
        hello = stream.next()
        assert hello["event"] == "hello"
        service.process(alerting("second", 100))
        seen = stream.next()
        assert (seen["event"], seen["data"]["key_text"]) == ("alert", "second")
    service.process(alerting("third", 200))  # nobody listens
    with listening_to(fresh, params=ONE, headers={"last-event-id": seen["id"]}) as stream:
        assert stream.next()["event"] == "hello"
        missed = stream.next()
        assert missed["data"]["key_text"] == "third"
        service.process(alerting("fourth", 300))
        assert stream.next()["data"]["key_text"] == "fourth"
    with listening_to(fresh, params={**ONE, "from": hello["id"]}) as stream:
        stream.next()
        assert [stream.next()["data"]["key_text"] for _ in range(3)] == ["second", "third", "fourth"]


def test_a_lost_or_damaged_index_is_made_anew(fresh: Served) -> None:
    before = all_alerts(fresh)
    path = fresh.world.index.path
    assert before
    fresh.world.follower.close()
    fresh.world.index.close()
    path.write_bytes(b"not a database" * 1000)
    index = AlertsIndex(path, "s-alerts")
    world = fresh.world
    follower = Follower(world.settings, fresh.log, index, world.broadcaster.publish, world.tokens)
    follower.start()
    fresh.world.index, fresh.world.follower = index, follower
    fresh.caught_up()
    assert all_alerts(fresh) == before


def test_a_listener_may_ask_for_one_rule_or_key(fresh: Served) -> None:
    with listening_to(fresh, params={"key": "wanted"}) as stream:
        stream.next()
        fresh.service.process([*alerting("other", 100), *alerting("wanted", 200)])
        assert stream.next()["data"]["key_text"] == "wanted"


def test_a_position_that_is_none_is_a_problem(fresh: Served) -> None:
    fresh.refused("/alerts/live?from=1.2.3.4.5", 400, "bad-position")
    fresh.refused("/alerts/live?from=-1.2", 400, "bad-position")


def test_a_position_older_than_the_index_says_how_much_is_missing(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    for number in range(4):
        service.process(alerting(f"k{number}", number * 100))
    with served(service) as site:
        site.world.follower.close()
        site.world.index.renew()
        site.world.index.most = 1
        world = site.world
        world.follower = Follower(world.settings, site.log, world.index, world.broadcaster.publish, world.tokens)
        world.follower.start()
        site.caught_up()
        with listening_to(site, params={"from": "0.0"}) as stream:
            stream.next()
            gap = stream.next()
            assert gap["event"] == "gap"
            assert gap["data"]["skipped"] > 0


# ---------------------------------------------------------------- keys


def test_a_key_has_its_partial_matches_and_what_they_wait_for(site: Served) -> None:
    found = site.get("/keys/open")
    rules = {rule["rule"]: rule for held in found["held"] for rule in held["rules"]}
    (partial,) = rules["testing"]["partials"]
    assert (partial["step"], partial["events"]) == ("probe", 2)
    assert "big" in partial["waits_for"]
    assert [event["event"]["amount"] for event in partial["bound"]] == [1, 1.5]
    assert found["missing"] == []


def test_a_keys_alerts_are_with_it(site: Served) -> None:
    alert = all_alerts(site)[0]
    assert alert["id"] in [each["id"] for each in site.get(f"/keys/{alert['key_text']}")["alerts"]]


def test_a_keys_events_are_its_own_newest_first(site: Served) -> None:
    found = site.get("/keys/c1/events")
    assert {event["event"]["card"] for event in found["events"]} == {"c1"}
    assert found["events"][0]["event"]["amount"] == 5
    assert found["scanned"]["complete"] is True
    times = [event["time"] for event in found["events"]]
    assert times == sorted(times, reverse=True)


def test_a_keys_events_go_further_back_page_by_page(site: Served) -> None:
    whole = site.get("/keys/c1/events")["events"]
    pages, before = [], None
    while before != "":
        page = site.get("/keys/c1/events", params={"limit": 2} | ({"before": before} if before else {}))
        pages.append(page["events"])
        before = page["scanned"]["older"] or ""
        assert page["scanned"]["complete"] is (before == "")
    assert len(pages) == -(-len(whole) // 2) > 1
    assert [event for page in pages for event in page] == whole
    found = site.refused("/keys/c1/events?before=purchase/0", 400, "bad-mark")
    assert "scanned.older" in found["hint"]
    past = {"before": "none/7:3,purchase/0:0"}
    assert site.get("/keys/c1/events", params=past)["events"] == []


def test_why_a_rule_did_not_fire(site: Served) -> None:
    found = site.get("/keys/open/why", params={"rule": "testing"})
    assert found["matches"] == 0
    assert any("waited for big" in sentence for sentence in found["conclusion"])
    told = [event["told"] for event in found["events"]]
    assert told[:2] == [["taken as probe"], ["taken as probe"]]
    assert "amount is 3" in told[2][0]


def test_a_key_that_has_nothing_is_empty_and_an_unknown_rule_is_a_problem(site: Served) -> None:
    assert site.get("/keys/nobody")["held"] == []
    assert site.refused("/keys/c1?rule=tasting", 404, "unknown-rule")["hint"] == "did you mean `testing`?"


def test_keys_with_state_are_listed(site: Served) -> None:
    found = site.get("/keys", params={"rule": "testing"})
    assert "open" in {each["key_text"] for each in found["keys"]}
    assert site.get("/keys?limit=1")["more"] is True


# ---------------------------------------------------------------- rules


def test_rules_are_listed_with_their_text(site: Served) -> None:
    found = {each["rule"]: each for each in site.get("/rules")["rules"]}
    assert set(found) == set(RULES)
    assert (found["testing"]["form"], found["testing"]["by"]) == ("sequence", ["card"])
    assert site.get("/rules/testing")["text"].strip() == RULES["testing"].strip()
    assert site.client.get("/api/v1/rules/testing/svg").text.startswith("<svg")
    site.refused("/rules/none", 404, "unknown-rule")


def test_a_rule_that_is_written_is_checked_against_the_streams(site: Served) -> None:
    good = site.post("/rules/check", {"text": RULES["testing"]})
    assert (good["ok"], good["rule"]) == (True, "testing")
    bad = site.post("/rules/check", {"text": RULES["testing"].replace("amount < 2", "amonut < 2")})
    assert bad["ok"] is False
    (finding,) = [each for each in bad["findings"] if each["level"] == "error"]
    assert RULES["testing"].splitlines()[finding["line"] - 1].strip().startswith("[purchase where amount")
    unknown = site.post("/rules/check", {"text": RULES["testing"].replace("[purchase", "[login", 1)})
    assert [each["id"] for each in unknown["findings"]] == ["unknown-type"]


def test_a_rules_tests_are_run(site: Served) -> None:
    text = RULES["testing"] + (
        "tests:\n"
        "  - name: fires\n"
        '    events: ["+0s purchase {card: a, amount: 1}", "+1s purchase {card: a, amount: 1}",'
        ' "+2s purchase {card: a, amount: 900}"]\n'
        "    expect: [{key: {card: a}}]\n"
        "  - name: fails\n"
        '    events: ["+0s purchase {card: a, amount: 1}"]\n'
        "    expect: [{key: {card: a}}]\n"
    )
    found = site.post("/rules/test", {"text": text})
    assert (found["passed"], found["failed"]) == (1, 1)
    assert [each["passed"] for each in found["tests"]] == [True, False]
    assert found["tests"][1]["why"]


def test_a_rule_is_explained_and_drawn(site: Served) -> None:
    found = site.post("/rules/explain", {"text": RULES["testing"]})
    assert found["sections"]
    assert found["svg"].startswith("<svg")
    bad = site.post("/rules/explain", {"text": "rule: x"}, 422)
    assert bad["code"] == "rule-errors"
    assert bad["findings"]


def test_a_rule_is_tried_on_recent_traffic(site: Served) -> None:
    text = "rule: dear\nmatch: |\n  sequence by card with maxspan=0ms\n    [purchase where amount >= 900] as p\n"
    found = site.post("/rules/try", {"text": text, "minutes": 60 * 24})
    wanted = sum(event["amount"] >= 900 for event in many(120))
    assert found["matches"] == wanted
    assert found["complete"] is True
    assert found["bad"] == 2
    assert found["alerts"][0]["timeline"][0]["event"]["amount"] >= 900
    few = site.post("/rules/try", {"text": text, "minutes": 60 * 24, "max_events": 10})
    assert few["complete"] is False
    assert few["events"] <= 10


def test_an_editor_can_complete_fields_and_functions(site: Served) -> None:
    found = site.get("/completions")
    assert found["types"]["purchase"]["amount"] == "double"
    assert {"lower", "distance_km"} <= {each["name"] for each in found["functions"]}


# ---------------------------------------------------------------- streams


def test_events_are_taken_and_are_durable_when_it_answers(fresh: Served) -> None:
    lines = "\n".join(json.dumps(event) for event in alerting("posted", 500))
    kind = {"content-type": "application/x-ndjson"}
    found = fresh.client.post("/api/v1/streams/purchase/events", content=lines, headers=kind)
    assert found.json() == {"written": 4, "bad": []}
    newest = fresh.get("/streams/purchase/events?limit=4")["events"]
    assert {event["event"]["card"] for event in newest} == {"posted"}
    one = fresh.post("/streams/purchase/events", purchase("single", 600, 3))
    assert one["written"] == 1
    with fresh.service.container():
        pass
    wait_for(lambda: any(each["key_text"] == "posted" for each in fresh.get("/alerts")["alerts"]))


def test_one_bad_line_and_nothing_is_written(fresh: Served) -> None:
    before = len(fresh.get("/streams/purchase/events?limit=500")["events"])
    lines = json.dumps(purchase("a", 1, 1)) + "\n{not json\n"
    found = fresh.client.post("/api/v1/streams/purchase/events", content=lines)
    assert (found.status_code, found.json()["code"]) == (422, "bad-events")
    assert found.json()["errors"][0]["where"].startswith("line 2")
    assert len(fresh.get("/streams/purchase/events?limit=500")["events"]) == before
    assert fresh.post("/streams/none/events", {}, 404)["code"] == "unknown-stream"


def test_dead_letters_are_shown_and_put_back(fresh: Served) -> None:
    with fresh.service.log() as log:
        log.append([Append(topic="purchase", records=[(b"x", b"no json")])])
    fresh.service.process([])
    found = fresh.get("/dead-letters")
    (letter,) = found["letters"]
    assert (letter["reason"], letter["stream"], found["total"]) == ("NOT_JSON", "purchase", 1)
    plan = fresh.post("/dead-letters/redrive", {"letters": [letter["letter"]]})
    assert plan["plan"]["letters"] == 1
    done = fresh.post("/dead-letters/redrive", {"letters": [letter["letter"]], "dry_run": False})
    assert done["redriven"] == 1
    again = fresh.post("/dead-letters/redrive", {"dry_run": False})
    assert again["redriven"] == 0
    assert fresh.get("/dead-letters")["letters"][0]["redriven"] is True
    assert "dead letters redriven" in [entry["what"] for entry in fresh.get("/audit")["entries"]]


def test_late_events_are_shown(fresh: Served) -> None:
    fresh.service.process([purchase("late", 1000, 3)])
    fresh.service.process([purchase("late", 1, 3)])
    (found,) = fresh.get("/late")["events"]
    assert found["value"]["card"] == "late"
    assert found["late_ms"] > 0


# ---------------------------------------------------------------- labels


def test_a_label_counts_for_the_rules_precision_on_every_node(fresh: Served) -> None:
    fresh.service.process([*alerting("a", 100), *alerting("b", 200)])
    wait_for(lambda: fresh.get("/alerts", params=ONE)["total"] == 3)
    first, second, _ = fresh.get("/alerts", params=ONE)["alerts"]
    fresh.put(f"/alerts/{first['id']}/label", {"label": "confirmed", "note": "the bank called"})
    fresh.put(f"/alerts/{second['id']}/label", {"label": "false_alarm"})
    assert fresh.get(f"/alerts/{first['id']}")["labels"][0]["note"] == "the bank called"
    labelled = {each["id"] for each in fresh.get("/alerts?label=open")["alerts"]}
    assert not labelled & {first["id"], second["id"]}
    assert fresh.get("/rules/testing")["precision"] == 0.5
    with served(fresh.service) as other:
        other.caught_up()
        wait_for(lambda: other.get("/rules/testing")["precision"] == 0.5)
    assert fresh.put(f"/alerts/{first['id']}/label", {"label": "nonsense"}, 422)["code"] == "bad-request"


# ---------------------------------------------------------------- nonsense


def test_nonsense_is_a_problem_and_never_a_fault(site: Served) -> None:
    site.refused("/nowhere", 404, "not-found")
    assert site.client.delete("/api/v1/status").json()["code"] == "bad-method"
    site.refused("/alerts?limit=0", 422, "bad-request")
    site.refused("/alerts?after=x", 400, "bad-position")
    assert site.post("/rules/check", {"text": 7}, 422)["errors"][0]["where"] == "body.text"
    assert site.post("/rules/check", {"text": "x", "more": 1}, 422)["code"] == "bad-request"
