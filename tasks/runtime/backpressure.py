"""Inputs that are ahead wait for the ones behind, so that what a container must hold stays small."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from samovar.changelog.log import Member, TopicPartition
from samovar.common.tunables import Tunables
from samovar.tasks.input.source import Intake
from samovar.tasks.model.plan import Plan
from samovar.tasks.runtime.in_flight import InFlight
from samovar.tasks.runtime.stream_task import Life, Task


@dataclass
class Pausing:
    """The source of truth for which inputs are paused."""

    tunables: Tunables
    paused: set[TopicPartition] = field(default_factory=set)
    in_flight: InFlight = field(default_factory=InFlight)

    def look(self, member: Member, plans: Iterable[Plan], tasks: Collection[Task], now_ms: int) -> None:
        """Pause and resume, after what the tasks hold by now."""
        running = [task for task in tasks if task.life is Life.RUNNING]
        waiting = [task for task in running if self._holds_much(task.core.intake)]
        is_much = self.in_flight.bytes > self.tunables.pending_bytes and not self._is_taken(tasks)
        sources = _sources(plans, running) - _awaited(waiting, now_ms) if is_much else set()
        if not waiting and not sources and not self.paused:
            return
        ahead = {at for task in waiting for at in _ahead(task, running, now_ms)} | sources
        if ahead - self.paused:
            member.pause(ahead - self.paused)
        if self.paused - ahead:
            member.resume(self.paused - ahead)
        self.paused = ahead

    def _holds_much(self, intake: Intake) -> bool:
        most = self.tunables
        return len(intake.buffer.pending) > most.pending_events or intake.waiting_bytes() > most.pending_bytes

    def _is_taken(self, tasks: Iterable[Task]) -> bool:
        """Whether the later stages here have taken what was forwarded."""
        found: dict[TopicPartition, int | None] = {}
        for task in tasks:
            found |= task.positions() if task.life is Life.RUNNING else dict.fromkeys(task.inputs)
        return self.in_flight.is_taken(found)

    def gone(self, partitions: Collection[int]) -> None:
        """They belong to another, or to nobody."""
        self.paused = {at for at in self.paused if at.partition not in partitions}

    def clear(self) -> None:
        self.paused.clear()
        self.in_flight.clear()


def _ahead(task: Task, running: Iterable[Task], now_ms: int) -> set[TopicPartition]:
    """Inputs of this container that are ahead of a task. One that another stage reads too and waits for is not paused:
    the two could wait for each other for ever.
    """
    ahead = task.core.intake.ahead(now_ms)
    own, inputs = set(task.inputs), {at for each in running for at in each.inputs}
    needed = {at for each in running for at in own.intersection(each.core.intake.behind(now_ms)) if each is not task}
    return (ahead - needed) & inputs


def _awaited(waiting: Iterable[Task], now_ms: int) -> set[TopicPartition]:
    """Sources that later stages wait for, which hold much already: what those do not take must not pause them."""
    return {at for task in waiting for at in task.core.intake.behind(now_ms)}


def _sources(plans: Iterable[Plan], running: Iterable[Task]) -> set[TopicPartition]:
    """The inputs of which later stages get events."""
    topics = {spec.source_topic for plan in plans for spec in plan.inputs}
    return {at for task in running for at in task.inputs if at.topic in topics}
