"""Which inputs are paused while a task holds much, or later stages have much to take."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from samovar.changelog.log import TopicPartition
from samovar.common.tunables import Tunables
from samovar.native.kernel import joined
from samovar.tasks.input.source import StreamSource
from samovar.tasks.model.plan import InputSpec
from samovar.tasks.runtime.backpressure import Backpressure
from samovar.tasks.runtime.stream_task import TaskState

A, B, C = (TopicPartition(name, 0) for name in "abc")


@dataclass
class Reads:
    """A member of a group that only notes what it is told."""

    calls: list[tuple[str, set[TopicPartition]]] = field(default_factory=list)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self.calls.append(("pause", set(partitions)))

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self.calls.append(("resume", set(partitions)))


@dataclass
class StubTask:
    """As much of a task as matters here: inputs, and event times of each."""

    times: dict[str, int]
    waiting: int = 0
    state: TaskState = TaskState.RUNNING
    next: int = 0

    def __post_init__(self) -> None:
        specs = [InputSpec(stream=name, topic=name, key="k") for name in self.times]
        self.source = StreamSource(specs, ("k",), 0)
        for source in self.source.sources.values():
            self.source.buffer.max_event_time[source.number, 0] = self.times[source.spec.stream]
        self.source.buffer.low_watermark = self.source.buffer.watermark()
        self.wait(self.waiting)

    def wait(self, count: int) -> None:
        """So many events wait."""
        decoder = next(iter(self.source.sources.values())).decoder
        batch, values = decoder.batch(), joined([b'{"k": "x", "ts": 9}'] * count)
        decoder.decode(batch, values, 0, np.zeros(count, np.int32), np.arange(count, dtype=np.int64))
        self.source.buffer.pending = batch

    @property
    def processor(self) -> StubTask:
        return self

    @property
    def inputs(self) -> list[TopicPartition]:
        return [TopicPartition(name, 0) for name in self.times]

    def positions(self) -> dict[TopicPartition, int]:
        return dict.fromkeys(self.inputs, self.next)


def update_paused(pausing: Backpressure, *tasks: StubTask, plans: Any = ()) -> list[tuple[str, set[TopicPartition]]]:
    member = Reads()
    pausing.update_paused(member, plans, tasks, 0)  # type: ignore[arg-type]
    return member.calls


@pytest.mark.parametrize(("waiting", "is_much"), [(2, False), (3, True)])
def test_inputs_ahead_wait_while_more_events_than_that_are_held(waiting: int, is_much: bool) -> None:
    pausing, task = Backpressure(Tunables(pending_events=2)), StubTask({"a": 100, "b": 50}, waiting)
    assert update_paused(pausing, task) == ([("pause", {A})] if is_much else [])
    assert pausing.paused == ({A} if is_much else set())


def test_what_is_paused_is_told_once_and_goes_on_when_less_is_held() -> None:
    pausing, task = Backpressure(Tunables(pending_events=2)), StubTask({"a": 100, "b": 50}, 3)
    assert update_paused(pausing, task) == [("pause", {A})]
    assert update_paused(pausing, task) == []
    task.wait(2)
    assert update_paused(pausing, task) == [("resume", {A})]
    assert pausing.paused == set()


def test_bytes_count_as_events_do() -> None:
    task = StubTask({"a": 100, "b": 50}, 3)
    held = task.source.waiting_bytes()
    assert update_paused(Backpressure(Tunables(pending_bytes=held)), task) == []
    assert update_paused(Backpressure(Tunables(pending_bytes=held - 1)), task) == [("pause", {A})]


def test_an_input_that_another_stage_waits_for_is_not_paused() -> None:
    pausing, one = Backpressure(Tunables(pending_events=2)), StubTask({"a": 100, "b": 50, "c": 90}, 3)
    other = StubTask({"a": 10, "b": 40})
    assert update_paused(pausing, one, other) == [("pause", {C})]
    other.state = TaskState.RESTORING
    assert update_paused(pausing, one, other) == [("pause", {A})]


def test_sources_wait_while_later_stages_have_much_to_take() -> None:
    @dataclass
    class Stage:
        inputs: list[InputSpec]

    plans = [Stage([InputSpec(stream="a", topic="r", key="k", source_topic="a", source_partitions=1)])]
    pausing, later = Backpressure(Tunables(pending_bytes=100)), StubTask({"r": 0})
    pausing.in_flight.sent(100, {TopicPartition("r", 0): 7})
    main = StubTask({"a": 0, "b": 0})
    assert update_paused(pausing, main, later, plans=plans) == []
    pausing.in_flight.sent(1, {TopicPartition("r", 0): 9})
    assert update_paused(pausing, main, later, plans=plans) == [("pause", {A})]
    later.next = 10
    assert update_paused(pausing, main, later, plans=plans) == [("resume", {A})]


def test_a_partition_that_is_gone_is_forgotten() -> None:
    pausing = Backpressure(Tunables(), {A, TopicPartition("a", 1)})
    pausing.gone([1])
    assert pausing.paused == {A}
    pausing.clear()
    assert pausing.paused == set()
