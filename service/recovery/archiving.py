"""Copying a service's topics into its archive, once or on and on; and whether what is there is whole.

Who copies is a process next to the containers: it reads what anyone may read, so that it slows no commit, and a fault
of the archive's store stops no task. Those that follow share the partitions by a group, as consumers do; where two copy
the same all the same, no harm is done (samovar.changelog.archive.copy).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from samovar.changelog.archive.archive import Archive
from samovar.changelog.archive.copy import Copier, CopySource, position_of, stable_ends
from samovar.changelog.cursors import GONE
from samovar.changelog.log import Delivery, GroupConfig, Log, TopicPartition
from samovar.common.errors import Fenced, LogUnavailable, Refused
from samovar.service.config.models import ServiceFile
from samovar.service.ops.archive import NEAR, retention_of
from samovar.service.ops.metrics import ArchiveSnapshot
from samovar.service.topology.archives import needed_archive, roles_of, sources_of
from samovar.service.topology.topics import TopicRole, archive_group

LOOK_S = 1.0  # between two looks at what has come
AGAIN_S = 5.0  # after the log or the archive could not be reached
SOURCES_S = 30.0  # between two looks at which topics there are
EXPIRE_S = 3600.0
TIED = (TopicRole.JOURNAL, TopicRole.CHANGELOG)  # of these the beginning is needed for ever


@dataclass
class CopyCounts:
    """What one run has copied."""

    files: int = 0
    records: int = 0


def copy_all(settings: ServiceFile, log: Log, on_file: Callable[[int, int], None] = lambda *_: None) -> CopyCounts:
    """Copy all that there is now, in every partition up to the last stable offset of the beginning."""
    archive, counts = needed_archive(settings), CopyCounts()
    copier, sources = Copier(log, archive), sources_of(settings, log)
    places = [source.at for source in sources]
    bounds, ends = log.bounds(places), stable_ends(log, places)
    lags = {
        source.at: position_of(archive.chain(source.topic, source.partition), bounds[source.at], ends[source.at]).lag
        for source in sources
    }
    for source in sources:
        for records, reached in copied(copier, source, ends[source.at]):
            counts.files, counts.records = counts.files + 1, counts.records + records
            lags[source.at] = max(0, ends[source.at] - reached)
            on_file(records, sum(lags.values()))
    expire(settings, log, archive, int(time.time() * 1000))
    return counts


def copied(copier: Copier, source: CopySource, until: int) -> Iterator[tuple[int, int]]:
    reached = -1
    while reached < until:
        try:
            facts = copier.copy_file(source)
        except Refused as refused:
            if refused.code not in GONE:
                raise
            continue  # retention took what was read just now: go on with what is left
        if facts is None:
            return
        reached = facts.next
        yield facts.records, reached


class Archiver:
    """Copies on and on. The source of truth for how far behind each partition is."""

    def __init__(self, settings: ServiceFile, log: Log, slot: int, tell: Callable[[str], None]) -> None:
        self.settings, self.log, self.slot, self.tell = settings, log, slot, tell
        self.counts, self.stopped = CopyCounts(), threading.Event()
        self.lags: dict[TopicPartition, int] = {}
        self.lost: dict[TopicPartition, tuple[int, int]] = {}  # offsets that nobody has
        self.behind_since: dict[TopicPartition, float] = {}  # when a record was first seen that is not copied
        self._owned: set[TopicPartition] = set()
        self._next: dict[TopicPartition, int] = {}
        self._sources: list[CopySource] = []
        self._sources_s = self._expired_s = 0.0
        self._trouble = ""

    def run(self) -> CopyCounts:
        """Until it is stopped. Nothing that is wrong with the log or the archive is an end: the service goes on."""
        while not self.stopped.is_set():
            try:
                self._run()
            except (Fenced, LogUnavailable) as error:
                self._wait(f"the log does not answer: {error}")
            except Refused as refused:
                self._wait(f"{refused.code}: {refused.what}")
        return self.counts

    def snapshot(self) -> ArchiveSnapshot:
        now_s = time.monotonic()
        ages = {at: now_s - self.behind_since.get(at, now_s) for at in self.lags}
        lost = {at: following - first for at, (first, following) in self.lost.items()}
        return ArchiveSnapshot(
            files=self.counts.files, records=self.counts.records, lags=dict(self.lags), ages_s=ages, lost=lost
        )

    def _wait(self, why: str) -> None:
        if why != self._trouble:
            self.tell(f"archive: {why}; it is tried again")
        self._trouble = why
        self.stopped.wait(AGAIN_S)

    def _run(self) -> None:
        archive, journal = needed_archive(self.settings), self.settings.journal.topic
        copier = Copier(self.log, archive)
        while not self.log.topics([journal]):  # the service is to run first
            if self.stopped.wait(LOOK_S):
                return
        self._next.clear()
        self._owned.clear()
        went: Callable[..., None] = self._owned.difference_update
        config = GroupConfig(
            group=archive_group(self.settings.service),
            slot=self.slot,
            topics=[journal],
            delivery=Delivery.AT_LEAST_ONCE,
            on_assigned=self._owned.update,
            on_revoked=went,
            on_lost=went,
        )
        with closing(self.log.join(config)) as member:
            while not self.stopped.is_set():
                member.poll(1, 0.0)
                self._turn(copier, archive, lambda: member.poll(1, 0.0))
                self.stopped.wait(LOOK_S)

    def _turn(self, copier: Copier, archive: Archive, after_file: Callable[[], object]) -> None:
        assert self.settings.archive is not None
        now_s = time.monotonic()
        if now_s - self._sources_s > SOURCES_S or not self._sources:
            self._sources, self._sources_s = sources_of(self.settings, self.log), now_s
        sources = [source for source in self._sources if self._owns(source)]
        places = [source.at for source in sources]
        bounds, ends = self.log.bounds(places), stable_ends(self.log, places)
        for source in sources:
            at = source.at
            is_new = at not in self._next  # nobody knows how old the oldest is: it is copied at once
            if is_new or self._next[at] < bounds[at].begin:
                self._look(archive, source, bounds[at], ends[at])
            self.lags[at] = max(0, ends[at] - self._next[at])
            if not self.lags[at]:
                copier.note_head(at)
                self.behind_since.pop(at, None)
                continue
            since_s = self.behind_since.setdefault(at, now_s)
            every_ms = min(self.settings.archive.every_ms, (retention_of(source.topic) or 1 << 60) // NEAR)
            is_full = self.lags[at] >= self.log.tunables.archive_records
            if not (is_new or is_full or now_s - since_s >= every_ms / 1000):
                continue
            for records, reached in copied(copier, source, ends[at]):
                self.counts.files, self.counts.records = self.counts.files + 1, self.counts.records + records
                self._next[at], self.lags[at] = reached, max(0, ends[at] - reached)
                after_file()
                if self.stopped.is_set() or not self._owns(source):
                    return
            self.behind_since.pop(at, None)
        if now_s - self._expired_s > EXPIRE_S:
            self._expired_s = now_s
            expire(self.settings, self.log, archive, int(time.time() * 1000))

    def _owns(self, source: CopySource) -> bool:
        return any(at.partition == source.partition for at in self._owned)

    def _look(self, archive: Archive, source: CopySource, bounds: Any, end: int) -> None:
        where = position_of(archive.chain(source.topic, source.partition), bounds, end)
        self._next[source.at] = where.next
        if where.lost is not None and self.lost.get(source.at) != where.lost:
            self.lost[source.at] = where.lost
            first, following = where.lost
            self.tell(
                f"archive-gap: retention took offsets {first:,} to {following - 1:,} of {source.at} before they were"
                " copied, and nobody has them any more: it goes on behind them"
            )


def expire(settings: ServiceFile, log: Log, archive: Archive, now_ms: int) -> int:
    """Delete files all of whose records are older than the archive keeps them; how many those were.

    The newest file of a partition stays, so that the next one knows where to go on; and of journals and changelogs all
    do: what is left of them would be worth nothing.
    """
    assert settings.archive is not None
    if settings.archive.keep_ms is None:
        return 0
    roles, deleted = roles_of(settings, log), 0
    for source in sources_of(settings, log):
        if roles[source.topic.name] in TIED:
            continue
        for span in archive.chain(source.topic, source.partition).spans[:-1]:
            facts = archive.open(source.topic, source.partition, span).facts
            if facts.times and facts.times[1] >= now_ms - settings.archive.keep_ms:
                break
            archive.folder.delete(f"{archive.place(source.topic, source.partition)}/{span.name}")
            deleted += 1
    return deleted


@dataclass(kw_only=True)
class ArchiveVerdict:
    """What is wrong with the files of a partition."""

    topic: str
    partition: int
    files: int = 0
    records: int = 0
    faults: list[str] = field(default_factory=list)


def verify_archive(
    settings: ServiceFile, log: Log, on_records: Callable[[int], None] = lambda _: None
) -> Iterator[ArchiveVerdict]:
    """Reads every file, and proves by offsets that each begins where the one before it ends, and the log behind."""
    archive = needed_archive(settings)
    for source in sources_of(settings, log):
        chain, begin = archive.chain(source.topic, source.partition), log.bounds([source.at])[source.at].begin
        found = ArchiveVerdict(topic=source.topic.name, partition=source.partition, files=len(chain.spans))
        gaps = [(gap.first, gap.next) for gap in chain.gaps()]
        gaps += [(chain.end, begin)] if chain.spans and chain.end < begin else []
        found.faults += [
            f"archive-gap: offsets {first:,} to {following - 1:,} are missing" for first, following in gaps
        ]
        for span in chain.spans:
            try:
                for block in archive.open(source.topic, source.partition, span).blocks(span.first):
                    found.records += len(block)
                    on_records(len(block))
            except Refused as refused:
                found.faults.append(f"{refused.code}: {refused.what}")
        yield found
