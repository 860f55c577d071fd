"""Whether the topics that a running container stands on are still the ones it began with (P4).

A topic that is deleted and made again takes records on under its old name, and nothing fails: a changelog would from
then on hold a part of the state. So the ids of the topics are compared, by a thread that is not the container's loop.
An input that has grown is another matter: its further partitions are not read, and how much waits there is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from samovar.changelog.formats.rules_topic import topic_of
from samovar.changelog.log import Log, Topic, TopicPartition
from samovar.common.errors import Refused
from samovar.tasks.model.clock import Clock
from samovar.tasks.model.log_events import LogEvent
from samovar.tasks.model.plan import Plan

LOOK_EVERY_MS = 5_000


class TopicWatch:
    """The source of truth for which topics a container began with. `look` may be another thread's than all else."""

    def __init__(self, log: Log, clock: Clock, tell: Callable[[str], None] = lambda _: None) -> None:
        self._log, self._clock, self._tell = log, clock, tell
        self._plans: Sequence[Plan] = ()
        self._begun: dict[str, Topic] = {}
        self._next_ms: int | None = None
        self.refused: Refused | None = None
        self.unread: Mapping[str, int] = {}  # by stream that has grown: records in partitions that are not read

    def follow(self, plans: Sequence[Plan]) -> None:
        """From here on these are at work; topics that come with them are known by what they are at the next look."""
        self._plans = plans

    def check(self) -> None:
        """Refuse to go on, where a look has found another topic."""
        if self.refused is not None:
            raise self.refused

    def check_if_due(self) -> None:
        now_ms = self._clock.steady_ms()
        if self._next_ms is None or now_ms >= self._next_ms:
            self._next_ms = now_ms + LOOK_EVERY_MS
            self.check_now()

    def check_now(self) -> None:
        plans = self._plans
        if not plans:
            return
        names = [name for plan in plans for name in (plan.topics.changelog, plan.topics.journal)]
        names += [spec.topic for plan in plans for spec in plan.inputs]
        names = list(dict.fromkeys([*names, topic_of(plans[0].service)]))  # all that a service's state stands on
        found = self._log.topics(names)
        self._begun = {name: topic for name, topic in self._begun.items() if name in names}
        inputs = {spec.topic for spec in plans[0].inputs}
        for name, topic in found.items():
            before = self._begun.setdefault(name, topic)
            if before.id != topic.id:
                self.refused = self.refused or _topic_replaced(plans, topic, before)
            elif before.partitions != topic.partitions and name not in inputs:
                self.refused = self.refused or Refused(
                    "topic-partitions",
                    f"the topic {topic.name} has {topic.partitions} partitions now, and had {before.partitions} when"
                    " this container began",
                    "It is the service's own, and a key's state is found by the number of its partitions. They cannot"
                    " be taken away again: give the service another name, under which it makes its state from the"
                    " input.",
                )
        own = found.get(plans[0].topics.journal)
        self.unread = {} if own is None else self._check_growth(plans[0], found, own.partitions)

    def _check_growth(self, main: Plan, found: Mapping[str, Topic], known: int) -> dict[str, int]:
        """Inputs that have more partitions now than the state was made with, and how much waits there unread."""
        unread: dict[str, int] = {}
        for spec in main.inputs:
            topic = found.get(spec.topic)
            if topic is None or topic.partitions <= known:
                continue
            beyond = [TopicPartition(topic.name, number) for number in range(known, topic.partitions)]
            unread[spec.stream] = sum(end - begin for begin, end in self._log.bounds(beyond).values())
            if spec.stream not in self.unread:
                text = (
                    f"the input {topic.name} has {topic.partitions} partitions now, and the state was made with"
                    f" {known}: partitions from {known} on are not read, and a record in one of the others whose key"
                    " has moved is a dead letter (key-moved). docs/operations.md says how to go on"
                )
                self._tell(LogEvent(text, "input-grown", "warning", topic=topic.name))
        return unread


def _topic_replaced(plans: Sequence[Plan], topic: Topic, before: Topic) -> Refused:
    detail = f"topic id {topic.id}, this container began with {before.id}"
    if topic.name in {plan.topics.changelog for plan in plans}:
        return Refused(
            "changelog-recreated",
            f"the changelog {topic.name} was deleted and made again while the service ran: it has a part of the state",
            "Stop all containers and make it whole again from the input: `samovar restore --from source`.",
            detail,
        )
    if topic.name in {spec.topic for plan in plans for spec in plan.inputs}:
        return Refused(
            "input-replaced",
            f"the input {topic.name} was deleted and made again while the service ran",
            "Put the topic back that the state was made from, or start with fresh state under another service name.",
            detail,
        )
    return Refused(
        "topic-recreated",
        f"the topic {topic.name} was deleted and made again while the service ran",
        "What it held is lost: put it back if there is a copy. Without the journal the state cannot be rebuilt from the"
        " input, and without the rules topic published rules are gone; take a snapshot and a copy of the state first.",
        detail,
    )
