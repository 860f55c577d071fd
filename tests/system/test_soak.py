"""What a soak says about its samples: whether they grow, however much rebalances disturb them."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.soak_plot import MOVED, plot
from benchmarks.soak_samples import MEASURES, Alerts, Samples
from benchmarks.soak_trend import HOUR_S, Measure, Verdict, fit

MEMORY = Measure("memory", "MB", 0.05, 5.0)
HALF_AN_HOUR = [float(at) for at in range(0, 1_800, 10)]


def seen(per_hour: float, noise: float, seed: int = 1) -> list[float]:
    """200 and what grows, with noise, and with a spike now and then."""
    random_ = Random(seed)
    spikes = [500.0 if number % 15 == 0 else 0.0 for number in range(len(HALF_AN_HOUR))]
    pairs = zip(HALF_AN_HOUR, spikes, strict=True)
    return [200 + per_hour * at / HOUR_S + random_.gauss(0, noise) + spike for at, spike in pairs]


@pytest.mark.parametrize(
    ("per_hour", "noise", "verdict"),
    [(0.0, 1.0, "flat"), (-50.0, 1.0, "flat"), (40.0, 1.0, "grows"), (0.0, 100.0, "open")],
)
def test_growth_is_told_from_noise_and_spikes(per_hour: float, noise: float, verdict: Verdict) -> None:
    trend = fit(MEMORY, HALF_AN_HOUR, seen(per_hour, noise))
    assert trend is not None
    assert trend.verdict == verdict
    assert trend.low <= trend.slope <= trend.high
    if noise == 1.0:
        assert trend.slope == pytest.approx(per_hour, abs=5)


def test_a_few_samples_say_nothing() -> None:
    assert fit(MEMORY, [0.0, 1.0], [5.0, 6.0]) is None
    assert fit(MEMORY, HALF_AN_HOUR, [float("nan")] * len(HALF_AN_HOUR)) is None


def test_alerts_that_come_twice_are_counted() -> None:
    alerts = Alerts("tried")
    one, other = b'{"rule": "tried", "id": "a", "at": 900}', b'{"rule": "other", "id": "a", "at": 100}'
    alerts.take([one, other], 1_000.0)
    alerts.take([one], 1_200.0)
    assert (alerts.count, alerts.twice) == (2, 1)
    assert alerts.percentiles()[0] == pytest.approx(200.0)


def test_a_picture_has_every_measure() -> None:
    samples = Samples(marks=[(5.0, MOVED)])
    for at_s in range(20):
        samples.add(float(at_s), {each.name: 10.0 + at_s for each in MEASURES})
    times_s, columns = samples.since(4.0)
    fitted = {each.name: fit(each, times_s, columns[each.name]) for each in MEASURES}
    picture = plot(samples, {name: each for name, each in fitted.items() if each is not None}, 4.0, "20 s")
    assert picture.startswith("<svg")
    assert all(each.name in picture for each in MEASURES)
    assert times_s[0] == 4.0
