"""Whether a topic is keyed as rules need it: records keyed by the text of the stream's key field, placed by murmur2.

All streams of a service must place a key in the same partition, or a rule would see half of its events. Producers of
librdkafka place by CRC32 unless told otherwise, and nothing in a topic says who placed its records; so up to SAMPLE of
the newest are looked at. At the first start, a topic in which over half of them are keyed otherwise is refused: nothing
has been processed yet, and all would be dead letters. A single record in the wrong partition never stops a service, not
even where it is the only one: it is a dead letter (samovar.tasks.input.placement). Streams that only later stages read
are not looked at: they are placed again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from samovar.changelog.cursors import available_reader
from samovar.changelog.log import Log, Records, TopicPartition
from samovar.changelog.partitioner import key_texts, partition_of
from samovar.common.errors import Refused
from samovar.service.config.models import ServiceFile
from samovar.service.topology.topics import Mismatch
from samovar.tasks.input.placement import checked_streams
from samovar.tasks.input.source import StreamSource
from samovar.tasks.model.plan import InputSpec, Plan

SAMPLE = 1_000  # records of a topic
SAMPLE_S = 5.0  # until they must have come; what did not is not looked at
SHOWN = 40  # characters of a key


@dataclass
class KeySample:
    """Records of one topic: how many are events, how many of those are keyed otherwise, and the first of them."""

    spec: InputSpec
    events: int = 0
    otherwise: int = 0
    first: str = ""

    @property
    def mismatch(self) -> Mismatch:
        topic = self.spec.topic
        counted = f"{self.otherwise:,} of {self.events:,} sampled records of {topic} are keyed otherwise"
        fix = (
            f"Let the producers of {topic} key its records by the text of `{self.spec.key}` and place them by murmur2"
            " (librdkafka: `partitioner=murmur2_random`). Or write `repartition: true` for the stream: its events then"
            " go through a repartition topic. `repartition: false` says that each key is in one partition, the same in"
            " all streams, however it was placed."
        )
        return Mismatch("key-misplaced", topic, f"{self.first} ({counted})", fix)


def misplaced(log: Log, settings: ServiceFile, plans: Sequence[Plan], partitions: int) -> list[Mismatch]:
    """One mismatch for each stream that has records where they should not be."""
    return [each.mismatch for each in _samples(log, settings, plans, partitions) if each.otherwise]


def refuse_misplaced(log: Log, settings: ServiceFile, plans: Sequence[Plan], partitions: int) -> None:
    """Refuse to start for the first time on a topic that is mostly keyed otherwise."""
    changelog = [TopicPartition(plans[0].topics.changelog, number) for number in range(partitions)]
    if partitions == 1 or any(bounds.end > 0 for bounds in log.bounds(changelog).values()):
        return
    for each in _samples(log, settings, plans, partitions):
        if each.otherwise > 1 and each.otherwise * 2 > each.events:
            found = each.mismatch
            raise Refused(found.code, found.what, found.fix)


def _samples(log: Log, settings: ServiceFile, plans: Sequence[Plan], partitions: int) -> Iterator[KeySample]:
    """Counts the records that are not where they should be. What is not an event is none of our business."""
    checked = checked_streams(plans[0])
    for spec in (each for each in plans[0].inputs if each.stream in checked):
        stream, sample = settings.streams[spec.stream], KeySample(spec)
        for records in _sample_records(log, spec.topic, partitions):
            batch, rows, _ = StreamSource([spec], (spec.key,), records.partition).decode(records)
            for row, text in zip(rows.tolist(), key_texts(batch, 0, records.values), strict=True):
                if text is None:
                    continue
                sample.events += 1
                what = _fault(records, row, text, spec, partitions, hidden=stream.key in stream.pii)
                if what is not None:
                    sample.otherwise += 1
                    place = f"{spec.topic}/{records.partition}/{int(records.offsets[row])}"
                    sample.first = sample.first or f"the record {place} of the stream `{spec.stream}` {what}"
        yield sample


def _fault(records: Records, row: int, text: bytes, spec: InputSpec, partitions: int, *, hidden: bool) -> str | None:
    """What is wrong with a record. A key that is marked `pii` is hidden: this goes to logs."""

    def shown(key: bytes) -> str:
        text = key.decode("utf-8", "backslashreplace")
        return "(hidden)" if hidden else f"`{text[:SHOWN]}{'...' if len(text) > SHOWN else ''}`"

    key = records.key(row)
    if key is None:
        return f"has no key, and its `{spec.key}` is {shown(text)}"
    if key != text:
        return f"has the key {shown(key)}, and its `{spec.key}` is {shown(text)}"
    place = partition_of(key, partitions)
    if place != records.partition:
        return (
            f"with the key {shown(key)} is in partition {records.partition}, and murmur2 places it in partition {place}"
        )
    return None


def _sample_records(log: Log, topic: str, partitions: int) -> Iterator[Records]:
    """Some of the newest records of each partition."""
    places = [TopicPartition(topic, number) for number in range(partitions)]
    bounds = log.bounds(places)
    each = -(-SAMPLE // partitions)
    starts = {at: max(begin, end - each) for at, (begin, end) in bounds.items() if end > begin}
    if not starts:
        return
    deadline = time.monotonic() + SAMPLE_S
    with closing(available_reader(log, starts)) as reader:
        while any(reader.position(at) < bounds[at].end for at in starts) and time.monotonic() < deadline:
            yield from (each for each in reader.poll(SAMPLE, 0.1) if len(each))
