"""`samovar.testing` does what a service does, and says what a test did wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from samovar.testing import Advance, BadTestError, Crash, Driver, Part, same_after_crashes
from tests.faults.stage import Staging
from tests.support.project import ROOT
from tests.tasks.conftest import stage

__all__ = ["stage"]

S = 1_000
T0 = 1_700_000_000_000
TRIED = """
rule: tried
match: |
  sequence by card with maxspan=1m
    [use where amount < $small] as probe with runs=2..
    [use where amount > 90] as big
params: {small: 3}
emit: {probes: count(probe)}
"""
FORGOTTEN = """
rule: forgotten
match: |
  sequence by card with maxspan=1m
    [use where amount == 0] as came
    ![use where amount == 1]
"""
STREAMS = {"use": {"key": "card", "slack": "2s", "idle": "5s"}}


def use(at_ms: int, amount: float, card: str = "c1") -> tuple[str, dict[str, Any]]:
    return "use", {"card": card, "ts": T0 + at_ms, "amount": amount}


def both(**more: Any) -> Driver:
    return Driver.of_rules([TRIED, FORGOTTEN], STREAMS, **more)


INPUT = [use(n * 700 % 41_000, (n * 7 % 5) if n % 6 else 95, f"c{n % 4}") for n in range(60)]


def test_rules_are_texts_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "tried.yml").write_text(TRIED)
    tried: list[Part] = [use(0, 1), use(1, 2), use(2, 95), Advance(T0 + 9 * S)]
    for rules in (TRIED, [TRIED], tmp_path / "rules", [str(tmp_path / "rules" / "tried.yml"), FORGOTTEN]):
        driver = Driver.of_rules(rules, STREAMS).run(*tried)
        assert [(alert["rule"], alert["emit"]) for alert in driver.alerts] == [("tried", {"probes": 2})]
    assert Driver.of_rules(TRIED, STREAMS, params={"small": 1.5}).run(*tried).alerts == []


def test_p1_it_finds_what_a_service_finds(stage: Staging) -> None:
    """The very alerts, ids and all, and the very state."""
    here = stage({"tried": TRIED, "forgotten": FORGOTTEN}, {"use": {**STREAMS["use"], "partitions": 1}}, name="test")
    here.feed("use", *(event for _, event in INPUT))
    here.close()
    driver = Driver.of_rules([TRIED, FORGOTTEN], {"use": {**STREAMS["use"], "topic": "test-use"}}).run(*INPUT)
    assert driver.alerts == here.service.alerts() != []
    assert driver.digest() == here.service.digests()[0]
    assert [letter.value for letter in driver.late] == [row.value for row in here.service.late()] != []


@pytest.mark.parametrize("crash", Crash)
def test_p3_what_is_not_committed_when_it_crashes_is_done_again(crash: Crash) -> None:
    straight = both().run(*INPUT, Advance(T0 + 600 * S))
    driver = both(commit_every=7)
    for number, each in enumerate(INPUT):
        driver.run(each)
        if number % 5 == 0:
            driver.crash(crash)
    driver.run(Advance(T0 + 600 * S))
    assert driver.outcome() == straight.outcome()


def test_what_is_read_is_what_is_committed() -> None:
    driver = both(commit_every=10).run(use(0, 1), use(1, 2), use(2, 95), use(9 * S, 50))
    assert (driver.alerts, driver.journal) == ([], [])
    driver.commit()
    assert [alert["rule"] for alert in driver.alerts] == ["tried"]
    assert [entry.kind for entry in driver.journal] == ["rules"]


def test_rules_come_out_of_crashes_as_they_went_in() -> None:
    same_after_crashes(both, *INPUT, Advance(T0 + 600 * S))


def test_a_service_file_says_the_rest() -> None:
    """The rules, and the task with its stores, emits and parameters."""
    config = ROOT / "examples" / "card-profiles" / "service.yml"
    task = Driver.of_service(config, "profiles")
    bought = {"card": "c1", "amount": 20, "country": "DE", "ts": T0}
    task.send("purchase", bought, b"{", {**bought, "ts": T0 + 1, "amount": 60})
    assert [each.value["times_mean"] for each in task.emitted("enriched")] == [None, 3.0]
    assert [letter.reason for letter in task.dead] == ["NOT_JSON"]
    rules = Driver.of_service(config)
    away = {"card": "c1", "country": "SG", "usual_country": "DE", "purchases": 3, "times_mean": 9, "ts": T0}
    rules.send("purchase", {**bought, "ts": T0 + 9 * S})
    rules.send("enriched", away, {**away, "ts": T0 + 1}, {**away, "ts": T0 + 9 * S, "country": "DE"})
    assert [alert["rule"] for alert in rules.alerts] == ["strange-country"]
    with pytest.raises(BadTestError, match="there are: profiles"):
        Driver.of_service(config, "profile")


def test_a_difference_is_shown() -> None:
    made: list[Driver] = []

    def make() -> Driver:
        made.append(both() if not made else Driver.of_rules(TRIED, STREAMS))
        return made[-1]

    with pytest.raises(AssertionError, match=r"alerts differ after crashes with the store kept, 1 records per commit:"):
        same_after_crashes(make, use(0, 0), Advance(T0 + 90 * S))


def test_time_goes_on_as_the_clock_does() -> None:
    driver = both().run(use(0, 0))
    assert driver.event_time == T0 - 2 * S
    driver.pass_time("5s")
    driver.pass_time(62 * S)
    assert (driver.alerts, driver.event_time) == ([], T0 + 60 * S)
    driver.pass_time(1)
    assert [alert["at"] for alert in driver.alerts] == [T0 + 60 * S]
    driver.advance(T0 + 3_600 * S)
    assert driver.clock.now_ms > T0 + 3_600 * S


def test_late_and_bad_messages_are_put_aside() -> None:
    driver = both().run(use(10 * S, 5), use(0, 5), ("use", b"[]"), ("use", {"card": 7}))
    assert [(letter.reason, letter.message) for letter in driver.late] == [("late", "late by 8000 ms")]
    assert [letter.reason for letter in driver.dead] == ["NOT_AN_OBJECT", "MISSING_TIME"]
    driver.send("use", {"card": "c1", "ts": "2099-01-01T00:00:00Z"}, log_time=T0)
    assert driver.dead[-1].reason == "FROM_THE_FUTURE"
    driver.send("use", {"card": "c1", "ts": "2099-01-01T00:00:00Z"})
    assert len(driver.dead) == 3


def test_state_is_read_by_key() -> None:
    driver = both().run(use(0, 0), use(1, 1, "c2"), use(9 * S, 50, "c3"))
    (state,) = driver.state("c1")
    assert [(rule["rule"], len(rule["partials"])) for rule in state["rules"] if rule["partials"]] != []
    assert driver.state("nobody") == []


@pytest.mark.parametrize(
    ("do", "words"),
    [
        (lambda: Driver.of_rules("rule: a\nmatch: nothing\n", STREAMS), "error"),
        (
            lambda: Driver.of_rules(TRIED, {"use": {"key": "card", "slack": "long"}}),
            "the stream `use`: .*`long` is not a time",
        ),
        (lambda: Driver.of_rules("nowhere/", STREAMS), "nowhere"),
        (lambda: both().send("uses", {}), "there is no stream `uses`; there are: use"),
        (lambda: both().pass_time("10 minutes"), "`10 minutes` is not a time"),
        (lambda: both().advance(5), "event time begins with the first event"),
        (lambda: both().emitted("a"), "nothing emits to `a`"),
        (lambda: both().store("a"), "there is no store `a`"),
    ],
)
def test_what_a_test_did_wrong_is_said(do: Any, words: str) -> None:
    with pytest.raises(BadTestError, match=f"(?s){words}"):
        do()
