"""The intake from repartition topics: however its records are cut into batches, and whenever it is stored and loaded in
between, the same events come out in the same order, the same are late, and it stands at the same place.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from samovar.changelog.batches import RecordBlock
from samovar.changelog.formats.dead_letters import SourceCoordinates
from samovar.changelog.formats.forwarded import NO_TIME, WatermarkMarker, pack_events, pack_mark
from samovar.changelog.formats.journal import JournalEntry
from samovar.changelog.formats.record import (
    Position,
    SourcePartitionPosition,
    UnknownSchema,
    pack_position,
    unpack_position,
)
from samovar.changelog.log import TopicPartition
from samovar.common.errors import Refused
from samovar.common.tunables import Tunables
from samovar.native.kernel import joined
from samovar.tasks.input.repartition_source import RepartitionSource, first_of
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
                found.append(
                    (
                        stream,
                        pack_mark(
                            WatermarkMarker(
                                partition=partition, next=offsets[place], max_event_time=now[place], idle=False, since=0
                            )
                        ),
                    )
                )
            case "raise":
                now[place] += 30
                found.append(
                    (
                        stream,
                        pack_mark(
                            WatermarkMarker(
                                partition=partition, next=offsets[place], max_event_time=now[place], idle=False, since=0
                            )
                        ),
                    )
                )
            case "idle":
                told = random_.choice((now[place], NO_TIME))
                found.append(
                    (
                        stream,
                        pack_mark(
                            WatermarkMarker(
                                partition=partition, next=offsets[place], max_event_time=told, idle=True, since=0
                            )
                        ),
                    )
                )
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
        return RecordBlock(
            topic=topic,
            partition=0,
            offsets=offsets,
            times=offsets,
            next=start + count,
            keys=keys,
            values=packed,
            keyless=nothing,
            null=nothing,
        )

    def position(self) -> Position:
        stream_source = self.source
        watermark = None if stream_source.watermark == NO_TIME else stream_source.watermark
        return Position(
            watermark=watermark,
            inputs=stream_source.inputs(),
            streams=stream_source.streams,
            rules={},
            journal=stream_source.journaled,
        )

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
    raised = pack_mark(WatermarkMarker(partition=0, next=1, max_event_time=100, idle=False, since=0))
    run = Run()
    run.feed("a", [early, raised, behind])
    assert run.late == [("a", 2)]


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_source_that_was_away_is_seen_wherever_its_mark_stands(before: int) -> None:
    """Also as the first record of a batch: all states begin again there."""
    run = Run()
    run.feed("a", [pack_mark(WatermarkMarker(partition=0, next=0, max_event_time=100, idle=False, since=0))])
    run.taken["a"] += [
        pack_mark(WatermarkMarker(partition=0, next=5, max_event_time=100 + number, idle=False, since=0))
        for number in range(before)
    ]
    run.taken["a"].append(pack_mark(WatermarkMarker(partition=0, next=9, max_event_time=200, idle=False, since=7)))
    pieces = [(len(piece), is_anew) for piece, is_anew in run.source.pieces(run.records("a", 1))]
    assert pieces == [(before, False), (1, True)]


def test_partitions_that_are_ahead_are_told_by_their_source() -> None:
    """So that the one who reads them on can wait for those behind."""
    run = Run()
    for spec in SPECS:
        marks = [
            pack_mark(WatermarkMarker(partition=each, next=0, max_event_time=1_000, idle=False, since=0))
            for each in range(PARTITIONS)
        ]
        run.feed(spec.stream, marks)
    assert run.source.ahead(0) == {TopicPartition("s-b-by-u", 0), *(TopicPartition("b", n) for n in range(3))}
    run.feed("a", [pack_mark(WatermarkMarker(partition=0, next=0, max_event_time=5_000, idle=False, since=0))])
    assert TopicPartition("a", 0) in run.source.ahead(0)
    assert TopicPartition("a", 1) not in run.source.ahead(0)
    run.feed(
        "a",
        [
            pack_mark(WatermarkMarker(partition=each, next=0, max_event_time=5_000, idle=False, since=0))
            for each in (1, 2)
        ],
    )
    assert TopicPartition("s-a-by-u", 0) in run.source.ahead(0)
    assert TopicPartition("b", 1) not in run.source.ahead(0)


# ---------------------------------------------------------------- by hand


def event(partition: int, offset: int, time: int, body: bytes | None = None) -> bytes:
    text = json.dumps({"u": "x", "ts": time}).encode() if body is None else body
    return pack_events(partition, _one(offset), _one(time), joined([text]))[0]


def mark(partition: int, max_event_time: int = NO_TIME, *, at: int = 0, idle: bool = False, since: int = 0) -> bytes:
    return pack_mark(
        WatermarkMarker(partition=partition, next=at, max_event_time=max_event_time, idle=idle, since=since)
    )


ALL_AT_100 = [mark(each, 100) for each in range(PARTITIONS)]


def begun() -> Run:
    """All source partitions are at 100; the first stream's slack makes that 80."""
    run = Run()
    run.feed("a", ALL_AT_100)
    run.feed("b", ALL_AT_100)
    assert run.source.watermark == 80
    return run


def dead(run: Run, stream: str, *own: bytes) -> list[tuple[int, str]]:
    start = len(run.taken[stream])
    run.taken[stream] += own
    return [(each.row, each.kind) for each in run.source.feed(run.records(stream, start)).dead]


def test_what_no_task_forwarded_is_a_dead_letter() -> None:
    """Texts, short ones and those of a partition that the source does not have."""
    run = begun()
    text = b'{"somebody": "wrote this by hand"}'
    alien = b"\1\2" + event(0, 0, 90)[2:]
    found = dead(run, "b", text, event(0, 0, 95), b"short", mark(3, 100), event(2, 0, 96), alien, event(1, 0, 1, b"{"))
    assert found == [(0, "NOT_FORWARDED"), (2, "NOT_FORWARDED"), (3, "NOT_FORWARDED"), (5, "NOT_FORWARDED"),
                     (6, "NOT_JSON")]  # fmt: skip
    assert run.source.nexts()["b"] == 3 + 7


def test_a_letter_names_the_source_of_its_record() -> None:
    run = Run()
    run.taken["a"] += [event(2, 7, 90), b"by hand, and long enough for a head"]
    records = run.records("a", 0)
    where, offset, pair = run.source.dead_letter(records, 0)
    assert (where, offset, pair) == (SourceCoordinates.of("a", 2, "a"), 7, (b"x", b'{"u": "x", "ts": 90}'))
    where, offset, pair = run.source.dead_letter(records, 1)
    assert (where, offset, pair) == (SourceCoordinates.of("s-a-by-u", 0, "a"), 1, (b"x", run.taken["a"][1]))
    assert run.source.original(records, 0) == (b"x", b'{"u": "x", "ts": 90}')
    run.taken["a"][1] = event(1, 3, 90)
    assert run.source.origins(run.records("a", 0)) == ([2, 1], [7, 3])


def test_event_time_is_the_least_of_all_source_partitions_that_are_not_silent() -> None:
    run = begun()
    run.feed("a", [mark(0, 500), mark(1, 400)])
    assert (run.source.watermark, run.source.max_event_time("a"), run.source.max_event_time("b")) == (80, 100, 100)
    run.feed("a", [mark(2, 100, idle=True)])
    assert (run.source.watermark, run.source.max_event_time("a")) == (100, 400)
    run.feed("b", [mark(each, 600) for each in range(3)])
    assert run.source.watermark == 380
    run.feed("a", [mark(0, 500, idle=True), mark(1, 400, idle=True)])
    assert (run.source.watermark, run.source.max_event_time("a")) == (600, NO_TIME)


def test_where_all_are_silent_event_time_is_the_largest_that_one_of_them_told() -> None:
    run = Run()
    run.feed("a", [mark(each, NO_TIME, idle=True) for each in range(3)])
    run.feed("b", [mark(0, 90, idle=True), mark(1, NO_TIME, idle=True)])
    assert run.source.watermark == NO_TIME
    run.feed("b", [mark(2, NO_TIME, idle=True)])
    assert run.source.watermark == 90
    run.feed("a", [mark(1, 200, idle=True)])
    assert run.source.watermark == 180
    run.feed("a", [mark(1, 150, idle=True)])
    assert run.source.watermark == 180, "it never goes back"
    assert run.source.received["a"].parts[1].max_event_time == 200
    assert run.source.advance(0).watermark == 180


def test_a_silent_partition_that_speaks_joins_where_event_time_is() -> None:
    run = begun()
    run.feed("a", [mark(0, 100, idle=True)])
    run.feed("a", [event(0, 4, 79), event(0, 5, 80)])
    assert run.late == [("a", 4)]
    (entry,) = run.entries
    assert (entry.kind, dict(entry.inputs)) == ("active", {"a": 4, "b": 3})
    assert dict(entry.facts) == {"stream": "a", "partition": 0, "max_event_time": 100}
    part = run.source.received["a"].parts[0]
    assert (part.idle, part.max_event_time, part.next) == (False, None, 6)


def test_one_that_was_silent_before_any_time_was_known_joins_at_none() -> None:
    run = Run()
    run.feed("a", [mark(0, NO_TIME, idle=True), event(0, 0, 50)])
    assert [dict(each.facts)["max_event_time"] for each in run.entries] == [NO_TIME]
    assert (run.late, run.source.buffer.max_event_time[0, 0]) == ([], 50)


def test_silence_and_its_end_in_one_batch() -> None:
    run = begun()
    run.feed("a", [event(0, 0, 101), mark(0, 101, idle=True), mark(1, 120), mark(0, 101), event(0, 1, 130)])
    assert [dict(each.inputs)["a"] for each in run.entries] == [3 + 3]
    assert run.source.received["a"].parts[0].idle is False
    assert run.source.buffer.max_event_time[0, 0] == 130


def test_what_was_forwarded_twice_is_taken_once() -> None:
    run = begun()
    again = [event(0, 5, 101), event(0, 6, 102)]
    run.feed("b", [*again, *again, event(1, 5, 103), event(0, 7, 104)])
    run.feed("b", [again[1], event(0, 8, 105)])
    assert run.source.received["b"].parts[0].next == 9
    run.feed("b", [mark(each, 900) for each in range(3)])
    run.feed("a", [mark(each, 900) for each in range(3)])
    assert [(time, offset) for time, _, _, offset in run.released] == [(101, 5), (102, 6), (103, 5), (104, 7), (105, 8)]


def test_a_mark_says_how_far_its_source_is_and_never_less() -> None:
    run = begun()
    run.feed("a", [event(0, 5, 101), mark(0, 110, at=3, since=2)])
    assert run.source.received["a"].parts[0] == SourcePartitionPosition(0, None, False, 6, 2)
    run.feed("a", [mark(0, 110, at=9, since=2)])
    assert run.source.received["a"].parts[0].next == 9


def test_a_stage_that_was_away_counts_what_it_missed() -> None:
    run = begun()
    run.taken["a"] += [mark(0, 100, at=4), mark(0, 120, at=12, since=9), mark(1, 100), event(0, 12, 130)]
    records = run.records("a", 3)
    pieces = []
    for piece, is_anew in run.source.pieces(records):
        pieces.append((piece.offsets.tolist(), piece.next, is_anew))
        run.source.feed(piece)
    assert pieces == [([3], 4, False), ([4, 5, 6], 7, True)]
    assert run.source.missed == 9 - 4
    (entry,) = run.source.entries
    assert (entry.kind, dict(entry.inputs)["a"]) == ("restart", 4)
    assert dict(entry.facts) == {"stream": "a", "partition": 0, "since": 9}
    assert run.source.received["a"].parts[0].since == 9


def test_a_source_that_says_nothing_of_since_when_was_not_away() -> None:
    run = Run()
    run.taken["a"] += [mark(0, 100, since=5), mark(0, 100, since=-1), mark(1, 100, since=3)]
    assert [(len(piece), is_anew) for piece, is_anew in run.source.pieces(run.records("a", 0))] == [(3, False)]
    run.feed("a", [])
    run.source.feed(run.records("a", 0))
    run.taken["a"] += [mark(0, 100, since=7)]
    assert [is_anew for _, is_anew in run.source.pieces(run.records("a", 3))] == [False]


def test_checkpoints_are_let_go_of_once_nothing_before_the_next_waits() -> None:
    run = begun()
    run.feed("b", [event(0, 0, 101)])  # at offset 3
    run.feed("b", [event(1, 0, 201), event(0, 1, 201)])  # 4, 5
    run.feed("b", [event(0, 2, 301)])  # 6: three after the first
    marks = run.source.received["b"].checkpoints
    assert [each.offset for each in marks] == [3, 6]
    assert run.source.inputs()["b"].replay_from == 3
    run.feed("a", [mark(each, 300) for each in range(3)])
    run.feed("b", [mark(each, 202) for each in range(3)])
    stored = run.source.inputs()["b"]
    assert (stored.replay_from, stored.next, [each.offset for each in marks]) == (6, 10, [6])
    assert [(part.partition, part.max_event_time, part.next) for part in stored.parts] == [
        (0, 201, 2),
        (1, 201, 1),
        (2, 100, 0),
    ]
    run.feed("b", [mark(each, 302) for each in range(3)])
    run.feed("a", [mark(each, 900) for each in range(3)])
    stored = run.source.inputs()["b"]
    assert (stored.replay_from, stored.next, list(marks)) == (13, 13, [])
    assert [part.max_event_time for part in stored.parts] == [302] * 3


def test_a_join_is_kept_for_as_long_as_what_is_before_it_may_be_read_again() -> None:
    run = begun()
    run.feed("b", [event(1, 0, 150), mark(0, 100, idle=True), event(0, 0, 160)])  # 3, 4, 5
    assert run.source.inputs()["b"].activations == ((5, 0, 80),)
    run.feed("b", [event(1, 1, 170), event(1, 2, 180)])
    run.feed("a", [mark(each, 185) for each in range(3)])
    run.feed("b", [mark(each, 165) for each in range(3)])
    stored = run.source.inputs()["b"]
    assert (stored.replay_from, stored.activations) == (6, ())
    assert list(run.source.received["b"].activations) == []


def test_no_join_is_kept_where_nothing_waits() -> None:
    run = begun()
    run.feed("b", [mark(0, 100, idle=True), mark(0, 100)])
    assert (len(run.entries), run.source.inputs()["b"].activations) == (1, ())


def test_an_entry_of_the_journal_does_again_what_was_done() -> None:
    run = begun()
    run.feed("a", [mark(0, 100, idle=True)])

    def apply(kind: str, number: int, **facts: object) -> int:
        entry = JournalEntry(kind=kind, number=number, inputs={}, watermark=None, facts=facts)
        assert run.source.apply(entry).watermark == run.source.watermark
        return run.source.journaled

    assert apply("restart", 3, stream="a", partition=1, since=44) == 3
    assert run.source.received["a"].parts[1].since == 44
    assert apply("active", 4, stream="a", partition=0, max_event_time=90) == 4
    assert (run.source.buffer.max_event_time[0, 0], run.source.received["a"].parts[0].idle) == (90, False)
    assert apply("advance", 5, max_event_time=95) == 5
    assert run.source.watermark == 95
    apply("advance", 6, max_event_time=85)
    assert run.source.watermark == 95
    assert apply("schema", 7, stream="a", schema=3, known=False) == 7
    assert run.source.sources["a"].unknown == (UnknownSchema(3, 4, None),)


def test_inputs_ahead_and_behind_with_their_source_partitions() -> None:
    run = begun()
    run.feed("b", [mark(0, 80)])
    assert run.source.watermark == 80
    a, b = TopicPartition("s-a-by-u", 0), TopicPartition("s-b-by-u", 0)
    assert run.source.behind(0) == {a, *(TopicPartition("a", each) for each in range(3))}
    assert run.source.ahead(0) == {b, *(TopicPartition("b", each) for each in range(3))}
    assert run.source.idle_watermark(9_999) == 80


def test_a_position_brings_the_source_partitions_back() -> None:
    run = begun()
    run.feed("a", [mark(0, 110, idle=True), mark(1, 120, at=4, since=2)])
    position = run.position()
    assert position.inputs["a"].parts[0] == SourcePartitionPosition(0, 110, True, 0, 0)
    source = RepartitionSource(SPECS, ("u",), 0, MANY_MARKS)
    source.resume(replace(position, watermark=None, inputs={"a": position.inputs["a"], "gone": position.inputs["b"]}))
    assert (source.watermark, source.journaled) == (NO_TIME, 0)
    assert {place: time for place, time in source.buffer.max_event_time.items() if place[0] == 0} == {
        (0, 1): 120,
        (0, 2): 100,
    }
    assert source.received["a"].parts == run.source._parts(run.source.sources["a"])
    source.resume(position)
    assert source.watermark == run.source.watermark == 80


def test_the_log_time_of_the_last_record_is_kept() -> None:
    run = begun()
    assert run.source.sources["a"].taken_ms == 2
    run.feed("a", [])
    assert run.source.sources["a"].taken_ms == 2


def test_heads_of_the_records_at_hand_are_read_once() -> None:
    run = begun()
    records = run.records("a", 0)
    assert run.source.heads(records) is run.source.heads(records)
    other = run.records("b", 0)
    assert run.source.heads(other) is not run.source.heads(records)


@pytest.mark.parametrize(("start", "found"), [(0, 1), (1, 1), (2, 3), (3, 3), (4, 5), (5, 5)])
def test_the_first_row_from_a_place_on(start: int, found: int) -> None:
    assert first_of(np.array([False, True, False, True, False]), start) == found


def test_newer_records_are_refused() -> None:
    run = Run()
    run.taken["a"] += [b"\2" + event(0, 0, 90)[1:]]
    with pytest.raises(Refused) as refused:
        run.source.heads(run.records("a", 0))
    assert refused.value.code == "format-newer"


def test_schemas_that_were_unknown_before_what_is_read_again_are_let_go_of() -> None:
    run = begun()
    source = run.source.sources["a"]
    source.unknown = (UnknownSchema(7, 1, 3), UnknownSchema(8, 1, 4), UnknownSchema(9, 1, None))
    stored = run.source.inputs()["a"].unknown
    assert list(stored) == list(source.unknown) == [UnknownSchema(8, 1, 4), UnknownSchema(9, 1, None)]
