"""Inputs that are ahead wait for the ones behind, so that what a container must hold stays small."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from samovar.changelog.log import Member, TopicPartition
from samovar.common.tunables import Tunables
from samovar.tasks.model.plan import Plan
from samovar.tasks.runtime.stream_task import StreamTask, TaskState


@dataclass
class InFlightBytes:
    """The source of truth for how much of it there is, since all of it was last taken."""

    bytes: int = 0
    _ends: dict[TopicPartition, int] = field(default_factory=dict)  # of repartition topics: the last record written

    def sent(self, count: int, ends: Mapping[TopicPartition, int]) -> None:
        """So many bytes were forwarded by a commit, which ended partitions so. Marks are written to every one."""
        if count:
            self.bytes += count
            self._ends.update(ends)

    def is_taken(self, positions: Mapping[TopicPartition, int | None]) -> bool:
        """Whether the stages here stand behind all of it. A position is None where a stage still restores."""
        if all(at not in positions or (positions[at] or 0) > end for at, end in self._ends.items()):
            self.clear()
        return not self.bytes

    def clear(self) -> None:
        self.bytes = 0
        self._ends.clear()


@dataclass
class Backpressure:
    """The source of truth for which inputs are paused."""

    tunables: Tunables
    paused: set[TopicPartition] = field(default_factory=set)
    in_flight: InFlightBytes = field(default_factory=InFlightBytes)

    def update_paused(self, member: Member, plans: Iterable[Plan], tasks: Collection[StreamTask], now_ms: int) -> None:
        """Pause and resume, after what the tasks hold by now."""
        running = [task for task in tasks if task.state is TaskState.RUNNING]
        most_events, most_bytes = self.tunables.pending_events, self.tunables.pending_bytes
        waiting = []
        for task in running:
            source = task.processor.source
            events = len(source.buffer.pending)
            if events > most_events or (events and source.waiting_bytes() > most_bytes):
                waiting.append(task)
        sources: set[TopicPartition] = set()  # inputs of which later stages get events, and have too many of them
        is_much = self.in_flight.bytes > most_bytes
        if is_much:  # unless the later stages here have taken it
            found: dict[TopicPartition, int | None] = {}
            for task in tasks:
                found |= task.positions() if task.state is TaskState.RUNNING else dict.fromkeys(task.inputs)
            is_much = not self.in_flight.is_taken(found)
        if is_much:
            topics = {spec.source_topic for plan in plans for spec in plan.inputs}
            sources = {at for task in running for at in task.inputs if at.topic in topics}
            # What later stages wait for, which hold much already, must not be paused by what those do not take.
            sources -= {at for task in waiting for at in task.processor.source.behind(now_ms)}
        if not waiting and not sources and not self.paused:
            return
        ahead = {at for task in waiting for at in _ahead(task, running, now_ms)} | sources
        if ahead - self.paused:
            member.pause(ahead - self.paused)
        if self.paused - ahead:
            member.resume(self.paused - ahead)
        self.paused = ahead

    def gone(self, partitions: Collection[int]) -> None:
        """They belong to another, or to nobody."""
        self.paused = {at for at in self.paused if at.partition not in partitions}

    def clear(self) -> None:
        self.paused.clear()
        self.in_flight.clear()


def _ahead(task: StreamTask, running: Iterable[StreamTask], now_ms: int) -> set[TopicPartition]:
    """Inputs that are ahead of a task. One that another stage waits for is not paused: both could wait for ever."""
    own, inputs = set(task.inputs), {at for each in running for at in each.inputs}
    others = [each.processor.source for each in running if each is not task]
    needed = {at for source in others for at in own.intersection(source.behind(now_ms))}
    return (task.processor.source.ahead(now_ms) - needed) & inputs
