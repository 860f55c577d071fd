"""A container's thread that tells how it is doing: to the topic of containers, and to anyone who asks for metrics.

It alone asks the log for ends, and writes outside of any transaction: a log that does not answer holds up nobody. What
it cannot tell is told a moment later.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace

from samovar import __version__
from samovar.changelog.formats import heartbeat
from samovar.changelog.formats.heartbeat import InputReport, MemberMetadata
from samovar.changelog.log import Log, TopicPartition
from samovar.common.errors import Fenced, LogUnavailable, Refused
from samovar.tasks.runtime.metrics import MetricsSampler, MetricsSnapshot
from samovar.tasks.runtime.slot_claim import host_name

TELL_EVERY_S = 2.0
CLOSE_S = 5.0  # until the thread must have ended; a log that hangs is left alone then
SAMPLES = 300  # of an input's end that are remembered


@dataclass
class Ends:
    """Where inputs ended, and when: how long ago a position was the end is the lag in seconds."""

    samples: dict[TopicPartition, deque[tuple[float, int]]] = field(default_factory=dict)

    def add(self, now_s: float, ends: Mapping[TopicPartition, int]) -> None:
        self.samples = {at: self.samples.get(at, deque(maxlen=SAMPLES)) for at in ends}
        for at, end in ends.items():
            self.samples[at].append((now_s, end))

    def end(self, at: TopicPartition) -> int | None:
        return self.samples[at][-1][1] if at in self.samples else None

    def behind_s(self, at: TopicPartition, position: int, now_s: float, taken_ago_s: float | None) -> float | None:
        """Seconds since the first record not taken was appended, or, where nobody saw that, the last taken one."""
        samples = self.samples.get(at)
        if samples is None:
            return None
        if position >= samples[-1][1]:
            return 0.0
        passed = next(number for number, (_, end) in enumerate(samples) if end > position)
        if passed > 0 or taken_ago_s is None:
            return max(now_s - samples[passed][0], 0.0)
        return max(taken_ago_s, 0.0)


class HeartbeatReporter:
    """The thread. `latest` is what it told last, and may be read by any other one."""

    def __init__(
        self,
        log: Log,
        service: str,
        observer: MetricsSampler,
        every_s: float = TELL_EVERY_S,
        address: str | None = None,
    ) -> None:
        self._log, self._service, self._observer, self._every_s = log, service, observer, every_s
        self._address = address
        self._host, self._pid, self._since_ms = host_name(), os.getpid(), int(time.time() * 1000)
        self._ends = Ends()
        self._wake, self._ending = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)
        self.latest: MemberMetadata | None = None
        self.snapshot: MetricsSnapshot | None = None
        self.trouble: str | None = None  # why the last one could not be told

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Tell now, and not only when it is time."""
        self._wake.set()

    def close(self) -> None:
        """Say that the container is no more."""
        self._ending = True
        self._wake.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._ending:
            self.report()
            self._wake.wait(self._every_s)
            self._wake.clear()
        if self.latest is not None:
            with suppress(Refused, LogUnavailable, Fenced):
                heartbeat.send_tombstone(self._log, self._service, self.latest.slot)

    def report(self) -> None:
        """Tell what was seen last."""
        snapshot = self._observer.latest
        if snapshot is None:
            return
        try:
            self._observer.watch.check_if_due()
            places = {TopicPartition(each.topic, each.partition) for task in snapshot.tasks for each in task.inputs}
            bounds = self._log.bounds(places)
            self._ends.add(time.monotonic(), {at: bounds[at].end for at in places})
            self.latest, self.snapshot = self._metadata(snapshot), snapshot
            heartbeat.send_heartbeat(self._log, self._service, self.latest)
            self.trouble = None
        except (Refused, LogUnavailable, Fenced) as error:
            self.latest, self.snapshot = self._metadata(snapshot), snapshot
            self.trouble = str(error)

    def _metadata(self, snapshot: MetricsSnapshot) -> MemberMetadata:
        now_ms, now_s = int(time.time() * 1000), time.monotonic()
        tasks = [
            replace(task, inputs=[self._with_lag(snapshot, each, now_ms, now_s) for each in task.inputs])
            for task in snapshot.tasks
        ]
        return MemberMetadata(
            slot=snapshot.slot,
            host=self._host,
            pid=self._pid,
            since_ms=self._since_ms,
            version=__version__,
            time_ms=now_ms,
            tasks=tasks,
            counts={name: int(value) for name, value in asdict(snapshot.counts).items()},
            caught_up=snapshot.caught_up,
            address=self._address,
            rules=snapshot.rules,
            active_rules=snapshot.active_rules
            if snapshot.changes or any(rule.kept_back for rule in snapshot.active_rules)
            else (),
            rules_refused=snapshot.rules_refused,
            unread=snapshot.unread,
        )

    def _with_lag(self, snapshot: MetricsSnapshot, each: InputReport, now_ms: int, now_s: float) -> InputReport:
        at = TopicPartition(each.topic, each.partition)
        taken_ms = snapshot.taken_ms.get(at)
        ago_s = None if taken_ms is None else (now_ms - taken_ms) / 1000
        behind_s = self._ends.behind_s(at, each.next, now_s, ago_s)
        return replace(each, end=self._ends.end(at), behind_s=None if behind_s is None else round(behind_s, 3))
