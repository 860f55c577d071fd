"""Tasks that read streams whose keys are in any partition: through repartition topics, which all tasks share.

What such a task does under kills, and when it is set back, is in tests/faults/test_task_kills.py and
test_rewind_stages.py; any schedule in test_user_schedules.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from samovar.changelog.formats.forwarded import WatermarkMarker, heads_of, marks_of
from samovar.changelog.log import Append
from samovar.common.errors import Refused
from samovar.native.kernel import joined
from samovar.service.ops.metrics import COUNTS
from samovar.service.rules.publishing import plan_publish, publish
from samovar.tasks.runtime.stream_task import TaskState
from tests.faults.harness import Service, wait_until
from tests.faults.stage import Stage, Staging
from tests.faults.task_world import rebuilt_digests, task_digests
from tests.support.doc_snippets import run_command
from tests.support.stages_oracle import pass_ms, place_of, settle, stage_of

T0 = 1_700_000_000_000
S = 1_000
HOUR = 3_600 * S
TASK = "counter"
CODE = """
from samovar import Context, Event, Task


class Counter(Task):
    def process(self, event: Event, ctx: Context) -> None:
        seen = ctx.store("seen")
        seen.put(event.key, [*seen.get(event.key, []), [event.stream, event.partition, event.offset]])
        ctx.timer(event.key, event.time + 3_600_000)
        if event.get("n") == 13:
            raise ValueError("unlucky")

    def on_timer(self, name: str, ctx: Context) -> None:
        ctx.emit("quiet", name, {"card": name, "ts": ctx.now})
"""
TASKS = {TASK: {"class": "counter:Counter", "streams": ["a", "b"], "stores": ["seen"], "emits": ["quiet"]}}
RULES = {"visit": "rule: visit\nmatch: session by card with gap=1s [b where n > 100]\n"}
STREAMS: dict[str, dict[str, Any]] = {
    "a": {"key": "card", "slack": "2s", "idle": "3s", "partitions": 2, "repartition": True},
    "b": {"key": "card", "slack": "0s", "idle": "2s"},
}


@pytest.fixture
def here(stage: Staging) -> Stage:
    made = stage(RULES, STREAMS, tasks=TASKS)
    (made.service.folder / "counter.py").write_text(CODE)
    return made


def event(at_ms: int, card: str = "c", n: int = 1) -> dict[str, Any]:
    return {"card": card, "n": n, "ts": T0 + at_ms}


def quiet(service: Service) -> list[tuple[str, int]]:
    values = [json.loads(row.value or b"") for row in service.read(f"{service.settings.service}-quiet")]
    return [(value["card"], value["ts"] - T0) for value in values]


def marks(service: Service) -> list[WatermarkMarker]:
    values = joined([row.value or b"" for row in service.read(f"{service.settings.service}-a-for-tasks")])
    return marks_of(heads_of(values), values)


def command(service: Service, *words: str) -> str:
    said, code = run_command([str(service.config) if word == "CONFIG" else word for word in words])
    assert code == 0, said
    return said


@pytest.mark.parametrize("wipe", [False, True], ids=["kept", "lost"])
def test_a_timer_is_called_an_hour_after_the_last_event_of_any_partition(here: Stage, wipe: bool) -> None:
    """P2, P9: marks bring event time there, the more rarely the longer nothing comes, and a rebuild needs no more."""
    service = here.service
    service.events("a", [event(0)], 0)
    service.events("a", [event(5 * S), event(6 * S, "d")], 1)
    service.events("b", [event(7 * S)], 1)
    for number, minutes in enumerate((1, 1, 1, 10, 30, 15, 1, 1, 10)):
        pass_ms(here, minutes * 60 * S)
        if number % 3 == 2:
            here.crash(wipe=wipe)
    assert sorted(quiet(service)) == [("c", 7 * S + HOUR), ("d", 6 * S + HOUR)]
    here.crash(wipe=wipe)
    pass_ms(here, 5 * S)
    told = len(marks(service))
    for _ in range(40):  # a second each: after more than an hour a mark is told a minute
        pass_ms(here, S)
    assert len(marks(service)) - told <= 2 * 2
    here.close()
    assert rebuilt_digests(service, TASK) == task_digests(service, TASK)


def test_one_idle_partition_does_not_hold_the_others_back(here: Stage) -> None:
    service = here.service
    for stream in "ab":
        for partition in (0, 1):
            service.events(stream, [event(0)], partition)
    pass_ms(here, 600 * S)
    service.events("a", [event(601 * S), event(605 * S)], 0)
    settle(here)
    assert ["a", 0, 1] in seen(service)
    service.events("a", [event(602 * S, "late"), event(606 * S)], 1)  # it joins at event time, as of rules
    settle(here)
    assert [place_of(row)[1:] for row in service.late() if stage_of(row) == TASK] == [(1, 1)]


def seen(service: Service) -> list[Any]:
    """What the task knows of the card, as `samovar state get` shows it: in one partition."""
    (found,) = json.loads(command(service, "state", "get", "CONFIG", "c", "--stage", TASK, "--json"))
    (row,) = found["stores"]
    return list(row["value"])


def test_letters_name_the_source_and_the_state_is_shown_and_verified(here: Stage) -> None:
    """P8: what is put aside is told once, by where it stands in its own stream."""
    service = here.service
    service.events("a", [event(0), event(1 * S, n=13), event(60 * S)], 1)
    service.append("a", [b"{"], 0)
    service.events("a", [event(60 * S), event(0)], 0)
    for partition in (0, 1):
        service.events("b", [event(60 * S)], partition)
    settle(here)
    topic = f"{service.settings.service}-a-for-tasks"
    service.log.append([Append(topic=topic, records=[(b"c", b"hello")], partition=0)])
    settle(here)
    a, foreign = service.settings.streams["a"].topic, len(service.read(topic))
    dead = {place_of(row): stage_of(row) for row in service.dead()}
    assert dead.pop((a, 1, 1)) == TASK
    assert dead.pop((a, 0, 0)) == ""
    (((where, partition, offset), name),) = dead.items()
    assert (where, partition, name) == (topic, 0, TASK)
    assert offset < foreign
    assert [(*place_of(row), stage_of(row)) for row in service.late()] == [(a, 0, 2, "")]
    counts = here.container.status().counts
    assert (counts.events, counts.forwarded, counts.dead, counts.late) == (8, 6, 3, 1)
    said, _ = run_command(["status", str(service.config)])
    assert all(f"{TASK}/{number} " in said for number in (0, 1)), said
    here.close()
    said = command(service, "verify", "CONFIG", "--stage", TASK)
    assert said.count("equal (store, changelog, source)") == 2, said
    assert seen(service) == [["a", 1, 0]]  # the next ones wait for event time


def test_a_task_that_was_away_keeps_its_stores_and_what_it_missed_is_counted(here: Stage) -> None:
    """P8: nobody forwards for a task that is not there. One whose streams are placed reads on from where it was."""
    service = here.service
    service.events("a", [event(0), event(S)], 0)
    service.events("b", [event(S)], 0)
    pass_ms(here, 30 * S)
    here.close()
    service.edit(lambda data: data.update(tasks={}))
    service.events("a", [event(60 * S)], 0)
    settle(here)
    here.close()
    service.edit(lambda data: data.update(tasks=TASKS))
    service.events("a", [event(61 * S)], 0)
    pass_ms(here, 600 * S)
    assert here.container.status().counts.missed == 1
    assert seen(service) == [["a", 0, 0], ["a", 0, 1], ["b", 0, 0], ["a", 0, 3]]
    here.close()
    assert rebuilt_digests(service, TASK) == task_digests(service, TASK)
    assert "missed" in COUNTS


def test_a_task_on_placed_streams_that_was_away_reads_what_it_missed(stage: Staging) -> None:
    here = stage(RULES, {"a": {**STREAMS["a"], "repartition": False}, "b": STREAMS["b"]}, tasks=TASKS)
    service = here.service
    (service.folder / "counter.py").write_text(CODE)
    service.events("a", [event(0)], 0)
    settle(here)
    here.close()
    service.edit(lambda data: data.update(tasks={}))
    service.events("a", [event(60 * S)], 0)
    settle(here)
    here.close()
    service.edit(lambda data: data.update(tasks=TASKS))
    service.events("a", [event(61 * S)], 0)
    pass_ms(here, 600 * S)
    pass_ms(here, 600 * S)
    assert seen(service) == [["a", 0, 0], ["a", 0, 1], ["a", 0, 2]]
    here.close()
    assert rebuilt_digests(service, TASK) == task_digests(service, TASK)


@pytest.mark.parametrize("wipe", [False, True], ids=["kept", "lost"])
def test_tasks_go_on_beside_rules_that_are_published(here: Stage, wipe: bool) -> None:
    """P1: while they run, and when they start again with rules that were published meanwhile."""
    service, text = here.service, RULES["visit"].replace("gap=1s", "gap=2s")
    for number in range(4):
        for partition in (0, 1):
            for stream in "ab":
                service.events(stream, [event(number * 10 * S)], partition)
        settle(here)
        if number == 1:
            publish(service.settings, service.log, plan_publish(service.settings, service.log, text), "test", "")
            here.container.rule_source.refresh()
            wait_until(lambda: "rules of change" in "".join(here.said), "the change is taken", here.container.cycle)
        here.crash(wipe=wipe)
    settle(here)
    assert len(seen(service)) == 4 * 3  # the last ones wait for event time
    here.close()
    assert rebuilt_digests(service, TASK) == task_digests(service, TASK)


def test_a_stream_that_is_scattered_now_and_was_not_is_refused_with_what_to_do(here: Stage) -> None:
    """P4: a key's state would be in another partition than its events."""
    service = here.service
    service.events("a", [event(0)], 0)
    settle(here)
    here.close()
    service.edit(lambda data: data["streams"]["a"].update(repartition=False))
    tasks = here.container.tasks
    with pytest.raises(Refused, match="input-replaced") as caught:
        wait_until(
            lambda: any(each.state is TaskState.CLOSED for each in tasks.values()), "it ends", here.container.cycle
        )
    assert "`repartition`" in caught.value.hint
    assert "another name" in caught.value.hint
