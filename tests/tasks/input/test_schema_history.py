"""Schemas that were unknown at their time: what a replay does, and what is kept of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from samovar.changelog.batches import RecordBlock
from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.formats.forwarded import pack_events
from samovar.changelog.formats.journal import EntryKind, JournalEntry
from samovar.changelog.formats.record import InputPosition, Position, UnknownSchema, pack_position, unpack_position
from samovar.changelog.log import Append, Records, TopicPartition, TopicSpec
from samovar.native.kernel import joined
from samovar.patterns.engine.avro.codec import Avro, SchemaFiles, framed
from samovar.patterns.engine.avro.schema import parse_schema
from samovar.tasks.input.repartition_source import RepartitionSource
from samovar.tasks.input.source import StreamSource, edges_of, needed, turned, unknown_at, unknown_yet
from samovar.tasks.model.plan import InputSpec
from tests.support.avro_making import encoded

EVENT = {"type": "record", "name": "E", "fields": [{"name": "k", "type": "string"}, {"name": "ts", "type": "long"}]}
SINCE = UnknownSchema(9, 0, None)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    """Two messages, of the schemas 1 and 9."""
    log = EmbeddedLog(tmp_path / "log")
    log.create([TopicSpec("t", 1)])
    data = encoded(EVENT, {"k": "a", "ts": 1_000})
    log.append([Append(topic="t", records=[(b"a", framed(1, data)), (b"a", framed(9, data))], partition=0)])
    reader = log.reader({TopicPartition("t", 0): 0})
    (found,) = reader.poll(10, 5.0)
    reader.close()
    log.close()
    return found


def stream_source(*known: int, unknown: tuple[UnknownSchema, ...] = ()) -> StreamSource:
    schema = parse_schema(json.dumps(EVENT))
    avro = Avro(schema, SchemaFiles(dict.fromkeys(known, schema)))
    made = StreamSource([InputSpec(stream="s", topic="t", key="k", decoder=avro.decoder)], ["k"], 0)
    made.resume(
        Position(
            watermark=None,
            inputs={"s": InputPosition(topic="t", topic_id="id", next=0, replay_from=0, unknown=unknown)},
            streams=("s",),
            rules={},
        )
    )
    return made


def dead(made: StreamSource, records: Records) -> list[tuple[int, str]]:
    return [(each.row, each.kind) for each in made.feed(records).dead]


def test_an_unknown_schema_is_noted_once_and_again_when_it_is_found(records: Records) -> None:
    live = stream_source(1)
    assert dead(live, records) == [(1, "UNKNOWN_SCHEMA")]
    assert [(each.kind, each.facts) for each in live.entries] == [
        (EntryKind.SCHEMA, {"stream": "s", "schema": 9, "known": False}),
    ]
    assert dead(live, records) == [(1, "UNKNOWN_SCHEMA")]
    assert len(live.entries) == 1
    later = stream_source(1, 9, unknown=(SINCE,))
    assert dead(later, records) == []
    assert [each.facts["known"] for each in later.entries] == [True]


def test_a_replay_goes_by_the_journal_and_not_by_what_is_known_today(records: Records) -> None:
    """Also where it begins in the middle, at a position at which the schema was unknown."""
    replay = stream_source(1, 9, unknown=(SINCE,))
    replay.replay()
    assert dead(replay, records) == [(1, "UNKNOWN_SCHEMA")]
    assert replay.entries == []
    replay.apply(
        JournalEntry(
            kind=EntryKind.SCHEMA,
            number=5,
            inputs={"s": 2},
            watermark=None,
            facts={"stream": "s", "schema": 9, "known": True},
        )
    )
    assert dead(replay, records) == []
    replay.apply(
        JournalEntry(
            kind=EntryKind.SCHEMA,
            number=6,
            inputs={"s": 2},
            watermark=None,
            facts={"stream": "s", "schema": 9, "known": False},
        )
    )
    assert dead(replay, records) == [(1, "UNKNOWN_SCHEMA")]


# ---------------------------------------------------------------- in a later stage


def receiver(*known: int) -> RepartitionSource:
    schema = parse_schema(json.dumps(EVENT))
    avro = Avro(schema, SchemaFiles(dict.fromkeys(known, schema)))
    spec = InputSpec(
        stream="s", topic="r", key="k", decoder=avro.decoder, slack_ms=10_000, source_topic="t", source_partitions=1
    )
    return RepartitionSource([spec], ["k"], 0)


def forwarded(*schemas: int, first: int = 0) -> RecordBlock:
    """Records of a repartition topic, each with an event of one of these schemas."""
    offsets = np.arange(first, first + len(schemas), dtype=np.int64)
    sent = joined([framed(schema, encoded(EVENT, {"k": "a", "ts": 1_000})) for schema in schemas])
    values, keys = joined(pack_events(0, offsets, offsets, sent)), joined([b"a"] * len(schemas))
    nothing = np.zeros(len(schemas), bool)
    return RecordBlock(
        topic="r",
        partition=0,
        offsets=offsets,
        times=offsets,
        next=first + len(schemas),
        keys=keys,
        values=values,
        keyless=nothing,
        null=nothing,
    )


def test_a_later_stage_keeps_what_nobody_knew_out_of_replays_and_of_what_waits() -> None:
    """It has a registry of its own to ask, which may know less than that of the stage before."""
    live = receiver(1)
    assert dead(live, forwarded(1, 9)) == [(1, "UNKNOWN_SCHEMA")]
    (entry,) = live.entries
    assert (entry.kind, entry.inputs) == (EntryKind.SCHEMA, {"s": 0})
    assert entry.facts == {"stream": "s", "schema": 9, "known": False}
    position = unpack_position(
        pack_position(Position(watermark=None, inputs=live.inputs(), streams=("s",), rules={}, journal=live.journaled))
    )
    assert position.inputs["s"].unknown == (SINCE,)
    assert (position.inputs["s"].replay_from, len(live.buffer.pending)) == (0, 1)

    later = receiver(1, 9)  # it is known by now, and what waits is read again
    later.resume(position)
    later.recover("s", [forwarded(1, 9)], position.inputs["s"])
    assert later.buffer.pending.offset.tolist() == [0]
    assert dead(later, forwarded(9, first=2)) == []
    assert [(each.facts["known"], each.inputs) for each in later.entries] == [(True, {"s": 2})]
    assert later.inputs()["s"].unknown == (UnknownSchema(9, 0, 2),)

    replay = receiver(1, 9)
    replay.replay()
    replay.apply(entry)
    assert dead(replay, forwarded(1, 9)) == [(1, "UNKNOWN_SCHEMA")]
    replay.apply(later.entries[0])
    assert dead(replay, forwarded(9, first=2)) == []
    assert replay.buffer.pending.offset.tolist() == [0, 2]


def test_a_position_keeps_what_may_be_read_again() -> None:
    stretches = turned(turned(turned((), 9, 10, known=False), 9, 20, known=True), 4, 15, known=False)
    assert stretches == (UnknownSchema(9, 10, 20), UnknownSchema(4, 15, None))
    assert unknown_yet(stretches) == {4}
    assert [unknown_at(stretches, offset) for offset in (9, 10, 19, 20)] == [set(), {9}, {9, 4}, {4}]
    assert edges_of(stretches) == [10, 20, 15]
    assert needed(stretches, 19) == stretches
    assert needed(stretches, 20) == (UnknownSchema(4, 15, None),)
    position = Position(
        watermark=5,
        inputs={"s": InputPosition(topic="t", topic_id="id", next=30, replay_from=19, unknown=stretches)},
        streams=("s",),
        rules={},
    )
    assert unpack_position(pack_position(position)) == position
