"""Rules published over HTTP: looked at first, written as looked at, taken by a running container; backtests as jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http_server import Served, served, wait_for
from tests.support.small_service import RULES, START, catch_up, make, many, purchase

DEAR = """rule: dear
title: A dear one
match: |
  sequence by card with maxspan=0ms
    [purchase where amount > $limit] as p
params: {limit: 5000}
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Served]:
    service = make(tmp_path / "s")
    service.process(many(60))
    with served(service) as made:
        made.caught_up()
        yield made


def test_a_rule_is_published_as_it_was_planned_and_a_running_container_takes_it(site: Served) -> None:
    with site.service.container() as container:
        planned = site.post("/rules/plan", {"text": DEAR})
        (rule,) = planned["plan"]["rules"]
        assert (rule["name"], rule["state"]) == ("dear", "new")
        assert sorted(planned["plan"]["seeds"]) == sorted(RULES)
        entry = site.post("/rules/publish", {"text": DEAR, "note": "first", "digest": planned["digest"]})
        assert (entry["rule"], entry["number"], entry["author"], entry["note"]) == ("dear", 1, "local", "first")
        wait_for(lambda: "dear" in {each["rule"] for each in site.get("/rules")["rules"]})
        shown = site.get("/rules/dear")
        assert (shown["status"], shown["number"], shown["text"]) == ("live", 1, DEAR)
        catch_up(container)
    site.service.process([purchase("rich", 2000, 9000), purchase("rich", 2100, 1)])
    wait_for(lambda: site.get("/alerts?rule=dear")["total"] == 1)
    (alert,) = site.get("/alerts?rule=dear")["alerts"]
    assert alert["title"] == "A dear one"
    assert site.get(f"/alerts/{alert['id']}")["rule_text"] == DEAR
    assert ("local", "rules.publish") in [(e["who"], e["what"]) for e in site.get("/audit")["entries"]]


def test_a_change_that_was_overtaken_is_not_written(site: Served) -> None:
    planned = site.post("/rules/plan", {"text": DEAR})
    site.post("/rules/publish", {"text": DEAR.replace("5000", "6000")})
    refused = site.post("/rules/publish", {"text": DEAR, "digest": planned["digest"]}, 409)
    assert refused["code"] == "change-overtaken"
    assert site.get("/rules/dear/history")["entries"][0]["number"] == 1


def test_a_rule_that_did_not_change_is_refused(site: Served) -> None:
    site.post("/rules/publish", {"text": DEAR})
    for path in ("/rules/plan", "/rules/publish"):
        assert site.post(path, {"text": DEAR}, 409)["code"] == "rule-unchanged"
    assert site.post("/rules/dear/rollback", {"to": 1}, 409)["code"] == "rule-unchanged"
    assert [each["number"] for each in site.get("/rules/dear/history")["entries"]] == [1]


def test_a_bad_rule_is_refused_with_its_findings_and_the_old_one_goes_on(site: Served) -> None:
    bad = site.post("/rules/publish", {"text": RULES["testing"].replace("amount <", "amonut <")}, 422)
    assert bad["code"] == "rule-errors"
    assert bad["findings"][0]["line"] > 1
    assert site.get("/rules/testing")["number"] is None


def test_a_rule_is_disabled_enabled_and_rolled_back(site: Served) -> None:
    site.post("/rules/publish", {"text": DEAR})
    site.post("/rules/publish", {"text": DEAR.replace("5000", "6000")})
    assert site.post("/rules/dear/disable", {"note": "noisy"})["status"] == "disabled"
    wait_for(lambda: site.get("/rules/dear")["status"] == "disabled")
    assert site.post("/rules/dear/enable", {})["status"] == "live"
    assert site.post("/rules/dear/rollback", {"to": 1})["number"] == 5
    history = site.get("/rules/dear/history")["entries"]
    assert [entry["number"] for entry in history] == [5, 4, 3, 2, 1]
    assert history[0]["text"] == history[-1]["text"] == DEAR
    assert "+params: {limit: 6000}" in site.get("/rules/dear/diff?a=1&b=2")["diff"]
    assert site.post("/rules/dear/rollback", {"to": 77}, 404)["code"] == "unknown-number"
    assert site.post("/rules/nope/disable", {}, 404)["code"] == "unknown-rule"


def test_a_list_is_looked_at_changed_and_tells_who_did_it(site: Served) -> None:
    text = DEAR.replace("amount > $limit", "amount > $limit and country in $risky") + "lists: {risky: [AT, BE]}\n"
    site.post("/rules/publish", {"text": text})
    found = site.get("/lists/risky")
    assert (found["items"], found["kind"], found["rules"], found["changes"]) == (["AT", "BE"], "text", ["dear"], [])
    planned = site.post("/lists/risky/plan", {"add": ["CY", "AT"]})
    assert (planned["added"], planned["removed"], planned["items"]) == (1, 0, 3)
    (rule,) = planned["rules"]
    assert (rule["rule"], rule["state"], "from here on the new list counts" in rule["told"]) == ("dear", "moved", True)
    assert site.get("/lists/risky")["items"] == ["AT", "BE"]  # a plan writes nothing
    site.post("/lists/risky/add", {"items": ["CY"], "note": "seen on Monday"})
    site.post("/lists/risky/remove", {"items": ["AT"]})
    found = site.get("/lists/risky")
    assert (found["items"], found["changes_total"]) == (["BE", "CY"], 2)
    last, first = found["changes"]
    assert (first["add"], first["remove"], first["author"], first["note"]) == (["CY"], [], "local", "seen on Monday")
    assert (last["add"], last["remove"], last["items"]) == ([], ["AT"], 2)
    assert site.post("/lists/risky/plan", {"remove": ["AT"]}, 409)["code"] == "list-unchanged"
    assert site.get("/lists/risk", 404)["hint"] == "did you mean `risky`?"
    assert [each["what"] for each in site.get("/audit")["entries"]][:2] == ["lists", "lists"]


def test_an_alarm_of_the_storm_guard_is_shown_and_not_labelled(tmp_path: Path) -> None:
    service = make(tmp_path / "s")
    service.config.write_text(service.config.read_text() + "storm: {alerts: 1, per: 1h}\n")
    (tmp_path / "s" / "rules" / "dear.yml").write_text(DEAR)
    service.process([purchase("rich", second, 9000) for second in range(4)])
    service.settle()
    with served(service) as site:
        site.caught_up()
        alarm, alert = site.get("/alerts?rule=dear")["alerts"]
        assert (alarm["alarm"], alarm["key"], alert["alarm"]) == ("storm", {}, None)
        assert alarm["message"] == "dear passed 1 alert in 1 hour: the others are kept back and counted"
        found = site.get(f"/alerts/{alarm['id']}")
        assert (found["timeline"], found["why"], found["rule_text"]) == ([], None, DEAR)
        assert site.put(f"/alerts/{alarm['id']}/label", {"label": "confirmed"}, 409)["code"] == "alarm-label"


def test_a_backtest_is_a_job_that_tells_how_far_it_is(site: Served) -> None:
    text = DEAR.replace("5000", "800")
    begun = site.post("/rules/backtest", {"text": text, "from": START, "to": START + 3_600_000}, 202)
    wait_for(lambda: site.get(f"/jobs/{begun['job']}")["state"] != "running")
    done = site.get(f"/jobs/{begun['job']}")
    assert (done["state"], done["progress"], done["problem"]) == ("done", 1.0, None)
    (rule,) = done["result"]["rules"]
    assert rule["rule"] == "dear"
    assert done["result"]["events"] == 60
    site.refused("/jobs/none", 404, "unknown-job")
    wrong = site.post("/rules/backtest", {"text": text, "from": START, "to": START}, 202)
    wait_for(lambda: site.get(f"/jobs/{wrong['job']}")["state"] == "failed")
    assert site.get(f"/jobs/{wrong['job']}")["problem"]["code"] == "backtest-times"


def test_a_text_is_never_taken_for_a_path(site: Served) -> None:
    """The backtest takes files and folders as well: what comes by HTTP must not name one."""
    for text in ("/etc/passwd", str(site.service.config.parent / "rules"), "rules/testing.yml"):
        assert site.post("/rules/backtest", {"text": text}, 422)["code"] == "rule-errors"
        assert site.post("/rules/publish", {"text": text}, 422)["code"] == "rule-errors"
        assert site.post("/rules/try", {"text": text}, 422)["code"] == "rule-errors"
