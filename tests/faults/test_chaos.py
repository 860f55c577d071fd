"""`make chaos` itself: a run that was stopped goes on with the rounds that are left, and forgets no failure."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from samovar.common.failpoints import POINTS
from tests.faults.chaos.__main__ import run_rounds, summary
from tests.faults.chaos.progress import Outcome, Progress, Round, go_on_or_begin, load
from tests.faults.killing import kills_of_round

WANTED = {"embedded": 60, "kafka": 30, "three-brokers": 10, "rebalances": 0}


class Rounds:
    """Stands in for the processes: rounds that are run, until one is stopped."""

    def __init__(self, stops_at: str = "", fails: str = "") -> None:
        self.stops_at, self.fails = stops_at, fails
        self.ran: list[Round] = []

    def __call__(self, each: Round, progress: Progress) -> Outcome:
        if each.name == self.stops_at:
            raise KeyboardInterrupt
        self.ran.append(each)
        return Outcome(each.seed, each.size, 10.0, each.name != self.fails)


def test_a_run_that_was_stopped_goes_on_with_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "chaos.json"
    first, second = Rounds(stops_at="kafka-1", fails="embedded-0"), Rounds()
    begun = go_on_or_begin(path, WANTED, None, 17)
    with pytest.raises(KeyboardInterrupt):
        run_rounds(begun, path, first)
    resumed = go_on_or_begin(path, WANTED, None, 18)
    assert resumed.seed == 17
    run_rounds(resumed, path, second)
    assert first.ran + second.ran == begun.rounds()
    assert len({each.seed for each in begun.rounds()}) == len(begun.rounds())
    assert [each.name for each in resumed.failed()] == ["embedded-0"]
    assert summary(resumed) == 1


def test_a_run_that_was_finished_or_asks_for_something_else_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "chaos.json"
    begun = go_on_or_begin(path, WANTED, 17, 0)
    with pytest.raises(KeyboardInterrupt):
        run_rounds(begun, path, Rounds(stops_at="kafka-0"))
    assert go_on_or_begin(path, {"embedded": 1}, None, 18).seed == 18
    assert go_on_or_begin(path, WANTED, 19, 18).done == {}
    run_rounds(begun, path, Rounds())
    assert load(path) == begun
    assert go_on_or_begin(path, WANTED, None, 20).seed == 20


def test_every_bed_sees_as_many_faults_as_are_asked_for() -> None:
    rounds = Progress(3, {"embedded": 60, "kafka": 30}).rounds()
    assert sorted((each.bed, each.number, each.size) for each in rounds) == [
        ("embedded", 0, 25),
        ("embedded", 1, 25),
        ("embedded", 2, 10),
        ("kafka", 0, 25),
        ("kafka", 1, 5),
    ]
    assert {each.bed for each in rounds[:2]} == {"embedded", "kafka"}, "beds take turns"


@pytest.mark.parametrize("brokers", [False, True])
def test_a_round_kills_at_every_point(brokers: bool) -> None:
    kills = kills_of_round(Random(5), 25, brokers=brokers)
    assert len(kills) == 25
    assert {kill.point for kill in kills} == {None, *POINTS}
    assert any(kill.of_broker for kill in kills) == brokers
