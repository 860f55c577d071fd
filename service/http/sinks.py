"""Alerts next to their topic: to webhooks and files, at least once, in the order of each partition.

Every sink is a group of its own on the log, with committed positions, run by a thread of the HTTP process. Where
several such processes run, the log gives the partitions out, or one of them stands by. An alert is committed after it
was delivered: a crash repeats some, and their ids let receivers know them again. A new sink begins with the alerts that
come after it.

A webhook gets one alert per request, as the topic has it, by POST:

    Content-Type: application/json
    Idempotency-Key, Samovar-Alert: the alert's id          the same one twice is the same alert
    Samovar-Service, Samovar-Sink
    Samovar-Signature: t=UNIX_SECONDS,v1=HEX                 HMAC-SHA256 of `UNIX_SECONDS.BODY`, keyed by the secret

A receiver compares the signature in constant time, and refuses one whose time is minutes away. 2xx is taken. What is
passing (no answer, 5xx, 408, 425, 429) is tried again for as long as it takes, with growing pauses. What is refused
(any other answer) is tried again some times; then it is left out, counted and told: one alert that a receiver cannot
take must not hold up all that come after it. Redirects are not followed.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx2

from samovar.changelog.log import Delivery, GroupConfig, Log, Member, Records, TopicPartition
from samovar.common.errors import CommitUnknown, Fenced, LogUnavailable, Refused
from samovar.common.folders import opened_private
from samovar.service.alerts.index import Alert, read_alerts
from samovar.service.config.models import ServiceFile, SinkSettings
from samovar.service.topology.topics import sink_group

POLL_RECORDS = 200
POLL_S = 0.5
AGAIN_S = 5.0
FENCED_S = 60.0  # another process has this slot: do not fight about it
CLOSE_S = 5.0
FIRST_S = 0.5
REFUSED_TRIES = 5
PASSING = (408, 425, 429)
LOGGER = logging.getLogger("samovar.sinks")

Wait = Callable[[float], None]
OnFailure = Callable[[str], None]


# ---------------------------------------------------------------- where alerts go


class SinkTarget(Protocol):
    """Where alerts go."""

    def deliver(self, alerts: Sequence[Alert], wait: Wait, on_failure: OnFailure) -> None:
        """Returns when all are delivered, however long it takes; `wait` raises DeliveryStopped at the end."""


def signature(secret: str, at_s: int, body: bytes) -> str:
    """
    >>> signature("0123456789abcdef", 1700000000, b"{}")[:27]
    't=1700000000,v1=e4f8e2ecae2'
    """
    made = hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={made}"


def pause_s(attempt: int, max_backoff_s: float, jitter: float) -> float:
    """Twice as long each time, up to a bound, and never the same for all who wait.

    >>> [pause_s(attempt, 60, 1.0) for attempt in (1, 2, 3, 20)]
    [0.5, 1.0, 2.0, 60.0]
    """
    return min(FIRST_S * 2.0 ** min(attempt - 1, 30), max_backoff_s) * jitter


class WebhookTarget:
    """Posts alerts, one per request."""

    def __init__(self, name: str, service: str, settings: SinkSettings) -> None:
        assert settings.url is not None
        self._name, self._service = name, service
        self._url = settings.url.get_secret_value()
        self._secret = None if settings.secret is None else settings.secret.get_secret_value()
        self._max_backoff_s = settings.max_backoff_ms / 1000
        self._client = httpx2.Client(timeout=settings.timeout_ms / 1000, trust_env=False, follow_redirects=False)

    def deliver(self, alerts: Sequence[Alert], wait: Wait, on_failure: OnFailure) -> None:
        for alert in alerts:
            self._deliver_one(alert, wait, on_failure)

    def _deliver_one(self, alert: Alert, wait: Wait, on_failure: OnFailure) -> None:
        refusals, attempt = 0, 0
        while True:
            attempt += 1
            status = self._post(alert)
            if status is not None and 200 <= status < 300:
                return
            if status is None:
                on_failure("the receiver does not answer")
            elif status >= 500 or status in PASSING:
                on_failure(f"the receiver answered with {status}")
            else:
                refusals += 1
                on_failure(f"the receiver refused an alert with {status}")
                if refusals >= REFUSED_TRIES:
                    on_failure(f"alert {alert.id} is left out: it was refused {refusals} times with {status}")
                    return
            wait(pause_s(attempt, self._max_backoff_s, random.uniform(0.5, 1.0)))

    def _post(self, alert: Alert) -> int | None:
        """The answer's status; None where there was none. What went wrong may quote the address, and is not told."""
        body = alert.body.encode()
        headers = {"content-type": "application/json", "idempotency-key": alert.id, "samovar-alert": alert.id}
        headers |= {"samovar-service": self._service, "samovar-sink": self._name}
        if self._secret is not None:
            headers["samovar-signature"] = signature(self._secret, int(time.time()), body)
        try:
            return int(self._client.post(self._url, content=body, headers=headers).status_code)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError):
            return None


class FileTarget:
    """Appends alerts, a JSON line each. Opened again for every batch, so that it may be rotated."""

    def __init__(self, path: Path, max_backoff_s: float) -> None:
        self._path, self._max_backoff_s = path, max_backoff_s

    def deliver(self, alerts: Sequence[Alert], wait: Wait, on_failure: OnFailure) -> None:
        lines = "".join(f"{alert.body}\n" for alert in alerts).encode()
        attempt = 0
        while True:
            attempt += 1
            try:
                self.append(lines)
                return
            except OSError as error:
                on_failure(f"the file cannot be written: {error.strerror or error}")
                wait(pause_s(attempt, self._max_backoff_s, random.uniform(0.5, 1.0)))

    def append(self, lines: bytes) -> None:
        """All lines, durably. Half a line that a crash left is ended first."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self._path, "a+b", opener=opened_private) as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())


# ---------------------------------------------------------------- delivery


class DeliveryStopped(Exception):
    """The process ends: what was not delivered is delivered by the next one."""


@dataclass(frozen=True, kw_only=True)
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

    def __init__(self, name: str, settings: ServiceFile, log: Log, slot: int) -> None:
        own = settings.sinks[name]
        self.name, self._log, self._slot = name, log, slot
        self._target: SinkTarget = (
            WebhookTarget(name, settings.service, own)
            if own.file is None
            else FileTarget(own.file, own.max_backoff_ms / 1000)
        )
        self._topic, self._rules, self._group = settings.alerts.topic, own.rules, sink_group(settings.service, name)
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"sink-{name}", daemon=True)
        self._owned: set[TopicPartition] = set()
        self._done: dict[TopicPartition, int] = {}
        self.delivered = self.failed = 0
        self.trouble: str | None = None

    def report(self) -> SinkReport:
        done = dict(self._done)
        try:
            bounds = self._log.bounds(list(done)) if done else {}
            waiting = sum(max(bounds[at].end - offset, 0) for at, offset in done.items())
        except (LogUnavailable, Refused):
            waiting = 0
        return SinkReport(
            name=self.name,
            delivered=self.delivered,
            failed=self.failed,
            waiting=waiting,
            trouble=self.trouble,
            partitions=len(done),
        )

    def _run(self) -> None:
        while not self.ending.is_set():
            try:
                self._follow()
            except DeliveryStopped:
                return
            except (Fenced, LogUnavailable, CommitUnknown, Refused, OSError) as error:
                self.trouble = str(error).splitlines()[0] if str(error) else type(error).__name__
                LOGGER.warning("sink %s: %s", self.name, self.trouble)
                self.ending.wait(FENCED_S if isinstance(error, Fenced) else AGAIN_S)

    def _follow(self) -> None:
        def revoked(partitions: Collection[TopicPartition]) -> None:
            for at in partitions:
                self._owned.discard(at)
                self._done.pop(at, None)

        self._owned.clear()
        self._done.clear()
        member = self._log.join(
            GroupConfig(
                group=self._group,
                slot=self._slot,
                topics=[self._topic],
                delivery=Delivery.AT_LEAST_ONCE,
                on_assigned=self._owned.update,
                on_revoked=revoked,
                on_lost=revoked,
            )
        )
        try:
            while not self.ending.is_set():
                self._begin(member)
                for records in member.poll(POLL_RECORDS, POLL_S):
                    self._deliver(member, records)
        finally:
            member.close()

    def _begin(self, member: Member) -> None:
        """Goes on from what is committed; a new sink begins at the end, and says so to the log at once."""
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
        alerts = [alert for alert in read_alerts(records) if not self._rules or alert.rule in self._rules]
        if alerts:
            self._target.deliver(alerts, self._wait, self._on_failure)
            self.delivered += len(alerts)
            self.trouble = None
        member.transact([], {at: records.next})
        self._done[at] = records.next

    def _on_failure(self, why: str) -> None:
        self.failed += 1
        if self.trouble != why:
            LOGGER.warning("sink %s: %s; it is tried again", self.name, why)
        self.trouble = why

    def _wait(self, seconds: float) -> None:
        if self.ending.wait(seconds):
            raise DeliveryStopped


class Sinks:
    """All sinks of a service."""

    def __init__(self, settings: ServiceFile, log: Log, slot: int = 0) -> None:
        self._sinks = [Sink(name, settings, log, slot) for name in settings.sinks]

    def start(self) -> None:
        for sink in self._sinks:
            sink.thread.start()

    def close(self) -> None:
        for sink in self._sinks:
            sink.ending.set()
        for sink in self._sinks:
            sink.thread.join(CLOSE_S)

    def reports(self) -> list[SinkReport]:
        return [sink.report() for sink in self._sinks]
