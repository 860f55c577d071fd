"""Copies a partition into an archive, one file at a time.

    begin --copy_file--> published up to some offset --copy_file--> ... --> up to the last stable offset

A file appears whole or not at all, and the names of what is there say where to go on: nothing else is remembered. So
the copier may be killed at any moment, and two of them do no harm: each copies what it finds missing, and what both
publish says the same.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from samovar.changelog.archive.archive import Archive, Chain, FileSpan
from samovar.changelog.archive.archived_log import is_compacted
from samovar.changelog.archive.file import NO_EVENT, FileFacts, FileWriter
from samovar.changelog.batches import RecordBlock, block_of, rows_between
from samovar.changelog.log import Bounds, Int64s, Log, Topic, TopicPartition
from samovar.common.failpoints import hit
from samovar.common.folders import PART

STUCK_S = 30.0  # with no record for so long, what was read is published, and the rest is left for the next time
POLL_S = 0.1
STALE_S = 86_400.0  # a half-made file that is older is nobody's

EventTimes: TypeAlias = Callable[[RecordBlock], Int64s]


@dataclass(frozen=True, kw_only=True)
class CopySource:
    """One partition to be copied. `event_times` gives NO_EVENT for what is no event; they are of the field `field`."""

    topic: Topic
    partition: int
    event_times: EventTimes | None = None
    field: str = ""

    @property
    def at(self) -> TopicPartition:
        return TopicPartition(self.topic.name, self.partition)


@dataclass(frozen=True, kw_only=True)
class CopyPosition:
    """How far a partition is archived, and what of it the log will lose first."""

    bounds: Bounds
    stable: int  # the log's records before it are decided
    next: int  # the first offset that is to be copied
    lost: tuple[int, int] | None = None  # offsets that neither has

    @property
    def lag(self) -> int:
        return max(0, self.stable - self.next)


def stable_ends(log: Log, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
    """Where what is decided ends: of a log that shows only whole transactions, its end."""
    ask: Any = getattr(log, "stable_ends", None)
    if ask is not None:
        found: Mapping[TopicPartition, int] = ask(partitions)
        return found
    return {at: bounds.end for at, bounds in log.bounds(partitions).items()}


def position_of(chain: Chain, bounds: Bounds, stable: int) -> CopyPosition:
    """The first offset that the log has and the archive has not; nothing before the archive's beginning."""
    start = max(bounds.begin, chain.spans[0].first) if chain.spans else bounds.begin
    gap = chain.missing(start, max(start, stable))
    after = start if not chain.spans else gap.first if gap is not None else max(stable, chain.end)
    before = chain.missing(chain.spans[0].first, bounds.begin) if chain.spans else None
    lost = None if before is None or before.first >= bounds.begin else (before.first, before.next)
    return CopyPosition(bounds=bounds, stable=stable, next=after, lost=lost)


class Copier:
    """Copies partitions of one service. The source of truth for when each was last seen to have nothing left."""

    def __init__(
        self, log: Log, archive: Archive, clock_ms: Callable[[], int] = lambda: time.time_ns() // 10**6
    ) -> None:
        self._log, self._archive, self._clock_ms = log, archive, clock_ms
        self._heads: dict[TopicPartition, int] = {}
        scratch = archive.folder.scratch()
        for each in scratch.glob(f"*{PART}") if scratch is not None else ():
            with suppress(FileNotFoundError):
                if time.time() - each.stat().st_mtime > STALE_S:
                    each.unlink()

    def note_head(self, at: TopicPartition) -> None:
        """There was nothing left to be copied just now."""
        self._heads[at] = self._clock_ms()

    def copy_file(self, source: CopySource) -> FileFacts | None:
        """Copy what the next file takes, and publish it; None where there is nothing to be copied."""
        at, begun_ms = source.at, self._clock_ms()
        chain = self._archive.chain(source.topic, source.partition)
        where = position_of(chain, self._log.bounds([at])[at], stable_ends(self._log, [at])[at])
        if where.lag == 0:
            self.note_head(at)
            return None
        # Up to a file that is there already, where one in between is missing.
        end = min([where.stable, *(span.first for span in chain.spans if span.first > where.next)])
        handle, name = tempfile.mkstemp(PART, "file-", self._archive.folder.scratch())
        os.close(handle)
        path = Path(name)
        try:
            facts = self._write(source, chain, where, end, path, begun_ms)
            if facts is None:
                return None
            hit("archive.written")
            self._archive.folder.publish(path, f"{self._archive.place(source.topic, source.partition)}/{facts.name}")
            hit("archive.published")
        finally:
            path.unlink(missing_ok=True)
        if facts.head_ms:
            self._heads[at] = facts.head_ms
        return facts

    def _write(
        self, source: CopySource, chain: Chain, where: CopyPosition, end: int, path: Path, begun_ms: int
    ) -> FileFacts | None:
        at, tunables = source.at, self._log.tunables
        writer = FileWriter(path, tunables.archive_group_records, tunables.archive_group_bytes)
        position, waited_s = where.next, 0.0
        times, events, leading = list[int](), list[int](), list[int]()
        try:
            with closing(self._log.reader({at: position})) as reader:
                while position < end and writer.records < tunables.archive_records and waited_s < STUCK_S:
                    if writer.bytes >= tunables.archive_bytes:
                        break
                    found = reader.poll(min(tunables.replay_records, tunables.archive_records), POLL_S)
                    waited_s = 0.0 if found else waited_s + POLL_S
                    for each in found:
                        records = block_of(each)
                        rows = int(np.searchsorted(records.offsets, end))
                        rows = min(rows, tunables.archive_records - writer.records)
                        following = records.next if rows == len(records) else int(records.offsets[rows])
                        records, position = rows_between(records, 0, rows, following), min(following, end)
                        if not rows:
                            continue
                        if not times:
                            leading = [int(records.offsets[0]), int(records.times[0])]
                        own = None if source.event_times is None else source.event_times(records)
                        writer.add(records, own)
                        times += [int(records.times.min()), int(records.times.max())]
                        if own is not None and len(known := own[own != NO_EVENT]):
                            events += [int(known.min()), int(known.max())]
                        if position >= end or writer.records >= tunables.archive_records:
                            break
                    if not found:
                        position = max(position, min(reader.position(at), end))
            if position == where.next:
                return None
            topics, bounds = self._log.topics([at.topic]), self._log.bounds([at])[at]
            if at.topic not in topics or topics[at.topic].id != source.topic.id:
                return None  # it was deleted meanwhile, and what was read may be another topic's
            now_ms = self._clock_ms()
            facts = FileFacts(
                service=self._archive.service,
                topic=at.topic,
                topic_id=source.topic.id,
                partition=at.partition,
                first=where.next,
                next=position,
                records=writer.records,
                times=(min(times), max(times)) if times else (),
                events=(min(events), max(events)) if events else (),
                field=source.field,
                written_ms=now_ms,
                head_ms=now_ms if position >= bounds.end else 0,
                began_ms=begun_ms,
                log_end=bounds.end,
            )
            if is_compacted(source.topic):
                before = next((span for span in reversed(chain.spans) if span.next <= where.next), None)
                facts = self._compaction(source, facts, before, leading)
            writer.finish(facts)
            return facts
        finally:
            writer.close()

    def _compaction(
        self, source: CopySource, facts: FileFacts, before: FileSpan | None, leading: list[int]
    ) -> FileFacts:
        """What compaction may have taken before the file was read.

        Compaction touches no record that is younger than min.compaction.lag.ms, and no tombstone that is younger than
        delete.retention.ms. All of the file's records are younger than whatever was known to be the log's last one.
        """
        settings, now_ms = source.topic.settings, facts.written_ms
        lag_ms = int(settings.get("min.compaction.lag.ms", 0))
        keep_ms = int(settings.get("delete.retention.ms", 86_400_000)) // 2
        known = [self._heads.get(source.at, 0)]
        began_ms = facts.began_ms
        if leading and leading[0] == facts.first:
            known.append(leading[1])
        if before is not None:
            earlier = self._archive.open(source.topic, source.partition, before).facts
            known += [earlier.head_ms, *earlier.times[1:]]
            began_ms = max(earlier.began_ms, earlier.head_ms) if before.next == facts.first else 0
        whole = now_ms - max(known) < lag_ms
        deletes = before is None or now_ms - max(*known, began_ms) < keep_ms
        return replace(facts, whole=whole, deletes=deletes, began_ms=began_ms)
