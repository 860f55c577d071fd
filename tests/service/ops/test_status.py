"""`samovar status`: what runs, how far it is, and what is left when nothing runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.formats import heartbeat
from samovar.changelog.formats.heartbeat import HeartbeatRecord, InputReport, MemberMetadata, RestoreReport, TaskReport
from samovar.changelog.log import TopicPartition
from samovar.common.errors import LogUnavailable, Refused
from samovar.service.http.status_poller import StatusSnapshot as Look
from samovar.service.http.status_poller import rates_of
from samovar.service.ops.status import ContainerStatus, ServiceStatus, containers_of, seconds_text
from samovar.service.runtime.running import container_of
from samovar.tasks.model.clock import SetClock, SystemClock
from samovar.tasks.runtime.container import Container
from samovar.tasks.runtime.heartbeat import Ends, HeartbeatReporter
from samovar.tasks.runtime.metrics import MetricsSampler
from tests.support.small_service import Service, catch_up, make, many, purchase, run

NOW = 1_800_000_000_000
HERE = MemberMetadata(
    slot=0,
    host="h",
    pid=7,
    since_ms=NOW - 60_000,
    version="1.2",
    time_ms=NOW,
    tasks=[TaskReport(stage="", partition=0, life="running")],
    counts={"events": 3},
)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return make(tmp_path / "s")


def status(service: Service, code: int) -> dict[str, Any]:
    done = run("status", service.config, "--json")
    assert done.exit_code == code, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def told(container: Container, log: EmbeddedLog) -> Iterator[HeartbeatReporter]:
    """A container that tells of itself when the test says so."""
    observer = MetricsSampler(container, SystemClock())
    reporter = HeartbeatReporter(log, "s", observer)
    observer(now=True)
    reporter.report()
    yield reporter


# ---------------------------------------------------------------- nothing runs


def test_before_the_first_run_there_is_nothing_to_tell(service: Service) -> None:
    found = status(service, 1)
    assert (found["containers"], found["tasks"], found["running"]) == ([], [], False)


def test_when_nothing_runs_lag_and_event_time_are_those_of_the_last_commit(service: Service) -> None:
    service.process(many(60))
    service.produce([purchase("c1", 500, 3), purchase("c2", 500, 3)])
    found = status(service, 1)
    assert {task["life"] for task in found["tasks"]} == {"stopped"}
    assert found["lag"] == 2
    assert found["behind_s"] >= 0
    assert [task["container"] for task in found["tasks"]] == [None, None]
    committed = {each["partition"]: each["committed"] for task in found["tasks"] for each in task["inputs"]}
    ends = {each["partition"]: each["end"] for task in found["tasks"] for each in task["inputs"]}
    assert sum(ends[at] - committed[at] for at in ends) == 2
    assert found["watermark"] == min(task["watermark"] for task in found["tasks"])
    text = run("status", service.config).stdout
    assert text.startswith("s: no container; 0 of 2 tasks running; lag 2 events, ")


def test_the_lag_in_seconds_is_the_age_of_the_first_record_that_waits(service: Service) -> None:
    service.process(many(20))
    service.clock.now_ms = int(time.time() * 1000) - 90_000
    service.produce([purchase("c1", 500, 3)])
    service.clock.now_ms += 80_000
    service.produce([purchase("c1", 501, 3)])
    behind = {task["partition"]: task["behind_s"] for task in status(service, 1)["tasks"]}
    partition = service.partition("c1")
    assert 89 < behind[partition] < 150
    assert behind[1 - partition] == 0.0


# ---------------------------------------------------------------- something runs


def test_a_container_shows_itself_and_its_tasks(service: Service) -> None:
    service.produce(many(60))
    with service.container() as container, service.log() as log, told(container, log):
        found = status(service, 0)
    (shown,) = found["containers"]
    assert (shown["slot"], shown["state"], shown["tasks"]) == (0, "running", 2)
    assert found["running"]
    assert {(task["partition"], task["container"], task["life"]) for task in found["tasks"]} == {
        (0, 0, "running"),
        (1, 0, "running"),
    }
    assert all(task["blocked_by"] == ["purchase", task["partition"]] for task in found["tasks"])
    assert found["blocked_by"]["partition"] == min(found["tasks"], key=lambda task: task["watermark"])["partition"]


def test_a_container_that_was_killed_is_gone_and_its_tasks_stand(service: Service) -> None:
    """It left its record behind; that it is in no group any more tells."""
    service.produce(many(60))
    with service.container() as container, service.log() as log, told(container, log):
        pass
    found = status(service, 1)
    assert [each["state"] for each in found["containers"]] == ["gone"]
    assert {(task["container"], task["life"]) for task in found["tasks"]} == {(None, "stopped")}


def test_a_container_that_leaves_takes_its_record_along(service: Service) -> None:
    done = run("run", service.config, "--until-caught-up")
    assert done.exit_code == 0, done.output
    with service.log() as log:
        at = TopicPartition("s-containers", 0)
        assert log.bounds([at])[at].end >= 2
        assert heartbeat.read_heartbeats(log, "s") == {}


def test_who_is_silent_joining_or_gone() -> None:
    seen = {
        0: HeartbeatRecord(HERE, NOW - 1_000),
        1: HeartbeatRecord(HERE, NOW - 60_000),
        2: HeartbeatRecord(HERE, NOW),
    }
    found = containers_of(seen, ["s-0", "s-1", "s-3"], "s", NOW)
    assert [(each.slot, each.state) for each in found] == [(0, "running"), (1, "silent"), (2, "gone"), (3, "joining")]
    assert containers_of({}, ["slot-4", "stranger"], "s", NOW)[0].slot == 4


def test_a_task_of_a_container_that_hangs_is_not_said_to_run(service: Service) -> None:
    service.process(many(20))
    service.clock = SetClock(int(time.time() * 1000) - 60_000)
    tasks = [TaskReport(stage="", partition=0, life="running"), TaskReport(stage="", partition=1, life="running")]
    with service.container(), service.log() as log:
        heartbeat.send_heartbeat(log, "s", replace(HERE, tasks=tasks))
        found = status(service, 1)
    assert [each["state"] for each in found["containers"]] == ["silent"]
    assert ([task["life"] for task in found["tasks"]], found["running"]) == (["silent", "silent"], False)


def test_a_restore_shows_how_far_it_is_and_how_long_it_takes(service: Service) -> None:
    service.process(many(20))
    restore = RestoreReport(100_000, 400_000, 50_000.0)
    tasks = [
        TaskReport(stage="", partition=0, life="restoring", restore=restore),
        TaskReport(stage="", partition=1, life="created"),
    ]
    here = replace(HERE, tasks=tasks, time_ms=int(time.time() * 1000))
    with service.container(), service.log() as log:
        heartbeat.send_heartbeat(log, "s", here)
        found = status(service, 1)
        text = run("status", service.config).stdout
    assert found["tasks"][0]["restore"] == {"done": 100_000, "todo": 400_000, "per_s": 50_000, "left_s": 6.0}
    assert [task["life"] for task in found["tasks"]] == ["restoring", "created"]
    assert "restoring 0: 100,000 of 400,000 offsets, 50,000/s, 6.0 s left" in text


def test_the_observer_measures_a_restore(service: Service) -> None:
    service.process(many(200, cards=90))
    with service.log() as log:
        container = container_of(service.settings, log, 0, lambda _: None, service.clock)
        observer = MetricsSampler(container, SystemClock())
        seen = []
        for _ in range(200):
            container.cycle()
            observer(now=True)
            assert observer.latest is not None
            seen += [task.life for task in observer.latest.tasks]
            if container.caught_up():
                break
        container.close()
    assert observer.latest is not None
    assert observer.latest.restored == 0  # the store was there
    assert seen[-2:] == ["running", "running"]


# ---------------------------------------------------------------- the record


def test_a_record_comes_back_as_it_was() -> None:
    task = TaskReport(
        stage="by-user",
        partition=3,
        life="running",
        watermark=5,
        blocked_by=("login", 2),
        inputs=(InputReport(stream="login", topic="t", partition=3, next=7, end=9, behind_s=0.5),),
        restore=None,
        state_bytes=12,
    )
    whole = replace(
        HERE, tasks=(task, TaskReport(stage="", partition=0, life="restoring", restore=RestoreReport(1, 2, None)))
    )
    assert heartbeat.unpack_metadata(heartbeat.pack_metadata(whole)) == whole
    assert task.inputs[0].lag == 2


def test_what_a_newer_version_tells_is_refused_not_guessed() -> None:
    told, newer = b'"v":%d' % heartbeat.FORMAT, b'"v":%d' % (heartbeat.FORMAT + 1)
    data = heartbeat.pack_metadata(HERE).replace(told, newer)
    with pytest.raises(Refused) as refused:
        heartbeat.unpack_metadata(data)
    assert refused.value.code == "format-newer"


def test_a_log_that_does_not_answer_holds_up_nobody(service: Service) -> None:
    """What cannot be told is told a moment later; what was seen is there for anyone who asks."""
    service.produce(many(20))
    with service.container() as container, service.log() as log:
        observer = MetricsSampler(container, SystemClock())
        observer(now=True)
        reporter = HeartbeatReporter(Away(log), "s", observer)
        reporter.report()
        assert (reporter.trouble, reporter.latest is not None) == ("away", True)
        catch_up(container)


class Away:
    """A log that is away for one who tells."""

    def __init__(self, log: EmbeddedLog) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def append(self, _: object) -> int:
        raise LogUnavailable("away")


# ---------------------------------------------------------------- lag in seconds


def test_the_lag_counts_from_when_the_end_passed_the_position() -> None:
    at = TopicPartition("t", 0)
    ends = Ends()
    for second, end in ((0, 10), (2, 10), (4, 12), (6, 15)):
        ends.add(float(second), {at: end})
    assert ends.behind_s(at, 15, 6.0, 999.0) == 0.0
    assert ends.behind_s(at, 12, 6.0, 999.0) == 0.0  # the first sample beyond it is of now
    assert ends.behind_s(at, 10, 6.0, 999.0) == 2.0
    assert ends.behind_s(at, 5, 6.0, 33.0) == 33.0  # nobody saw that pass: the last record taken tells
    assert ends.behind_s(at, 5, 6.0, None) == 6.0
    assert ends.behind_s(TopicPartition("u", 0), 5, 6.0, None) is None


def test_lengths_of_time() -> None:
    assert [seconds_text(each) for each in (0.25, 75, 7_200, 300_000)] == ["0.2 s", "75 s", "120 min", "83 h"]


# ---------------------------------------------------------------- further stages

BY_COUNTRY = """
rule: country
match: |
  aggregate by country over 1h
    [purchase where amount > 0]
    having count() >= 5
suppress: 1h
"""


def test_the_tasks_of_all_stages_show(service: Service) -> None:
    """A rule keyed otherwise has a stage of its own, with tasks, lag, and what its event time waits for."""
    (service.config.parent / "rules" / "country.yml").write_text(BY_COUNTRY)
    service.produce(many(60))
    with service.container() as container, service.log() as log:
        for _ in range(20):  # what was forwarded is read by later cycles
            container.cycle()
        with told(container, log):
            found = status(service, 0)
    stages = {(task["stage"], task["partition"]) for task in found["tasks"]}
    assert stages == {("", 0), ("", 1), ("by-country", 0), ("by-country", 1)}
    late = [task for task in found["tasks"] if task["stage"] == "by-country"]
    assert all(task["life"] == "running" and task["blocked_by"][0] == "purchase" for task in late)
    assert found["lag"] == 0
    found = status(service, 1)  # and when nothing runs
    assert {(task["stage"], task["life"]) for task in found["tasks"]} == {("", "stopped"), ("by-country", "stopped")}


def test_rates_are_of_what_each_container_counted_since_the_look_before() -> None:
    """One that is back, or that took another's slot, brings no old counts into a second."""

    def look(at_s: float, *present: MemberMetadata) -> Look:
        containers = tuple(ContainerStatus(each.slot, "running", HeartbeatRecord(each, NOW)) for each in present)
        return Look(at_s, ServiceStatus(service="s", time_ms=NOW + int(at_s * 1000), containers=containers, tasks=()))

    old = replace(HERE, since_ms=NOW - 60_000, counts={"events": 90_000})
    more = replace(old, counts={"events": 90_050})
    fresh = replace(HERE, since_ms=NOW + 1_000, counts={"events": 30})

    def rate(before: Look, after: Look) -> float:
        return rates_of(before, after)["events_per_s"]

    assert rate(look(0, old), look(5, more)) == 10
    assert rate(look(0), look(5, more)) == 0
    assert rate(look(0, old), look(5, fresh)) == 6
    assert rate(look(0, fresh), look(5, old)) == 0
