"""Alerts next to their topic: to webhooks and files, at least once, in the order of each partition.

Every sink is a group of its own on the log, with committed positions, run by a thread of the HTTP process. Where
several such processes run, the log gives the partitions out, or one of them stands by. An alert is committed after it
was delivered: a crash repeats some, and their ids let receivers know them again. A new sink begins with the alerts that
come after it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from samovar.changelog.log import Delivery, GroupConfig, Log, Member, Records, TopicPartition
from samovar.common.errors import CommitUnknown, Fenced, LogUnavailable, Refused
from samovar.service.alerts.index import Alert, read_alert
from samovar.service.config.models import ServiceFile, SinkSettings
from samovar.service.topology.topics import sink_group

POLL_RECORDS = 200
POLL_S = 0.5
AGAIN_S = 5.0
FENCED_S = 60.0  # another process has this slot: do not fight about it
CLOSE_S = 5.0
LOGGER = logging.getLogger("samovar.sinks")


class DeliveryStopped(Exception):
    """The process ends: what was not delivered is delivered by the next one."""


class SinkTarget(Protocol):
    """Where alerts go."""

    def deliver(
        self, alerts: Sequence[Alert], wait: Callable[[float], None], on_failure: Callable[[str], None]
    ) -> None:
        """Returns when all are delivered, however long that takes; `wait` raises Stopped when there is no time left."""
        ...


@dataclass(frozen=True)
class SinkReport:
    """How a sink is doing. `waiting` is in offsets of the topic, `partitions` are those that are this process's."""

    name: str
    delivered: int
    failed: int
    waiting: int
    trouble: str | None
    partitions: int


class Sink:
    """One sink's thread. The source of truth for what it has delivered since the start."""

    def __init__(self, name: str, settings: ServiceFile, log: Log, target: SinkTarget, slot: int) -> None:
        self.name, self._settings, self._log, self._target, self._slot = name, settings, log, target, slot
        self._wanted = settings.sinks[name].rules
        self._group = sink_group(settings.service, name)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sink-{name}", daemon=True)
        self._owned: set[TopicPartition] = set()
        self._done: dict[TopicPartition, int] = {}
        self.delivered = self.failed = 0
        self.trouble: str | None = None

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ending.set()

    def close(self) -> None:
        self.end()
        self._thread.join(CLOSE_S)

    def report(self) -> SinkReport:
        return SinkReport(self.name, self.delivered, self.failed, self._waiting(), self.trouble, len(self._done))

    def _waiting(self) -> int:
        done = dict(self._done)
        try:
            bounds = self._log.bounds(list(done)) if done else {}
        except (LogUnavailable, Refused):
            return 0
        return sum(max(bounds[at].end - offset, 0) for at, offset in done.items())

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._ending.is_set():
            again_s = AGAIN_S
            try:
                self._follow()
            except DeliveryStopped:
                return
            except Fenced as error:
                self._note(error)
                again_s = FENCED_S
            except (LogUnavailable, CommitUnknown, Refused, OSError) as error:
                self._note(error)
            self._ending.wait(again_s)

    def _note(self, error: Exception) -> None:
        self.trouble = str(error).splitlines()[0] if str(error) else type(error).__name__
        LOGGER.warning("sink %s: %s", self.name, self.trouble)

    def _follow(self) -> None:
        self._owned.clear()
        self._done.clear()
        topic = self._settings.alerts.topic
        gone = self._gone
        joining = GroupConfig(self._group, self._slot, [topic], Delivery.AT_LEAST_ONCE, self._owned.update, gone, gone)
        member = self._log.join(joining)
        try:
            while not self._ending.is_set():
                self._begin(member)
                for records in member.poll(POLL_RECORDS, POLL_S):
                    self._deliver(member, records)
        finally:
            member.close()

    def _gone(self, partitions: Collection[TopicPartition]) -> None:
        for at in partitions:
            self._owned.discard(at)
            self._done.pop(at, None)

    def _begin(self, member: Member) -> None:
        """Go on from what is committed; a new sink begins at the end, and says so to the log at once."""
        new = [at for at in self._owned if at not in self._done]
        if not new:
            return
        committed, bounds = self._log.committed(self._group, new), self._log.bounds(new)
        firsts = {at: bounds[at].end for at in new if committed[at] is None}
        for at in new:
            known = committed[at]
            start = bounds[at].end if known is None else max(known, bounds[at].begin)
            member.seek(at, start)
            self._done[at] = start
        if firsts:
            member.transact([], firsts)
        member.resume(new)

    def _deliver(self, member: Member, records: Records) -> None:
        at = TopicPartition(records.topic, records.partition)
        rows = zip(records.offsets.tolist(), records.times.tolist(), records.pairs(), strict=True)
        found = (read_alert(records.partition, offset, logged, value) for offset, logged, (_, value) in rows)
        alerts = [alert for alert in found if alert is not None and (not self._wanted or alert.rule in self._wanted)]
        if alerts:
            self._target.deliver(alerts, self._wait, self._failed)
            self.delivered += len(alerts)
            self.trouble = None
        member.transact([], {at: records.next})
        self._done[at] = records.next

    def _failed(self, why: str) -> None:
        self.failed += 1
        if self.trouble != why:
            LOGGER.warning("sink %s: %s; it is tried again", self.name, why)
        self.trouble = why

    def _wait(self, seconds: float) -> None:
        if self._ending.wait(seconds):
            raise DeliveryStopped


class Sinks:
    """All sinks of a service."""

    def __init__(self, settings: ServiceFile, log: Log, slot: int = 0) -> None:
        self._sinks = [
            Sink(name, settings, log, target_of(name, each, settings.service), slot)
            for name, each in settings.sinks.items()
        ]

    def start(self) -> None:
        for sink in self._sinks:
            sink.start()

    def close(self) -> None:
        for sink in self._sinks:
            sink.end()
        for sink in self._sinks:
            sink.close()

    def reports(self) -> list[SinkReport]:
        return [sink.report() for sink in self._sinks]


def target_of(name: str, settings: SinkSettings, service: str) -> SinkTarget:
    from samovar.service.http.sinks.targets import FileTarget, Webhook  # noqa: PLC0415 - needed only where there is a sink

    if settings.file is not None:
        return FileTarget(settings.file)
    assert settings.url is not None
    return Webhook(name, service, settings, time.time)
