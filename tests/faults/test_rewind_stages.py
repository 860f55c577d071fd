"""A service of several stages set back: all of them, as if they had never been there, on both logs and with kills.

P1 nothing lost, nothing twice, from the streams through repartition topics and emitted streams to the alerts; P2 each
stage's state as a straight run's, and as its source says.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from samovar.common.tunables import DEFAULTS
from tests.faults import task_world, world
from tests.faults.conftest import Making
from tests.faults.harness import Service
from tests.faults.test_repartition import RULES, STAGES
from tests.support.small_service import run, run_apart
from tests.support.stages_oracle import digests, plans, rebuilt
from tests.support.tunables import random_of_test, tiny_section

BATCH = 12
SOON = {"session.timeout.ms": "1500", "heartbeat.interval.ms": "300"}
INPUT = 240
MORE = 60
PARTS = 2  # of each stage
WRITTEN = ("told", "seen", "heaped", "heap-seen", "alerts", "rules", "task", "heaps")


def rewind(service: Service, moment_ms: int, *options: str) -> dict[str, Any]:
    done = run("rewind", service.config, "--to-time", moment_ms, "--json", *options)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def moment(service: Service, part: float) -> int:
    """An event time after so much of the input."""
    times = sorted(
        json.loads(row.value or b"")["ts"]
        for row in service.read(service.settings.streams[world.STREAM].topic)
        if b'"amount"' in (row.value or b"")
    )
    return int(times[int(len(times) * part)])


def ids(service: Service) -> Counter[str]:
    return Counter(alert["id"] for alert in service.alerts())


def forwarded(service: Service) -> dict[str, int]:
    """How many records there are in each repartition topic."""
    topics = {spec.topic for plan in plans(service) for spec in plan.inputs if spec.is_forwarded}
    return {topic: len(service.read(topic)) for topic in topics}


def is_as_its_source_says(service: Service) -> bool:
    return rebuilt(service)[1] == digests(service)


@pytest.fixture
def service(make: Making) -> Service:
    # A rewind that takes one transaction per task: the tests count them.
    drawn = tiny_section(random_of_test())["tunables"] | {"append_rows": DEFAULTS.append_rows}
    made = make({**RULES, "testing": world.RULES["testing"]}, world.STREAMS, client=SOON, tunables=drawn)
    made.append_pairs(world.STREAM, world.take(world.events(71), INPUT))
    made.run_to_end(poll=BATCH)
    made.nobody_there()
    return made


def test_all_stages_go_back_and_come_again(service: Service, make_twin: Callable[[Service], Service]) -> None:
    """P1, P2: to several moments, the second further back than the first; then new events on top of it."""
    states, published, there = digests(service), ids(service), forwarded(service)
    for part in (0.7, 0.2):
        found = rewind(service, moment(service, part))
        assert Counter(each.get("stage", "") for each in found["rewound"]) == dict.fromkeys(STAGES, PARTS)
        back = digests(service)
        assert {
            stage for stage, _ in back if back[stage, 0] != states[stage, 0] or back[stage, 1] != states[stage, 1]
        } == (STAGES.keys())
        assert is_as_its_source_says(service)
        service.run_to_end(poll=BATCH)
        service.nobody_there()
        assert (digests(service), ids(service), forwarded(service)) == (states, published, there)
        assert is_as_its_source_says(service)
    rewind(service, moment(service, 0.5))
    service.append_pairs(world.STREAM, world.take(world.events(72), MORE))
    world.end(service)
    service.run_to_end(poll=BATCH)
    straight = make_twin(service)
    straight.run_to_end()
    assert ids(service) == ids(straight)
    assert digests(service) == digests(straight)
    assert set(ids(service).values()) == {1}


def test_alerts_of_all_stages_are_published_again_where_that_is_wanted(service: Service) -> None:
    states, before, there = digests(service), service.alerts(), forwarded(service)
    to = moment(service, 0.2)
    rewind(service, to, "--alerts", "again")
    service.run_to_end(poll=BATCH)
    wanted = Counter({alert["id"]: 1 + (alert["at"] > to) for alert in before})
    assert {alert["rule"] for alert in before if wanted[alert["id"]] == 2} >= {"moved", "minutes", "testing"}
    assert ids(service) == wanted
    assert (digests(service), forwarded(service)) == (states, there)


@pytest.mark.parametrize("kill", ["commit.before:3", "commit.after:4"])
def test_killed_in_the_middle_it_is_run_again_or_not(
    service: Service, make_twin: Callable[[Service], Service], kill: str
) -> None:
    """P1, P2: some tasks are set back, others not. Run again it passes over those; and a service that is started with
    it half done is right, too.
    """
    states, published, there = digests(service), ids(service), forwarded(service)
    to = moment(service, 0.4)
    killed = run_apart("rewind", service.config, "--to-time", to, SAMOVAR_KILL=kill)
    assert killed.returncode == -9, killed.stderr
    service.nobody_there()
    point, _, count = kill.partition(":")
    done = int(count) - (point != "commit.after")
    if int(count) % 2:  # half done, it goes on
        service.run_to_end(poll=BATCH)
        service.nobody_there()
        assert (digests(service), ids(service), forwarded(service)) == (states, published, there)
        rewind(service, to)
    else:
        assert len(rewind(service, to)["rewound"]) == len(STAGES) * PARTS - done
    service.run_to_end(poll=BATCH)
    service.nobody_there()
    assert (digests(service), ids(service), forwarded(service)) == (states, published, there)


@pytest.mark.parametrize("again", ["rewind", "restore"])
def test_killed_between_the_transactions_of_one_task(
    service: Service, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    """P1, P4: what lies between is refused, and holds what is needed to begin anew: how far the task had been, and what
    it had told the stages that read it.
    """
    states, published, there = digests(service), ids(service), forwarded(service)
    to = moment(service, 0.4)
    monkeypatch.setenv("SAMOVAR_TUNABLES__APPEND_ROWS", "2")
    killed = run_apart("rewind", service.config, "--to-time", to, SAMOVAR_KILL="commit.before:3")
    assert killed.returncode == -9, killed.stderr
    service.nobody_there()
    service.refused("rewind-unfinished", "Run `samovar rewind` again")
    service.nobody_there()
    if again == "rewind":
        rewind(service, to)
    else:
        done = run("restore", service.config, "--from", "source")
        assert done.exit_code in (0, 2), done.output
        assert digests(service) == states
    service.run_to_end(poll=BATCH)
    service.nobody_there()
    assert (digests(service), ids(service), forwarded(service)) == (states, published, there)


def test_killed_while_it_comes_again(service: Service, make_twin: Callable[[Service], Service]) -> None:
    """What must not be written twice is known after a crash, with the store and without it."""
    states, published, there = digests(service), ids(service), forwarded(service)
    rewind(service, moment(service, 0.3))
    for lost in (False, True):
        assert service.start(kill="commit.after:4", poll=BATCH).ended() == -9
        if lost:
            service.wipe()
    service.run_to_end(poll=BATCH)
    assert (digests(service), ids(service), forwarded(service)) == (states, published, there)


# ---------------------------------------------------------------- tasks of the user's


def test_a_task_goes_back_with_the_rules_on_what_it_emits(
    tmp_path: Path, bootstrap: str | None, services: list[Service]
) -> None:
    """P1, P9: nothing is emitted twice, by events, timers or windows, and what waits for them comes as it did."""
    service = task_world.task_service(tmp_path / "s", bootstrap, client=SOON)
    services.append(service)
    source = task_world.events(8)
    task_world.feed(service, source, INPUT)
    service.run_to_end(poll=BATCH)
    service.nobody_there()
    before = task_world.outcome(service)
    times = sorted(json.loads(row.value or b"")["ts"] for row in service.read(service.settings.streams["use"].topic))
    for part in (0.7, 0.3):
        to = times[int(len(times) * part)]
        found = rewind(service, to)
        stages = ("", *task_world.TASKS_STREAMS)
        assert Counter(each.get("stage", "") for each in found["rewound"]) == dict.fromkeys(stages, PARTS)
        assert task_world.rebuilt_digests(service) == task_world.task_digests(service) != before["task"]
        heaps = task_world.task_digests(service, task_world.SCATTERED)
        assert task_world.rebuilt_digests(service, task_world.SCATTERED) == heaps != before["heaps"]
        service.run_to_end(poll=BATCH)
        service.nobody_there()
        again = task_world.outcome(service)
        assert {what: again[what] for what in WRITTEN} == {what: before[what] for what in WRITTEN}
    rewind(service, times[INPUT // 2])
    task_world.feed(service, source, MORE)
    task_world.last(service)
    service.run_to_end(poll=BATCH)
    services.append(task_world.straight(service, tmp_path / "straight"))
    wanted, got = task_world.outcome(services[-1]), task_world.outcome(service)
    for what in WRITTEN:
        assert got[what] == wanted[what], what
