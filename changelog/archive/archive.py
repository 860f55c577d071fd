"""An archive: copies of partitions, made before retention takes their records, proved gap-free by their offsets.

    ARCHIVE/SERVICE/TOPIC/TOPIC ID/partition=N/FIRST-NEXT.parquet

A file's name says which offsets it covers: from the first up to, not including, the next, gaps and transaction markers
among them. So names alone prove that nothing is missing: a file begins where the one before it ends. A topic that was
deleted and made again has another id, and a folder of its own: its offsets say nothing about the old one's.

Two that copy at once may publish files that overlap. They say the same of every offset, so a reader takes each offset
from the file that reaches furthest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from samovar.changelog.archive.file import ArchiveFile
from samovar.changelog.archive.folder import ArchiveFolder
from samovar.changelog.batches import RecordBlock
from samovar.changelog.log import Topic, TopicPartition
from samovar.common.errors import Refused

NAME = re.compile(r"(\d{20})-(\d{20})\.parquet")


class FileSpan(NamedTuple):
    """Offsets `first` up to, not including, `next`, which a file has; it may have some before them, too."""

    first: int
    next: int
    name: str


class Gap(NamedTuple):
    """Offsets that no file has, between files that have what is before and behind."""

    first: int
    next: int


@dataclass(frozen=True)
class Chain:
    """The files of one partition, in order, each with the offsets that it is read for."""

    spans: Sequence[FileSpan]

    @classmethod
    def of(cls, names: Sequence[str]) -> Chain:
        """Of names of files; others are none of its business."""
        found = [(int(match[1]), int(match[2]), name) for name in names if (match := NAME.fullmatch(name))]
        chain: list[FileSpan] = []
        for first, following, name in sorted(found, key=lambda each: (each[0], -each[1])):
            reached = chain[-1].next if chain else first
            if following > reached:
                chain.append(FileSpan(max(first, reached), following, name))
        return cls(chain)

    @property
    def end(self) -> int:
        return self.spans[-1].next if self.spans else 0

    def gaps(self) -> list[Gap]:
        pairs = zip(self.spans, self.spans[1:], strict=False)
        return [Gap(each.next, after.first) for each, after in pairs if each.next < after.first]

    def begin_of(self, offset: int) -> int:
        """Where the unbroken files begin that reach this offset; the offset itself, where none does."""
        begin = offset
        for span in reversed(self.spans):
            if span.next < begin:
                break
            begin = min(begin, span.first)
        return begin

    def missing(self, start: int, end: int) -> Gap | None:
        """The first offsets from `start` up to `end` that no file has."""
        for span in self.spans:
            if span.next <= start:
                continue
            if span.first > start:
                return Gap(start, min(span.first, end)) if start < end else None
            start = span.next
        return Gap(start, end) if start < end else None

    def at(self, offset: int) -> FileSpan | None:
        """The file that has an offset."""
        return next((span for span in self.spans if span.first <= offset < span.next), None)


def _folder_of(topic: Topic) -> str:
    """The id as Kafka's own tools spell it: what a client says may have a `/` in it."""
    return topic.id.replace("/", "_").replace("+", "-")


class Archive:
    """The archive of one service."""

    def __init__(self, folder: ArchiveFolder, service: str) -> None:
        self.folder, self.service = folder, service

    def place(self, topic: Topic, partition: int) -> str:
        return f"{self.service}/{topic.name}/{_folder_of(topic)}/partition={partition}"

    def chain(self, topic: Topic, partition: int) -> Chain:
        return Chain.of(self.folder.names(self.place(topic, partition)))

    def open(self, topic: Topic, partition: int, span: FileSpan) -> ArchiveFile:
        """A file, which must be what its name and its folder say."""
        name = f"{self.place(topic, partition)}/{span.name}"
        file = ArchiveFile(self.folder, name)
        facts, match = file.facts, NAME.fullmatch(span.name)
        assert match
        own = self.service, topic.name, topic.id, partition, int(match[1]), int(match[2])
        if own != (facts.service, facts.topic, facts.topic_id, facts.partition, facts.first, facts.next):
            raise file.damaged(f"it says that it is {facts.topic}/{facts.partition}, {facts.first:,} to {facts.next:,}")
        return file

    def blocks(self, topic: Topic, partition: int, start: int, end: int) -> Iterator[RecordBlock]:
        """All records from `start` up to `end`, a row group at a time; refused where the archive has a gap there."""
        chain, at = self.chain(topic, partition), TopicPartition(topic.name, partition)
        if gap := chain.missing(start, end):
            raise self.refusal(at, topic, gap)
        for span in chain.spans:
            if span.next > start and span.first < end:
                yield from self.open(topic, partition, span).blocks(max(span.first, start), min(span.next, end))

    def is_exact(self, topic: Topic, partition: int, offset: int) -> bool:
        """Whether the files of a compacted topic give what its records stood for up to an offset.

        What compaction took before it was copied had been superseded before the log's end of then: from there on
        nothing is missing. A tombstone that it took is missing for ever.
        """
        chain = self.chain(topic, partition)
        if chain.missing(0, offset) is not None:
            return False
        files = (self.open(topic, partition, span).facts for span in chain.spans if span.first < offset)
        return all(each.deletes and (each.whole or each.log_end <= offset) for each in files)

    def refusal(self, at: TopicPartition, topic: Topic, gap: Gap) -> Refused:
        others = [each for each in self.folder.names(f"{self.service}/{at.topic}") if each != _folder_of(topic)]
        of_others = f"; it has {len(others)} other topic(s) of this name, which was made again" if others else ""
        return Refused(
            "archive-gap",
            f"neither the log nor the archive {self.folder.url} has offsets {gap.first:,} to {gap.next - 1:,} of {at}",
            "Put the files back, if they were moved or deleted. If the log's retention took the records before they"
            " were copied, nobody has them any more: begin behind them, or with a snapshot that is newer.",
            f"topic id {topic.id}{of_others}",
        )
