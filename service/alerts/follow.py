"""The thread that reads what the HTTP process keeps: alerts and labels into the index, tokens into memory.

One reader for all topics. A log that does not answer is asked again; a damaged index is thrown away and folded again.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from samovar.changelog.cursors import available_reader
from samovar.changelog.log import Log, Reader, Records, Topic, TopicPartition
from samovar.common.errors import Fenced, LogUnavailable, Refused
from samovar.service.alerts.index import Alert, AlertsIndex, read_alerts
from samovar.service.alerts.labels import Label, unpack
from samovar.service.auth import tokens as access
from samovar.service.auth.tokens import Tokens
from samovar.service.config.models import ServiceFile
from samovar.service.topology.topics import labels_topic

POLL_RECORDS = 5_000
POLL_S = 0.2
AGAIN_S = 1.0
CLOSE_S = 5.0
LOOK_S = 5.0  # whether topics are still the same

LOGGER = logging.getLogger("samovar.http")


class Follower:
    """Reads on until it is closed. `position` is what the index has of each partition of alerts."""

    def __init__(
        self,
        settings: ServiceFile,
        log: Log,
        index: AlertsIndex,
        on_alerts: Callable[[Sequence[Alert]], None],
        tokens: Tokens,
    ) -> None:
        self._settings, self._log, self._index, self._on_alerts = settings, log, index, on_alerts
        self._tokens = tokens
        self._alerts, self._access = settings.alerts.topic, access.topic_of(settings.service)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self.position: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self.skipped = 0  # records that are not alerts and no labels
        self.trouble: str | None = None
        self.is_caught_up = False
        self._changed = threading.Condition()
        self._looked_s = 0.0

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._thread.join(CLOSE_S)

    @property
    def now(self) -> dict[int, int]:
        """Where live alerts begin for one who comes new: while old ones are still being read, behind those."""
        return {number: max(after, self._ends.get(number, 0)) for number, after in self.position.items()}

    def wait_begun(self, timeout_s: float) -> bool:
        """Whether it knows where the alerts begin, or will within this time."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self.position), timeout_s)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._follow()
            except sqlite3.DatabaseError as error:
                self.trouble = f"the index of alerts is rebuilt: {error}"
                self._index.renew()
            except (LogUnavailable, Fenced, Refused) as error:
                self.trouble = str(error).splitlines()[0]
            except Exception as error:  # the last line of defence: without this thread no token could be removed
                LOGGER.error("what the HTTP process follows cannot be read", exc_info=error)
                self.trouble = f"internal error: {type(error).__name__}"
            self._ending.wait(AGAIN_S)

    def _follow(self) -> None:
        names = [self._alerts, labels_topic(self._settings.service).name, self._access]
        topics = self._log.topics(names)
        ids = {each.name: each.id for each in topics.values()}
        self._tokens.renew(access.load_tokens(self._log, self._settings.service))
        starts, ends = self._bounds(topics)
        if not starts:
            return
        self._ends = {at.partition: end for at, end in ends.items() if at.topic == self._alerts}
        self._index.begin(topics, {at: start for at, start in starts.items() if at.topic != self._access})
        reader = available_reader(self._log, starts)
        positions = dict(starts)
        self._advance(positions)
        try:
            while not self._ending.is_set():
                batch = reader.poll(POLL_RECORDS, POLL_S)
                self._take(batch, reader, positions)
                self.trouble = None
                self.is_caught_up = self.is_caught_up or all(positions[at] >= end for at, end in ends.items())
                # Whenever it is quiet while a topic is missing, and every few seconds in any case.
                if time.monotonic() - self._looked_s > LOOK_S or (len(topics) < len(set(names)) and not batch):
                    self._looked_s = time.monotonic()
                    if {each.name: each.id for each in self._log.topics(names).values()} != ids:
                        return  # one was made since, or deleted and made again: begin again
        finally:
            reader.close()

    def _bounds(self, topics: Mapping[str, Topic]) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Where to begin in each partition, and where each ends now."""
        starts: dict[TopicPartition, int] = {}
        ends: dict[TopicPartition, int] = {}
        for topic in topics.values():
            is_access = topic.name == self._access  # what was before has been folded, removals included
            stored = {0: self._tokens.next} if is_access else self._index.positions(topic)
            places = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
            for at, (begin, end) in self._log.bounds(places).items():
                first = max(begin, end - self._index.most) if topic.name == self._alerts else begin
                known = stored.get(at.partition)
                starts[at] = first if known is None or known > end else max(known, begin)
                ends[at] = end
        return starts, ends

    def _take(self, batch: Sequence[Records], reader: Reader, positions: dict[TopicPartition, int]) -> None:
        alerts: list[Alert] = []
        labels: list[Label] = []
        moved: dict[TopicPartition, int] = {}
        for records in batch:
            at = TopicPartition(records.topic, records.partition)
            if at.topic == self._access:
                self._tokens.fold(records.pairs(), records.next)
                continue
            moved[at] = reader.position(at)
            if at.topic == self._alerts:
                found = list(read_alerts(records))
                self.skipped += len(records) - len(found)
                alerts += found
                continue
            for _, value in records.pairs():
                try:
                    labels += [] if value is None else [unpack(value)]
                except (ValueError, KeyError, TypeError):
                    self.skipped += 1
        if moved:
            new = self._index.take(alerts, labels, moved)
            positions |= moved
            self._advance(positions)
            if new:
                self._on_alerts(new)
        for at in positions:
            positions[at] = max(positions[at], reader.position(at))

    def _advance(self, positions: Mapping[TopicPartition, int]) -> None:
        with self._changed:
            found = {at.partition: after for at, after in sorted(positions.items()) if at.topic == self._alerts}
            self.position = found
            self._changed.notify_all()
