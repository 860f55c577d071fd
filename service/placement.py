"""Whether records are where rules look for them: keyed by the text of the stream's key field, and placed by murmur2.

All streams of a service must place a key in the same partition, or a rule would see half of its events. Producers of
librdkafka place by CRC32 unless told otherwise, and nothing in a topic says who placed its records; so some of the
newest records of each partition are looked at. Streams that only later stages read are not: they are placed anew.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from samovar.changelog.errors import Refused
from samovar.changelog.keytexts import key_texts
from samovar.changelog.log import Log, Records, TopicPartition
from samovar.changelog.partition import partition_of
from samovar.service.settings_models import ServiceFile
from samovar.service.stages import streams_of
from samovar.service.topics import Mismatch
from samovar.tasks.intake import Intake
from samovar.tasks.plan import InputSpec, Plan

SAMPLE = 20  # records of a partition
SAMPLE_S = 5.0  # until they must have come; what did not is not looked at
SHOWN = 40  # characters of a key


def misplaced(log: Log, settings: ServiceFile, plans: Sequence[Plan], partitions: int) -> list[Mismatch]:
    """One mismatch for each stream whose records are not where they should be."""
    if partitions == 1:
        return []
    main = plans[0]
    wanted = {name for rule in main.program.rules for name in streams_of(rule.rule, settings.streams)}
    wanted |= {name for task in settings.tasks.values() for name in task.streams}
    looked_at = [spec for spec in main.inputs if spec.stream in wanted and _is_open(settings, spec.stream)]
    hidden = {name for name, stream in settings.streams.items() if stream.key in stream.pii}
    found = (_first_fault(log, spec, partitions, hidden=spec.stream in hidden) for spec in looked_at)
    return [each for each in found if each is not None]


def refuse_misplaced(log: Log, settings: ServiceFile, plans: Sequence[Plan], partitions: int) -> None:
    for found in misplaced(log, settings, plans, partitions):
        raise Refused(found.code, found.what, found.fix)


def _is_open(settings: ServiceFile, stream: str) -> bool:
    """Whether it has to be looked at: where the file says something about it, that counts."""
    return settings.streams[stream].repartition is None


def _first_fault(log: Log, spec: InputSpec, partitions: int, *, hidden: bool) -> Mismatch | None:
    for records in _sampled(log, spec.topic, partitions):
        what = _fault(spec, records, partitions, hidden)
        if what is not None:
            return Mismatch("key-misplaced", spec.topic, what, _fix(spec))
    return None


def _fix(spec: InputSpec) -> str:
    return (
        f"Let whoever writes to {spec.topic} key its records by the text of `{spec.key}` and place them by murmur2"
        " (librdkafka: `partitioner=murmur2_random`). Or write `repartition: true` for the stream: its events then go"
        " through a repartition topic. `repartition: false` says that each key is in one partition, the same in all"
        " streams, however it was placed."
    )


def _fault(spec: InputSpec, records: Records, partitions: int, hidden: bool) -> str | None:
    """What is wrong with the first record that is not where it should be. What is no event is none of our business.

    A key that is marked `pii` is not told: this goes to logs.
    """
    shown = (lambda _: "(hidden)") if hidden else _shown
    intake = Intake([spec], (spec.key,), records.partition)
    texts = _texts(intake, records)
    for row, text in texts:
        key, where = records.key(row), f"{spec.topic}/{records.partition}/{int(records.offsets[row])}"
        if key is None:
            return f"the record {where} of the stream `{spec.stream}` has no key, and its `{spec.key}` is {shown(text)}"
        if key != text:
            return (
                f"the record {where} of the stream `{spec.stream}` has the key {shown(key)}, and its `{spec.key}` is"
                f" {shown(text)}"
            )
        place = partition_of(key, partitions)
        if place != records.partition:
            return (
                f"the record {where} of the stream `{spec.stream}` with the key {shown(key)} is in partition"
                f" {records.partition}, and murmur2 places it in partition {place}"
            )
    return None


def _texts(intake: Intake, records: Records) -> Iterator[tuple[int, bytes]]:
    """Rows that are events, and the texts of their key fields."""
    batch, rows = intake.decoded(records)
    for row, text in zip(rows.tolist(), key_texts(batch, 0, records.values), strict=True):
        if text is not None:
            yield row, text


def _shown(key: bytes) -> str:
    text = key.decode("utf-8", "backslashreplace")
    return f"`{text[:SHOWN]}{'...' if len(text) > SHOWN else ''}`"


def _sampled(log: Log, topic: str, partitions: int) -> Iterator[Records]:
    """Some of the newest records of each partition."""
    places = [TopicPartition(topic, number) for number in range(partitions)]
    bounds = log.bounds(places)
    starts = {at: max(begin, end - SAMPLE) for at, (begin, end) in bounds.items() if end > begin}
    if not starts:
        return
    reader, deadline = log.reader(starts), time.monotonic() + SAMPLE_S
    try:
        while any(reader.position(at) < bounds[at].end for at in starts) and time.monotonic() < deadline:
            yield from (each for each in reader.poll(SAMPLE * partitions, 0.1) if len(each))
    finally:
        reader.close()
