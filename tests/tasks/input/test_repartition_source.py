"""The intake from repartition topics: however its records are cut into batches, and whenever it is stored and loaded in
between, the same events come out in the same order, the same are late, and it stands at the same place.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from samovar.changelog.batches import RecordBlock
from samovar.changelog.formats.forwarded import NO_TIME, WatermarkMarker, pack_events, pack_mark
from samovar.changelog.formats.journal import JournalEntry
from samovar.changelog.formats.record import Position, pack_position, unpack_position
from samovar.changelog.log import TopicPartition
from samovar.common.tunables import Tunables
from samovar.native.kernel import joined
from samovar.tasks.input.repartition_source import RepartitionSource
from samovar.tasks.model.plan import InputSpec

SEEDS = [int(seed) for seed in os.environ.get("SAMOVAR_SEEDS", "").split()] or range(30)
PARTITIONS = 3
SPECS = [
    InputSpec(stream="a", topic="s-a-by-u", key="u", slack_ms=20, source_topic="a", source_partitions=PARTITIONS),
    InputSpec(stream="b", topic="s-b-by-u", key="u", slack_ms=0, source_topic="b", source_partitions=PARTITIONS),
]
Value = tuple[str, bytes]  # stream and a record of its repartition topic


def values(random_: random.Random, count: int) -> list[Value]:
    """What upstream tasks may write: events in order of offset, marks that go on, silence and its end, repetitions."""
    now = {(spec.stream, each): 1_000 for spec in SPECS for each in range(PARTITIONS)}
    offsets = dict.fromkeys(now, 0)
    found: list[Value] = []
    for _ in range(count):
        place = random_.choice(list(now))
        stream, partition = place
        match random_.choice(("event", "event", "event", "mark", "raise", "idle", "again")):
            case "event":
                now[place] += random_.choice((0, 1, 10, 40))
                time = now[place] - random_.choice((0, 0, 5, 15, 60))
                body = json.dumps({"u": "x", "ts": time}).encode()
                found += [
                    (stream, each) for each in pack_events(partition, _one(offsets[place]), _one(time), joined([body]))
                ]
                offsets[place] += random_.randint(1, 3)
            case "mark":
                found.append((stream, pack_mark(WatermarkMarker(partition, offsets[place], now[place], False, 0))))
            case "raise":
                now[place] += 30
                found.append((stream, pack_mark(WatermarkMarker(partition, offsets[place], now[place], False, 0))))
            case "idle":
                told = random_.choice((now[place], NO_TIME))
                found.append((stream, pack_mark(WatermarkMarker(partition, offsets[place], told, True, 0))))
            case "again":
                found += [each for each in found[-2:] if each[1][1] == 0]
    return found


def _one(number: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([number], np.int64)


MANY_MARKS = Tunables(mark_records=3)


@dataclass
class Run:
    """A receiver at work, and all that came of it."""

    source: RepartitionSource = field(default_factory=lambda: RepartitionSource(SPECS, ("u",), 0, MANY_MARKS))
    released: list[tuple[int, int, int, int]] = field(default_factory=list)
    late: list[tuple[str, int]] = field(default_factory=list)
    entries: list[JournalEntry] = field(default_factory=list)
    taken: dict[str, list[bytes]] = field(default_factory=lambda: {spec.stream: [] for spec in SPECS})

    def feed(self, stream: str, batch: Sequence[bytes]) -> None:
        start = len(self.taken[stream])
        self.taken[stream] += batch
        records = self.records(stream, start)
        fed = self.source.feed(records)
        rows = fed.ordered.released
        places = rows.time.tolist(), rows.stream.tolist(), rows.partition.tolist(), rows.offset.tolist()
        self.released += zip(*places, strict=True)
        self.late += [(stream, start + each.row) for each in fed.late]
        assert not fed.dead
        self.entries += self.source.entries
        self.source.entries = []

    def records(self, stream: str, start: int) -> RecordBlock:
        own = self.taken[stream][start:]
        count, topic = len(own), next(spec.topic for spec in SPECS if spec.stream == stream)
        offsets = np.arange(start, start + count, dtype=np.int64)
        nothing = np.zeros(count, bool)
        keys, packed = joined([b"x"] * count), joined(own)
        return RecordBlock(topic, 0, offsets, offsets, start + count, keys, packed, nothing, nothing)

    def position(self) -> Position:
        stream_source = self.source
        watermark = None if stream_source.watermark == NO_TIME else stream_source.watermark
        return Position(watermark, stream_source.inputs(), stream_source.streams, {}, stream_source.journaled)

    def stored_and_loaded(self) -> None:
        position = unpack_position(pack_position(self.position()))
        self.source = RepartitionSource(SPECS, ("u",), 0, MANY_MARKS)
        self.source.resume(position)
        for stream, stored in position.inputs.items():
            if stored.replay_from < stored.next:
                self.source.recover(stream, [self.records(stream, stored.replay_from)], stored)
            else:
                self.source.sources[stream].next = stored.next

    def standing(self) -> object:
        """All that can make a difference later; how far back it would read is none of it."""
        pending = self.source.buffer.pending
        waiting = sorted(zip(pending.stream.tolist(), pending.partition.tolist(), pending.offset.tolist(), strict=True))
        parts = {stream: self.source._parts(source) for stream, source in self.source.sources.items()}
        return self.source.watermark, waiting, parts, self.source.nexts()


def batches(found: Sequence[Value], random_: random.Random, most: int) -> list[tuple[str, list[bytes]]]:
    """The values in the same order of streams, a batch never of two of them."""
    made: list[tuple[str, list[bytes]]] = []
    left = 0
    for stream, value in found:
        if not made or made[-1][0] != stream or left == 0:
            made.append((stream, []))
            left = random_.randint(1, most)
        made[-1][1].append(value)
        left -= 1
    return made


@pytest.mark.parametrize("seed", SEEDS)
def test_however_it_is_cut_and_stored(seed: int) -> None:
    """SAMOVAR_SEEDS="7 8 9" tries others."""
    random_ = random.Random(seed)
    found = values(random_, 60)
    one_by_one, cut = Run(), Run()
    for stream, value in found:
        one_by_one.feed(stream, [value])
    for stream, batch in batches(found, random_, 12):
        cut.feed(stream, batch)
        if random_.random() < 0.3:
            cut.stored_and_loaded()
    assert cut.released == one_by_one.released
    assert sorted(cut.late) == sorted(one_by_one.late)
    assert cut.entries == one_by_one.entries
    assert cut.standing() == one_by_one.standing()
    times = [time for time, *_ in cut.released]
    assert times == sorted(times)


def test_a_mark_counts_from_where_it_stands() -> None:
    """An event behind a raised mark is late, one before it in the topic is not: also in one batch."""
    early, behind = (pack_events(0, _one(n), _one(n), joined([b'{"u": "x", "ts": 50}']))[0] for n in (0, 1))
    raised = pack_mark(WatermarkMarker(0, 1, 100, False, 0))
    run = Run()
    run.feed("a", [early, raised, behind])
    assert run.late == [("a", 2)]


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_source_that_was_away_is_seen_wherever_its_mark_stands(before: int) -> None:
    """Also as the first record of a batch: all states begin again there."""
    run = Run()
    run.feed("a", [pack_mark(WatermarkMarker(0, 0, 100, False, 0))])
    run.taken["a"] += [pack_mark(WatermarkMarker(0, 5, 100 + number, False, 0)) for number in range(before)]
    run.taken["a"].append(pack_mark(WatermarkMarker(0, 9, 200, False, 7)))
    pieces = [(len(piece), is_anew) for piece, is_anew in run.source.pieces(run.records("a", 1))]
    assert pieces == [(before, False), (1, True)]


def test_partitions_that_are_ahead_are_told_by_their_source() -> None:
    """So that the one who reads them on can wait for those behind."""
    run = Run()
    for spec in SPECS:
        marks = [pack_mark(WatermarkMarker(each, 0, 1_000, False, 0)) for each in range(PARTITIONS)]
        run.feed(spec.stream, marks)
    assert run.source.ahead(0) == {TopicPartition("s-b-by-u", 0), *(TopicPartition("b", n) for n in range(3))}
    run.feed("a", [pack_mark(WatermarkMarker(0, 0, 5_000, False, 0))])
    assert TopicPartition("a", 0) in run.source.ahead(0)
    assert TopicPartition("a", 1) not in run.source.ahead(0)
    run.feed("a", [pack_mark(WatermarkMarker(each, 0, 5_000, False, 0)) for each in (1, 2)])
    assert TopicPartition("s-a-by-u", 0) in run.source.ahead(0)
    assert TopicPartition("b", 1) not in run.source.ahead(0)
