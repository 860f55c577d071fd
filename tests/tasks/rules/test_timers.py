"""P1, P9: a timer is raised by the very commit that lets event time pass it, wherever its state is: in memory, in a
store that was just restored, or in one whose index of deadlines is half built.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random

import pytest

from samovar.changelog.log import TopicPartition
from samovar.service.topology.plans import plan_of
from samovar.state.memory import MemoryStore
from samovar.tasks.replay.rebuild import ReplayEnd, rebuild
from samovar.tasks.runtime.stream_task import TaskState
from tests.faults.harness import Service, wait_until
from tests.faults.stage import Stage, Staging

T0 = 1_700_000_000_000
S = 1_000
KEYS = 60
RULE = """
rule: quiet
match: |
  sequence by card with maxspan=10s
    [use where kind == "in"] as came
    ![use where kind == "out"]
"""
STREAMS = {"use": {"key": "card", "idle": "7d", "partitions": 1}}
SMALL = {"whole_states": 5, "index_rows": 3, "memory_commits": 1, "restore_records": 7, "restore_rows": 20}
LARGE = {**SMALL, "whole_states": 1_000_000}  # all states are in memory, and have no index


def came(service: Service) -> dict[str, int]:
    """When each card came that never left."""
    rows = [json.loads(row.value or b"") for row in service.read(service.settings.streams["use"].topic)]
    return {row["card"]: row["ts"] for row in rows if row["kind"] == "in"}


def due(service: Service, watermark: int) -> set[str]:
    return {card for card, at in came(service).items() if at + 10 * S < watermark}


def raised(service: Service) -> list[str]:
    return sorted(alert["key"]["card"] for alert in service.alerts())


def filled(staging: Staging, tunables: Mapping[str, int], **more: object) -> Stage:
    """Many cards that came within a few seconds, of which none is due yet."""
    here = staging({"quiet": RULE}, STREAMS, tunables=tunables, cache="128MB", **more)
    events = [{"card": f"c{number}", "ts": T0 + number * 100, "kind": "in"} for number in range(KEYS)]
    here.feed("use", *events)
    assert raised(here.service) == []
    here.close()
    return here


def goes_on_right(here: Stage, random_: Random) -> None:
    """Events trickle in: each commit has raised what is due, no more and no less."""
    service, at_ms = here.service, T0 + 9 * S
    for number in range(25):
        at_ms += random_.choice((0, 50, 400, 900))
        service.events("use", [{"card": f"later {number}", "ts": at_ms, "kind": "x"}])
        wait_until(lambda: service.committed() == service.written(), "the event is processed", here.container.cycle)
        assert raised(service) == sorted(due(service, at_ms)), f"after event {number}, at {at_ms - T0}"
    assert raised(service) == sorted(came(service))


@pytest.mark.parametrize("lost", ["nothing", "store", "snapshots and store"])
@pytest.mark.parametrize("before", [SMALL, LARGE], ids=["indexed", "in memory"])
def test_no_timer_is_withheld_after_a_restart(stage: Staging, lost: str, before: Mapping[str, int]) -> None:
    here = filled(stage, before, snapshots={"every": "1ms", "keep": 2})
    here.service.retune(SMALL)
    if lost != "nothing":
        here.service.wipe(snapshots=lost == "snapshots and store")
    goes_on_right(here, Random(1))


def test_no_timer_is_withheld_when_memory_lets_states_go(stage: Staging) -> None:
    """Also where the index of deadlines was not begun, or is not complete yet."""
    for small in ({"whole_states": 1_000}, {"whole_states": 20, "index_rows": 1}):
        here = filled(stage, LARGE)
        here.service.retune({**SMALL, **small}, cache="1B")
        goes_on_right(here, Random(2))
        here.close()


def test_nothing_is_taken_before_the_index_is_complete(stage: Staging) -> None:
    """Other partitions go on meanwhile: it is built a little in every cycle."""
    here = filled(stage, LARGE)
    here.service.retune(SMALL)
    here.service.events("use", [{"card": "x", "ts": T0 + 60 * S, "kind": "x"}])
    container, at = here.container, TopicPartition(here.service.settings.streams["use"].topic, 0)
    wait_until(lambda: bool(container.tasks), "it has its partition", container.cycle)
    (task,) = container.tasks.values()
    cycles = 0
    while task.state is not TaskState.RUNNING:
        container.cycle()
        cycles += 1
        assert raised(here.service) == []
        assert here.service.log.committed(here.service.settings.service, [at]) == {at: KEYS}
    assert cycles > KEYS / SMALL["index_rows"] / 2
    here.settle()
    assert raised(here.service) == sorted(came(here.service))


def test_no_timer_is_withheld_by_a_replay_that_begins_at_a_snapshot(stage: Staging) -> None:
    """A rebuild asks nobody to build its index a little at a time."""
    here = filled(stage, SMALL)
    service = here.service
    (position,) = service.positions().values()
    with service.store() as store:
        rows = [(key, value) for key, value in store.range() if key[:1] in (b"r", b"p")]
    copy = MemoryStore()
    copy.write(rows)
    service.events("use", [{"card": "x", "ts": T0 + 60 * S, "kind": "x"}])
    found: list[str] = []
    rebuild(
        service.log, plan_of(service.settings, 1), 0, copy, ReplayEnd({"use": KEYS + 1}), start=position,
        on_alerts=lambda pairs: found.extend(json.loads(value or b"")["key"]["card"] for _, value in pairs),
    )  # fmt: skip
    assert sorted(found) == sorted(came(service))
