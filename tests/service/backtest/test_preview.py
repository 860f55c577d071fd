"""Previews of a rule: exact for the keys that they look at, and honest about the others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from samovar.common.errors import Refused
from samovar.patterns.engine.matcher import KeyShare
from samovar.patterns.syntax.tree import Rule
from samovar.service.backtest import preview as previews
from samovar.service.backtest import samples
from samovar.service.backtest.estimate import estimate
from samovar.service.backtest.fold import run_fold
from samovar.service.backtest.preview import NotWanted, Preview, preview
from samovar.service.backtest.run import BacktestOptions, backtest
from tests.patterns.engine.test_key_share import hashes_of
from tests.support.matching import rules_of
from tests.support.small_service import RULES, Service, make, many, purchase

BY_COUNTRY = "rule: spread\nmatch: |\n  aggregate by country over 2m [purchase where amount > 5] having count() >= 3\n"
BOTH = """rule: both
match: |
  sequence with maxspan=20m
    [purchase where amount < 2] by card as probe
    [purchase where amount > 200] by card as big
"""


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make(tmp_path / "s")


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of a quarter of the keys, and no direct reading of what is larger than nothing."""
    monkeypatch.setattr(samples, "SAMPLED", 250)
    monkeypatch.setattr(previews, "DIRECT", 400)


def only(text: str) -> Rule:
    (rule,) = rules_of(text)
    return rule


def sample(service: Service, *rules: Rule, most: int | None = None) -> dict[str, samples.Sample]:
    with service.log() as log:
        specs = {keys: spec for rule in rules for keys, spec in samples.key_specs(rule).items()}
        return samples.extend_samples(service.settings, log, specs, lambda done, _total: most is None or done < most)


def previewed(service: Service, rule: Rule, **how: Any) -> Preview:
    with service.log() as log:
        return preview(service.settings, log, rule, **how)


def found_by_key(service: Service, rule: Rule) -> Counter[str]:
    """What the backtest finds, by the key's value."""
    found: Counter[str] = Counter()

    def noting(*arguments: Any) -> Iterator[Any]:
        for each in run_fold(*arguments):
            (value,) = json.loads(each.line)["key"].values()
            found[value] += 1
            yield each

    with service.log() as log:
        options = BacktestOptions(overlap_any=False, run=noting)
        backtest(service.settings, log, [rule], None, None, asked=options)
    return found


def in_share(keys: Sequence[str], share: float) -> list[str]:
    return [key for key, here in zip(keys, KeyShare(0, round(1 / share)).has(hashes_of(keys)), strict=True) if here]


@pytest.mark.parametrize("text", [*RULES.values(), BOTH, BY_COUNTRY], ids=[*RULES, "both", "spread"])
def test_a_sample_finds_what_the_backtest_finds_of_its_keys(service: Service, sampled: None, text: str) -> None:
    rule = only(text)
    events = many(900, cards=61)
    for number, each in enumerate(events):
        each["country"] = f"{each['country']}{number % 40}"
    service.produce([*events[:890], {"card": "c1", "ts": "never"}, *events[890:]])
    sample(service, rule)
    found = previewed(service, rule)
    assert found.sampled
    assert found.complete
    assert 0 < found.share < 1
    whole = found_by_key(service, rule)
    keys = in_share(list(whole), found.share)
    assert found.alerts == sum(whole[key] for key in keys)
    assert found.keys_with_alerts == len(keys)
    assert sum(day.found.count for day in found.days) == found.found.count == round(found.alerts / found.share)
    assert found.found.low <= sum(whole.values()) <= found.found.high
    field = "country" if rule.id == "spread" else "card"
    assert found.keys == len(in_share(sorted({each[field] for each in events}), found.share))


def test_what_came_since_is_read_first(service: Service, sampled: None) -> None:
    rule = only(RULES["testing"])
    service.produce(many(900, cards=61))
    sample(service, rule)
    service.produce(many(100, cards=61, start_s=10_000))
    found = previewed(service, rule)
    assert (found.sampled, found.complete, found.behind) == (True, True, 0)
    whole = found_by_key(service, rule)
    assert found.alerts == sum(whole[key] for key in in_share(list(whole), found.share))
    assert found.alerts > 0


def test_what_is_late_is_in_no_sample_also_where_it_was_stopped(
    service: Service, sampled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that come again much later are late: no card has two at one moment, however the reading was cut."""
    monkeypatch.setenv("SAMOVAR_TUNABLES__REPLAY_RECORDS", "4")
    monkeypatch.setattr(samples, "SAMPLED", 1_000)
    rule = only("rule: twice\nmatch: |\n  aggregate by card over 1ms [purchase where true] having count() >= 2\n")
    events = many(60, cards=5)
    again = [events[number - 30 : number - 28] if number >= 30 else [] for number in range(60)]
    service.produce([each for new, old in zip(events, again, strict=True) for each in (new, *old)])
    records = 0
    while records < (records := sample(service, rule, most=1)["card"].records):
        pass
    found = previewed(service, rule)
    assert found.sampled
    assert found.complete
    assert found.alerts == sum(found_by_key(service, rule).values()) == 0
    assert found.events == 60


def test_without_a_sample_little_data_is_exact_and_of_much_the_newest_counts(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = only(RULES["testing"])
    service.produce(many(600))
    found = previewed(service, rule)
    assert (found.share, found.complete, found.sampled, found.events) == (1.0, True, False, 600)
    assert found.found.low == found.found.high == found.alerts == sum(found_by_key(service, rule).values()) > 0
    monkeypatch.setattr(previews, "DIRECT", 100)
    newest = previewed(service, rule)
    assert (newest.share, newest.complete, newest.events) == (1.0, False, 100)
    assert newest.from_ms is not None
    assert found.from_ms is not None
    assert newest.from_ms > found.from_ms
    assert newest.to_ms == found.to_ms


def test_a_sample_of_a_topic_that_was_made_again_does_not_count(service: Service, sampled: None) -> None:
    rule = only(RULES["testing"])
    service.produce(many(300))
    sample(service, rule)
    with service.log() as log:
        assert samples.load_sample(service.settings, log, "card") is not None
        log.delete(["purchase"])
    service.produce([purchase("c1", 0, 1), purchase("c1", 1, 1), purchase("c1", 2, 900)])
    with service.log() as log:
        assert samples.load_sample(service.settings, log, "card") is None
    assert previewed(service, rule).found.count == 1
    sample(service, rule)
    assert previewed(service, rule).found.count in (0, 1)


def test_a_sample_of_a_stream_with_another_slack_does_not_count(service: Service, sampled: None) -> None:
    service.produce(many(300))
    sample(service, only(RULES["testing"]))
    service.config.write_text(service.config.read_text().replace("slack: 2s", "slack: 9s"))
    with service.log() as log:
        assert samples.load_sample(service.settings, log, "card") is None


def test_time_that_runs_out_and_nobody_who_waits_end_it(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMOVAR_TUNABLES__REPLAY_RECORDS", "20")
    rule = only(RULES["testing"])
    service.produce(many(600))
    found = previewed(service, rule, budget_s=0.0)
    assert not found.complete
    assert 0 < found.events < 600
    with pytest.raises(NotWanted):
        previewed(service, rule, is_wanted=lambda: False)


def test_samples_are_for_the_owner_alone(service: Service, sampled: None) -> None:
    service.produce(many(300))
    sample(service, only(RULES["testing"]))
    folder = samples.folder_of(service.settings, "card")
    files = [*folder.iterdir(), folder]
    assert len(files) > 2
    assert not [each for each in files if each.stat().st_mode & 0o077]


def test_where_no_topic_is_there_yet_it_says_so(service: Service) -> None:
    with pytest.raises(Refused) as refused:
        previewed(service, only(RULES["testing"]))
    assert refused.value.code == "backtest-no-history"


@pytest.mark.parametrize("heavy", [0.0, 0.8, 1.6], ids=["even", "skewed", "very skewed"])
@pytest.mark.parametrize("alerting", [40, 2_000, 20_000])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(alerting: int, heavy: float) -> None:
    """Of populations in which few keys have many alerts, and of samples of one key in a hundred.

    Where a sample can miss the keys that have most of all alerts, nothing in it says so.
    """
    random, trials, inside = np.random.default_rng([alerting, int(heavy * 10)]), 400, 0
    for _ in range(trials):
        counts = 1 + np.floor(random.lognormal(0.0, heavy, alerting)).astype(int) * (heavy > 0)
        taken = counts[random.random(alerting) < 0.01].tolist()
        found = estimate(taken, 0.01)
        inside += found.low <= counts.sum() <= found.high
    assert inside / trials > (0.87 if heavy > 1 else 0.93)
