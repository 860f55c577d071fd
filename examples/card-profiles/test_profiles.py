"""The task, tested with no log and no server: `pytest examples/card-profiles`."""

from __future__ import annotations

from typing import Any

from profiles import DAY_MS, CardProfiles

from samovar.testing import Advance, Driver, same_after_crashes

STREAMS = {"purchase": {"key": "card"}}


def driver() -> Driver:
    return Driver.of_task(CardProfiles, STREAMS, emits=["enriched"], stores=["profile"], params={"dormant_days": 90})


def purchase(day: int, amount: float, country: str = "DE", card: str = "c1") -> tuple[str, dict[str, Any]]:
    return "purchase", {"card": card, "amount": amount, "country": country, "ts": day * DAY_MS}


def test_a_purchase_is_compared_with_those_before_it() -> None:
    here = driver().run(purchase(1, 20), purchase(2, 40), purchase(3, 90, "SG"), purchase(3, 1, card="c2"))
    found = [
        (each.value["purchases"], each.value["usual_country"], each.value["times_mean"])
        for each in here.emitted("enriched")
    ]
    assert found == [(0, None, None), (1, "DE", 2.0), (2, "DE", 3.0), (0, None, None)]
    assert here.store("profile").get("c1")["mean"] == 50


def test_a_card_that_slept_for_ninety_days_was_dormant() -> None:
    here = driver().run(purchase(1, 20), purchase(80, 20), Advance(120 * DAY_MS), purchase(160, 20), purchase(171, 20))
    assert [each.value["was_dormant"] for each in here.emitted("enriched")] == [False, False, False, False]
    here.run(Advance(262 * DAY_MS), purchase(263, 20))
    assert here.emitted("enriched")[-1].value["was_dormant"]


def test_a_crash_changes_nothing() -> None:
    inputs = [purchase(n, 10 + n * 7 % 50, "DE" if n % 4 else "FR", f"c{n % 3}") for n in range(1, 20)]
    same_after_crashes(driver, *inputs, Advance(300 * DAY_MS))
