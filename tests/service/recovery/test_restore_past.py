"""`samovar restore --to-time` and `--to-offset`: state as it was, in a folder of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.small_service import (
    HOUR,
    START,
    Service,
    make,
    many,
    purchase,
    restored,
    run,
)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make(tmp_path / "s")


def get(service: Service, card: str, store: Path) -> list[Any]:
    done = run("state", "get", service.config, card, "--rule", "testing", "--store", store, "--json")
    return [
        (each["step"], each["events"]) for found in json.loads(done.stdout) for each in found["rules"][0]["partials"]
    ]


def in_steps(service: Service) -> list[int]:
    """Three runs with an hour of log time between them; their log times."""
    service.clock.now_ms -= 4 * HOUR
    times = []
    for step in range(3):
        service.clock.pass_ms(HOUR)
        service.process(
            [purchase("c1", step * 100, 1), purchase("c1", step * 100 + 5, 30), purchase("c2", step * 100, 3)]
        )
        times.append(service.clock.now_ms)
    return times


def test_to_a_log_time(service: Service, tmp_path: Path) -> None:
    times = in_steps(service)
    live = service.digests()
    for step, time_ms in enumerate(times):
        for place, wanted in ((time_ms - 1, step), (time_ms, step + 1)):
            out = tmp_path / f"at-{place}"
            restored(service, "--to-time", place, "--out", out, "--verify")
            assert sum(events for _, events in get(service, "c1", out)) == wanted
    assert service.digests() == live


def test_to_an_offset_ends_at_a_whole_commit(service: Service, tmp_path: Path) -> None:
    in_steps(service)
    partition = service.partition("c1")
    changes = json.loads(run("state", "history", service.config, "c1", "--rule", "testing", "--json").stdout)
    for place, wanted in ((changes[1]["offset"], 1), (changes[2]["offset"], 2)):
        out = tmp_path / f"at-{place}"
        (planned,) = restored(service, "--to-offset", place, "--partition", partition, "--out", out, "--verify")["plan"]
        assert planned["end"] <= place
        assert get(service, "c1", out) == [("probe", wanted)]


def test_what_may_be_compacted_is_refused(service: Service, tmp_path: Path) -> None:
    service.clock.now_ms -= 72 * HOUR
    service.process(many(20))
    first = service.clock.now_ms
    service.clock.pass_ms(24 * HOUR)
    service.process(many(20, start_s=100))
    done = run("restore", service.config, "--to-time", first + HOUR, "--out", tmp_path / "out")
    assert (done.exit_code, done.stderr.split(":")[0]) == (2, "as-of-compacted")
    assert "--from source" in done.stderr
    restored(service, "--to-time", first + 30 * HOUR, "--out", tmp_path / "out")  # nothing came since


def test_to_an_event_time_from_the_source(service: Service, tmp_path: Path) -> None:
    """As a service would be that had got no more than the events up to then."""
    events = many(120)
    service.process(events)
    for n, second in enumerate((50, 171, 300)):
        out = tmp_path / f"at-{second}"
        restored(service, "--from", "source", "--to-time", START + second * 1000, "--out", out)
        other = make(tmp_path / f"other{n}")
        early = [event for event in events if event["ts"] <= START + second * 1000]
        other.process(
            [*early, *(purchase(f"x{n}", second + 2, 3) for n in range(9))]
        )  # moves event time to that second
        assert at_watermark(service, out, START + second * 1000) == at_watermark(
            service, other.state, START + second * 1000
        )


def at_watermark(service: Service, state: Path, moment: int) -> dict[int, str]:
    done = run("state", "digest", service.config, "--store", state, "--json")
    found = json.loads(done.stdout)
    assert [each["watermark"] for each in found] == [moment] * 2
    return {each["partition"]: each["digest"] for each in found}


def test_to_an_event_time_with_events_out_of_order(service: Service, tmp_path: Path) -> None:
    """P9: an event that is late stays so; one within the slack counts, though it came after others."""
    service.process(
        [
            purchase("c1", 0, 1),
            purchase("c1", 11, 30),
            purchase("c1", 10, 1),
            purchase("c1", 20, 30),
            purchase("c1", 9, 1),
        ]
    )
    restored(service, "--from", "source", "--to-time", START + 10_000, "--out", tmp_path / "out")
    assert get(service, "c1", tmp_path / "out") == [("probe", 2)]


TWO_STREAMS = """
service: s
streams:
  purchase: {key: card, partitions: 1, slack: 2s}
  login: {key: card, partitions: 1, slack: 5s}
"""
BOTH = """
rule: both
match: |
  sequence by card with maxspan=1m
    [login where true] as login
    [purchase where amount > 200] as big
"""


def test_to_an_event_time_of_two_streams(tmp_path: Path) -> None:
    """A moment is one of event time, however far each stream had been read then."""
    streams = {"purchase": many(60), "login": [purchase(f"c{n % 5}", n * 4.5, 1) for n in range(40)]}
    moment = START + 90_000

    def process(folder: Path, until_ms: int | None) -> Service:
        made = make(folder)
        made.config.write_text(TWO_STREAMS)
        (folder / "rules" / "both.yml").write_text(BOTH)
        for stream, events in streams.items():
            chosen = [event for event in events if until_ms is None or event["ts"] <= until_ms]
            made.produce(chosen, stream)
        return made

    live = process(tmp_path / "live", None)
    live.process([])
    restored(live, "--from", "source", "--to-time", moment, "--out", tmp_path / "out")
    other = process(tmp_path / "other", moment)
    other.produce([purchase("x", 90.001 + 2, 3)])
    other.produce([purchase("x", 90.001 + 5, 3)], "login")
    other.process([])
    digests = [
        run("state", "digest", live.config, "--store", state, "--json") for state in (tmp_path / "out", other.state)
    ]
    found = [json.loads(done.stdout)[0] for done in digests]
    assert [each["watermark"] for each in found] == [moment + 1] * 2
    assert found[0]["digest"] == found[1]["digest"]
