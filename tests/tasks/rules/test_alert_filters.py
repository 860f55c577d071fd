"""The filters between matches and alerts, one by one: shadow, and the rate limit of each rule."""

from __future__ import annotations

import json
from collections.abc import Sequence

from samovar.patterns.engine.matcher import MatchHeader
from samovar.state.memory import MemoryStore
from samovar.tasks.model.plan import PublishedRule
from samovar.tasks.model.results import Counts
from samovar.tasks.rules.alert_filter import Alarm, Alert, ShadowFilter
from samovar.tasks.rules.rate_limiter import AlertRateLimiter, limits_in, limits_row

HOUR = 3_600_000


def match(at: int, rule: str = "r", *, row: int = 0, muted: bool = False) -> MatchHeader:
    return MatchHeader(row, rule, "v1", f"{rule}-{at}-{row}", at, at, muted)


def kinds(alerts: Sequence[Alert]) -> list[str]:
    """Of each: `alert`, or the kind of alarm."""
    return ["alert" if isinstance(each, MatchHeader) else json.loads(each.record[1] or b"")["alarm"] for each in alerts]


# ---------------------------------------------------------------- shadow


def test_a_task_without_special_rules_looks_at_nothing() -> None:
    assert ShadowFilter([PublishedRule(id="r", version="v", text="text")]).is_idle
    assert not ShadowFilter(
        [PublishedRule(id="r", version="v", text="text"), PublishedRule(id="s", version="v", text="text", shadow=True)]
    ).is_idle
    assert not ShadowFilter([PublishedRule(id="r", version="v", text="text", alerts_from_ms=5)]).is_idle


def test_muted_matches_are_counted_per_rule_and_not_raised() -> None:
    found, counts = ShadowFilter([PublishedRule(id="s", version="v", text="text", shadow=True)]), Counts()
    loud, alarm = match(1), Alarm("x", (b"r", b"{}"))
    assert found.left([loud, match(1, "s", muted=True), alarm, match(2, "s", muted=True)], counts) == [loud, alarm]
    assert (counts.muted, dict(found.muted)) == (2, {"s": 2})


# ---------------------------------------------------------------- the rate limit


def test_without_limits_nothing_is_looked_at() -> None:
    assert AlertRateLimiter({}, MemoryStore()).is_idle


def test_the_limit_is_of_one_window_and_one_rule() -> None:
    limiter, counts = AlertRateLimiter({"r": (2, HOUR)}, MemoryStore()), Counts()
    first = limiter.left([match(1), match(2), match(3), match(4), match(4, "other")], counts)
    assert kinds(first) == ["alert", "alert", "storm", "alert"]
    assert counts.throttled == 2
    assert limiter.standing == {"r": 2}
    assert kinds(limiter.left([match(HOUR + 1)], counts)) == ["alert"]


def test_matches_of_one_moment_share_one_fate() -> None:
    """So that it makes no difference where a batch ends."""
    at_once, one_by_one = (AlertRateLimiter({"*": (2, HOUR)}, MemoryStore()) for _ in range(2))
    counts = Counts()
    moments = [match(1), *(match(2, row=row) for row in range(4)), match(3)]
    expected = at_once.left(moments, counts)
    assert kinds(expected) == ["alert"] * 5 + ["storm"]
    assert [each for moment in moments for each in one_by_one.left([moment], counts)] == expected


def test_a_storm_is_over_after_a_quiet_window_and_says_how_many_were_kept_back() -> None:
    limiter, counts = AlertRateLimiter({"r": (1, HOUR)}, MemoryStore()), Counts()
    limiter.left([match(1), match(2), match(3)], counts)
    over = limiter.left([match(2 * HOUR + 1)], counts)
    assert kinds(over) == ["storm-over", "alert"]
    assert isinstance(over[0], Alarm)
    assert json.loads(over[0].record[1] or b"")["emit"]["kept_back"] == 2
    assert limiter.standing == {}


def test_a_restart_goes_on_counting_where_the_commit_was() -> None:
    store, counts = MemoryStore(), Counts()
    limits = {"r": (2, HOUR)}
    before = AlertRateLimiter(limits, store)
    before.left([match(1), match(2)], counts)
    store.write([*before.changes(), *limits_row(limits)])
    assert before.changes() == []
    after = AlertRateLimiter(limits_in(store), store)
    assert kinds(after.left([match(3)], counts)) == ["storm"]
