"""`samovar traffic`: events in real time, each once, whatever happens on the way."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.log import Append, Log, TopicPartition
from samovar.common.errors import Fenced, Refused
from samovar.service.config.loading import load_service
from samovar.service.config.models import ServiceFile
from samovar.service.offline.synth.live import DISORDER_MS, Recipe, Stretch, SynthFeed
from samovar.service.offline.traffic import TrafficRequest, TrafficRun, alone, append_of, kind_of, read_mark
from samovar.service.topology.topics import traffic_labels_topic, traffic_topic
from samovar.tasks.model.clock import SetClock
from tests.support.small_service import run_apart

START = 1_800_000_000_000
MINUTE = 60_000
WANTED = TrafficRequest(rate=10, backfill_ms=5 * MINUTE, keys=2_000, for_ms=0)
SERVICE = """
service: shop
streams:
  purchase: {key: card, partitions: 2}
  login: {key: user}
"""


@pytest.fixture(params=["fraud", "sessions"])
def recipe(request: pytest.FixtureRequest) -> Recipe:
    return Recipe(request.param, 2_000, 3, (Stretch(START, 10),))


@pytest.fixture
def settings(tmp_path: Path) -> ServiceFile:
    (tmp_path / "rules").mkdir()
    (tmp_path / "service.yml").write_text(SERVICE, "utf-8")
    return load_service(tmp_path / "service.yml", {})


def log_of(settings: ServiceFile) -> Log:
    assert settings.log.embedded is not None
    return EmbeddedLog(settings.log.embedded)


def written(settings: ServiceFile, clock: SetClock, wanted: TrafficRequest = WANTED) -> int:
    log = log_of(settings)
    try:
        return TrafficRun(settings, log, wanted, io.StringIO(), clock).run().events
    finally:
        log.close()


def events_in(settings: ServiceFile, stream: str) -> list[dict[str, Any]]:
    log = log_of(settings)
    found = []
    try:
        for number in range(2):
            at = TopicPartition(settings.streams[stream].topic, number)
            bounds = log.bounds([at])[at]
            reader = log.reader({at: bounds.begin})
            while reader.position(at) < bounds.end:
                for records in reader.poll(10_000, 1.0):
                    found += [json.loads(records.value(row) or b"") for row in range(len(records))]
            reader.close()
    finally:
        log.close()
    return found


# ---------------------------------------------------------------- what is generated


def test_events_come_at_the_rate_and_in_the_order_of_arrival(recipe: Recipe) -> None:
    arrivals = SynthFeed(recipe, START).due(START + 30 * MINUTE)
    assert [each.at_ms for each in arrivals] == sorted(each.at_ms for each in arrivals)
    assert all(0 <= each.at_ms - each.ts <= DISORDER_MS for each in arrivals)
    assert all(json.loads(each.line)["ts"] == each.ts for each in arrivals)
    # After a while as many end as begin; planted ones that take longer are still to come.
    later = SynthFeed(recipe, START + 20 * MINUTE).due(START + 30 * MINUTE)
    assert 0.9 * 6_000 < len(later) < 1.1 * 6_000


def test_who_goes_on_gives_what_the_first_would_have_given(recipe: Recipe) -> None:
    straight = SynthFeed(recipe)
    before = straight.due(START + 7 * MINUTE + 321)
    after = straight.due(START + 20 * MINUTE)
    again = SynthFeed(recipe, START + 7 * MINUTE + 321).due(START + 20 * MINUTE)
    assert sorted(again) == sorted(after)
    assert not {each.line for each in before} & {each.line for each in after}


def test_another_rate_repeats_nothing_of_the_old_one(recipe: Recipe) -> None:
    """And nothing of it is lost: what began at the old rate ends as it would have."""
    stopped, changed = START + 3 * MINUTE + 5, START + 4 * MINUTE  # at the end of a block
    quicker = recipe.at_rate(5_000, stopped)
    assert [each.from_ms for each in quicker.stretches] == [START, changed]
    assert (quicker.rate_at(changed - 1), quicker.rate_at(changed)) == (10, 5_000)
    assert quicker.stretches[1].block_ms < MINUTE
    before = SynthFeed(recipe).due(stopped)
    after = SynthFeed(quicker, stopped).due(changed + 20_000)
    assert not {each.line for each in before} & {each.line for each in after}
    slower = [each for each in SynthFeed(recipe).due(changed) if each.at_ms >= stopped]
    assert Counter(each for each in after if each.at_ms < changed) == Counter(slower)
    assert 1_000 * 20 < sum(each.at_ms >= changed for each in after) < 5_500 * 20  # a visit takes minutes
    # and a later start still knows both
    assert Counter(SynthFeed(quicker, changed + 10_000).due(changed + 20_000)) == Counter(
        each for each in after if each.at_ms >= changed + 10_000
    )


def test_people_have_a_life_before_the_incident(recipe: Recipe) -> None:
    field = "user" if recipe.kind == "fraud" else "visitor"
    seen: Counter[str] = Counter()
    incidents: dict[str, bool] = {}
    for each in SynthFeed(recipe).due(START + 60 * MINUTE):
        key = json.loads(each.line)[field]
        if each.label is None:
            seen[key] += 1
        elif not each.label[1].startswith("s-"):  # a whole visit
            incidents.setdefault(each.label[1], seen[key] > 0)
    assert len(incidents) > 300
    assert sum(incidents.values()) > 0.9 * len(incidents)


# ---------------------------------------------------------------- to a log


def test_the_first_start_begins_a_while_ago_and_ends_now(settings: ServiceFile) -> None:
    clock = SetClock(START)
    assert written(settings, clock) > 1_500
    times = sorted(event["ts"] for event in events_in(settings, "purchase"))
    before = sum(ts < START - 5 * MINUTE for ts in times)  # the lives of those who are soon part of a fraud
    assert before < 0.5 * len(times)
    assert times[before] < START - 4 * MINUTE
    assert START - MINUTE < times[-1] <= START


def test_the_time_before_the_first_start_may_have_a_lower_rate(settings: ServiceFile) -> None:
    written(settings, SetClock(START), replace(WANTED, rate=500, backfill_rate=10, backfill_ms=90_000))
    log = log_of(settings)
    try:
        mark = read_mark(log, settings.service)
    finally:
        log.close()
    assert mark is not None
    assert [(each.from_ms, each.rate) for each in mark.recipe.stretches] == [(START - 2 * MINUTE, 10), (START, 500)]
    assert written(settings, SetClock(START + 4_000), replace(WANTED, rate=500)) > 4 * 200


def test_a_later_start_goes_on_at_the_present_time(settings: ServiceFile) -> None:
    clock = SetClock(START)
    written(settings, clock)
    before = events_in(settings, "purchase")
    clock.pass_ms(3_600_000)
    written(settings, clock)  # at this very moment nothing is due yet
    clock.pass_ms(2_000)
    assert 10 <= written(settings, clock) <= 40
    after = [event for event in events_in(settings, "purchase") if event not in before]
    assert len(events_in(settings, "purchase")) == len(before) + len(after)
    assert all(START + 3_600_000 - DISORDER_MS <= event["ts"] <= START + 3_602_000 for event in after)


def test_records_are_keyed_by_their_streams_keys(settings: ServiceFile) -> None:
    written(settings, SetClock(START))
    log = log_of(settings)
    try:
        for name, stream in settings.streams.items():
            (records,) = log.reader({TopicPartition(stream.topic, 0): 0}).poll(1, 1.0)
            event = json.loads(records.value(0) or b"")
            assert (records.key(0) or b"").decode() == event[stream.key], name
    finally:
        log.close()


def test_labels_are_in_a_topic_of_their_own(settings: ServiceFile) -> None:
    """Each names one event, which does not say so itself."""
    clock = SetClock(START)
    written(settings, clock)
    clock.pass_ms(3_600_000)  # then times are shifted
    written(settings, clock)
    for _ in range(6):
        clock.pass_ms(9_000)
        written(settings, clock)
    log = log_of(settings)
    try:
        (records,) = log.reader({TopicPartition(traffic_labels_topic(settings.service), 0): 0}).poll(10_000, 1.0)
        labels = [json.loads(value or b"") for _, value in records.pairs()]
    finally:
        log.close()
    assert len(labels) > 80
    assert max(label["ts"] for label in labels) > START + 3_600_000
    events: Counter[tuple[str, str, str, int]] = Counter()
    for name, stream in settings.streams.items():
        for event in events_in(settings, name):
            assert not event.keys() & {"label", "kind", "incident", "fraud_kind", "fraud_id"}
            events[stream.topic, event[stream.key], event["type"], event["ts"]] += 1
    for label in labels:
        assert label.keys() == {"topic", "key", "type", "ts", "kind", "incident"}
        assert events[label["topic"], label["key"], label["type"], label["ts"]] >= 1, label


def test_types_that_no_stream_takes_are_counted(settings: ServiceFile) -> None:
    log = log_of(settings)
    try:
        done = TrafficRun(settings, log, WANTED, io.StringIO(), SetClock(START)).run()
    finally:
        log.close()
    everything = Counter(json.loads(each.line)["type"] for each in SynthFeed(RECIPE_OF_TEST).due(START))
    assert done.events == everything["purchase"] + everything["login"]
    assert done.passed_over == sum(everything.values()) - done.events > 0


RECIPE_OF_TEST = Recipe("fraud", 2_000, 1, (Stretch(START - 5 * MINUTE, 10),))


@pytest.mark.parametrize("point", ["produce.after:2", "commit.before:2", "commit.after:2"])
def test_killed_at_any_moment_nothing_is_lost_and_nothing_comes_twice(settings: ServiceFile, point: str) -> None:
    flags = "--rate 200 --backfill-rate 200 --keys 2000 --backfill 1m --for 0s --json"
    arguments = ("traffic", settings.path, *flags.split())
    killed = run_apart(*arguments, SAMOVAR_KILL=point)
    assert killed.returncode == -9, killed.stderr
    ended = run_apart(*arguments)
    assert ended.returncode == 0, ended.stderr
    log = log_of(settings)
    mark = read_mark(log, settings.service)
    log.close()
    assert mark is not None
    straight = [json.loads(each.line) for each in SynthFeed(mark.recipe).due(mark.written_ms)]
    assert len(straight) > 2_000  # more or fewer, by the hour
    for stream in settings.streams:
        wanted = [event for event in straight if event["type"] == stream]
        assert without_times(events_in(settings, stream)) == without_times(wanted)


def without_times(events: list[dict[str, Any]]) -> list[str]:
    """After a pause events come later than they would have."""
    return sorted(json.dumps(event | {"ts": 0}) for event in events)


def test_of_two_the_first_stops(settings: ServiceFile) -> None:
    written(settings, SetClock(START))
    first, second = log_of(settings), log_of(settings)
    try:
        with alone(settings, first) as old:
            mark = read_mark(first, settings.service)
            assert mark is not None
            with pytest.raises(Refused, match="slot-taken"), alone(settings, second):
                pass
            old.transact([append_of(settings.service, mark)], {})
    finally:
        first.close()
        second.close()


def test_a_fenced_one_says_that_another_began(settings: ServiceFile, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(settings)
    run = TrafficRun(settings, log, WANTED, io.StringIO(), SetClock(START))

    def fenced(*_: object) -> None:
        raise Fenced

    monkeypatch.setattr(run, "_transact", fenced)
    try:
        with pytest.raises(Refused, match="traffic-elsewhere"):
            run.run()
    finally:
        log.close()


def test_a_mark_of_a_newer_version_is_refused(settings: ServiceFile) -> None:
    written(settings, SetClock(START))
    log = log_of(settings)
    try:
        log.append([Append(topic=traffic_topic(settings.service), records=[(b"mark", b'{"v":3}')], partition=0)])
        with pytest.raises(Refused, match="format-newer"):
            read_mark(log, settings.service)
    finally:
        log.close()


def test_a_service_for_which_nothing_can_be_generated(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "service.yml").write_text("service: s\nstreams: {weather: {key: town}}\n", "utf-8")
    with pytest.raises(Refused, match="no-traffic"):
        kind_of(load_service(tmp_path / "service.yml", {}))
