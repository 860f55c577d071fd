"""Records that are not in the partition of their key are dead letters, in a live run and in every replay of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.formats.record import InputPosition, Position, pack_position, unpack_position
from samovar.changelog.formats.waiting import WaitingEvent
from samovar.changelog.log import Append, Records, TopicPartition, TopicSpec
from samovar.changelog.partitioner import key_texts, misplaced_rows, partition_of
from samovar.native.kernel import joined
from samovar.patterns.engine.decoder import Decoder
from samovar.tasks.input.source import StreamSource, is_on_at, needed_turns
from samovar.tasks.model.plan import InputSpec

T0 = 1_700_000_000_000
KEYS = st.one_of(
    st.text(max_size=200),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(10**6), 10**6).map(float),
    st.booleans(),
    st.lists(st.integers(0, 9), max_size=3),
    st.none(),
)


@given(keys=st.lists(KEYS, max_size=30), partitions=st.integers(1, 50), at=st.integers(0, 49))
def test_the_kernel_places_keys_as_the_partitioner_does(keys: list[Any], partitions: int, at: int) -> None:
    partition = at % partitions
    messages = joined([json.dumps({"k": key, "ts": T0}, ensure_ascii=False).encode() for key in keys])
    decoder = Decoder(["k"], "ts", None, "s")
    batch = decoder.batch()
    decoder.decode(batch, messages)
    texts = key_texts(batch, 0, messages)
    expected = [
        row for row, text in enumerate(texts) if text is not None and partition_of(text, partitions) != partition
    ]
    assert misplaced_rows(batch, 0, partitions, partition).tolist() == expected


@given(
    turns=st.lists(st.integers(1, 50), unique=True).map(sorted), replay_from=st.integers(0, 60), more=st.integers(0, 60)
)
def test_what_is_forgotten_of_turns_does_not_matter_from_there_on(
    turns: list[int], replay_from: int, more: int
) -> None:
    left = needed_turns(turns, replay_from)
    assert len(left) % 2 == len(turns) % 2, "the check is on at the end, or off, as before"
    assert is_on_at(left, replay_from + more) == is_on_at(turns, replay_from + more)


# ---------------------------------------------------------------- a task's intake


def records(folder: Path, *keys: str) -> Records:
    """Events of these keys, a second apart, all in partition 0."""
    log = EmbeddedLog(folder)
    log.create([TopicSpec("t", 1)])
    values = [json.dumps({"k": key, "ts": T0 + 1_000 * at}).encode() for at, key in enumerate(keys)]
    log.append([Append(topic="t", records=[(b"any", value) for value in values], partition=0)])
    reader = log.reader({TopicPartition("t", 0): 0})
    (found,) = reader.poll(100, 5.0)
    reader.close()
    log.close()
    return found


def stream_source(*, slack_ms: int = 0) -> StreamSource:
    return StreamSource([InputSpec(stream="s", topic="t", key="k", slack_ms=slack_ms, placed_in=2)], ["k"], 0)


HERE, AWAY = (next(f"c{n}" for n in range(99) if partition_of(b"c%d" % n, 2) == place) for place in (0, 1))


def test_only_a_stream_that_is_read_by_its_key_is_checked(tmp_path: Path) -> None:
    found = records(tmp_path, HERE, AWAY)
    checked, other = stream_source(), stream_source()
    checked.check_places({"s"}, None)
    other.check_places(set(), None)
    assert [(each.row, each.kind) for each in checked.feed(found).dead] == [(1, "key-misplaced")]
    assert other.feed(found).dead == []


def test_a_key_is_said_to_have_moved_where_the_new_number_of_partitions_places_it_here(tmp_path: Path) -> None:
    keys = [f"c{n}" for n in range(400) if partition_of(b"c%d" % n, 2) == 1]
    moved = next(key for key in keys if partition_of(key.encode(), 3) == 0)
    wrong = next(key for key in keys if partition_of(key.encode(), 3) != 0)
    made = stream_source()
    made.check_places({"s"}, None)
    made.partitions_now = lambda topic: {"t": 3}[topic]
    dead = made.feed(records(tmp_path, moved, wrong)).dead
    assert [(each.row, each.kind) for each in dead] == [(0, "key-moved"), (1, "key-misplaced")]


def test_what_is_read_again_after_a_change_of_rules_is_judged_as_it_was(tmp_path: Path) -> None:
    """Events that wait for event time are read again. Before the change nobody minded where they are."""
    found = records(tmp_path, HERE, AWAY, HERE, AWAY)
    before = stream_source(slack_ms=60_000)
    before.check_places(set(), None)
    assert before.feed(found).dead == []
    position = Position(watermark=None, inputs=before.inputs(), streams=("s",), rules={})
    after = stream_source(slack_ms=60_000)
    after.resume(position)
    after.check_places({"s"}, position)
    after.recover("s", [found], position.inputs["s"])
    assert len(after.buffer.pending) == 4
    assert after.inputs()["s"].placing == (4,)
    later = Position(watermark=None, inputs=after.inputs(), streams=("s",), rules={})
    back = stream_source(slack_ms=60_000)
    back.resume(later)
    back.check_places(set(), later)
    back.recover("s", [found], later.inputs["s"])
    assert len(back.buffer.pending) == 4
    assert back.inputs()["s"].placing == (4, 4)


def test_a_position_keeps_the_turns_and_the_id_of_its_changelog() -> None:
    position = Position(
        watermark=5,
        inputs={"s": InputPosition(topic="t", topic_id="id", next=30, replay_from=19, placing=(0, 25))},
        streams=("s",),
        rules={},
        changelog="a",
    )
    assert unpack_position(pack_position(position)) == position


def test_an_event_that_waited_at_a_repartition_waits_again_wherever_its_key_belongs() -> None:
    """It was judged in the partition that it came in, when nobody may have minded where it was."""
    source = stream_source(slack_ms=60_000)
    source.check_places({"s"}, None)
    values = [json.dumps({"k": key, "ts": T0 + at}).encode() for at, key in enumerate((HERE, AWAY))]
    held = [WaitingEvent(number, 5, T0, None, value) for number, value in enumerate(values)]
    assert source.take_back("s", held) == T0 + 1
    assert source.buffer.pending.time.tolist() == [T0, T0 + 1]
    assert source.sources["s"].is_checked
