"""Two stages that read one input: the group has one offset for it, and they are not always equally far."""

from __future__ import annotations

import shutil

import pytest

from samovar.changelog.log import TopicPartition
from samovar.changelog.restore.restore import Restore
from samovar.tasks.runtime.stream_task import TaskState, task_folder
from tests.faults.harness import wait_until
from tests.faults.stage import Stage, Staging

T0 = 1_700_000_000_000
S = 1_000
TASK = "counter"
CODE = """
from samovar import Context, Event, Task


class Counter(Task):
    def process(self, event: Event, ctx: Context) -> None:
        seen = ctx.store("seen")
        seen.put(event.key, seen.get(event.key, 0) + 1)
"""
TASKS = {TASK: {"class": "counter:Counter", "streams": ["shared"], "stores": ["seen"]}}
STREAMS = {
    "shared": {"key": "card", "slack": "0s", "idle": "1h", "partitions": 1},
    "own": {"key": "card", "slack": "0s", "idle": "3s"},
}
VISIT = """
rule: visit
match: |
  session by card with gap=8s [own where true]
"""


def test_an_offset_stays_while_one_of_the_stages_restores(stage: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    """P3, P6: the one that runs commits what the clock brought about; the other is still at its changelog, and where it
    stands in the input nobody knows yet. It came to the service later, and is behind: the group's offset is its own.
    """
    here = stage({"visit": VISIT}, STREAMS)
    service, group = here.service, here.service.settings.service
    (service.folder / "counter.py").write_text(CODE)
    here.feed("own", {"card": "c", "ts": T0})
    here.feed("shared", *({"card": "c", "ts": T0 + (600 + number) * S} for number in range(3)))
    here.close()
    service.edit(lambda data: data.update(tasks=TASKS, tunables={"poll_records": 1, "commit_polls": 1}))
    at = TopicPartition(service.settings.streams["shared"].topic, 0)
    wait_until(lambda: is_at(here, at, {"": 3, TASK: 1}), "the task has taken one", here.container.cycle)
    here.crash()
    assert service.log.committed(group, [at]) == {at: 1}
    shutil.rmtree(task_folder(service.settings.state, 0, TASK))
    advance, held = Restore.advance, [True]

    def slowly(self: Restore, timeout_s: float = 0.1) -> bool:
        return False if held and self.changelog.at.topic.endswith(TASK) else advance(self, timeout_s)

    monkeypatch.setattr(Restore, "advance", slowly)
    main, other = ("", 0), (TASK, 0)
    tasks = here.container.tasks
    wait_until(lambda: main in tasks and tasks[main].state is TaskState.RUNNING, "one runs", here.container.cycle)
    service.events("shared", [{"card": "c", "ts": T0 + 603 * S}])
    here.container.cycle()
    here.clock.pass_ms(30 * S)
    wait_until(lambda: len(service.alerts()) == 1, "the clock ends a visit", here.container.cycle)
    assert tasks[other].state is TaskState.RESTORING
    assert service.log.committed(group, [at]) == {at: 1}, "it says where the stage behind goes on"
    assert tasks[main].positions()[at] == 3, "nothing is read of it meanwhile"
    held.clear()
    here.settle()
    assert is_at(here, at, {"": 4, TASK: 4})
    assert service.log.committed(group, [at]) == {at: 4}


def is_at(here: Stage, at: TopicPartition, wanted: dict[str, int]) -> bool:
    """Whether the stages have committed the input up to these offsets."""
    tasks = here.container.tasks
    if len(tasks) < len(wanted) or any(task.state is not TaskState.RUNNING or task.dirty for task in tasks.values()):
        return False
    return {stage: task.positions()[at] for (stage, _), task in tasks.items()} == wanted
