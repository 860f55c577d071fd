"""Topics and records: what every Log keeps without a group."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from random import Random
from typing import Any

from samovar.changelog.log import Append, Bounds, Headers, Log, Reader, TopicPartition, TopicSpec
from samovar.changelog.partitioner import partition_of
from tests.contracts.log_driving import (
    DEADLINE_S,
    LogParts,
    Making,
    NewLog,
    read_to_end,
    read_until,
    unique,
    until,
    values,
)


def _assert_begins_at(reader: Reader, wanted: Mapping[TopicPartition, int]) -> None:
    rows = read_until(reader, lambda found: {row.at for row in found} == wanted.keys())
    for at, offset in wanted.items():
        first = next(row for row in rows if row.at == at)
        assert (first.offset, (first.value or b"")[:80].partition(b" x")[0]) == (offset, f"{at} {offset}".encode())


class TopicsContract(LogParts):
    def test_a_topic_is_as_it_was_asked_for(self, log: Log, new_log: NewLog) -> None:
        name = unique("t")
        assert log.topics([name]) == {}
        log.create([TopicSpec(name, 3, {"cleanup.policy": "compact", "delete.retention.ms": "86400001"})])
        for view in (log, new_log()):
            made = view.topics([name, unique("missing")])
            assert list(made) == [name]
            assert (made[name].name, made[name].partitions) == (name, 3)
            assert made[name].settings["cleanup.policy"] == "compact"
            assert made[name].settings["delete.retention.ms"] == "86400001"

    def test_a_topic_that_exists_is_left_as_it_is(self, log: Log) -> None:
        name, other = unique("t"), unique("t")
        log.create([TopicSpec(name, 2)])
        log.append([Append(topic=name, records=[(b"k", b"v")], partition=1)])
        before = log.topics([name])[name]
        log.create([TopicSpec(name, 5, {"cleanup.policy": "compact"}), TopicSpec(other, 1)])
        after = log.topics([name, other])
        assert (after[name].id, after[name].partitions) == (before.id, 2)
        assert after[other].partitions == 1
        assert values(read_to_end(log, name)) == [b"v"]

    def test_a_topic_made_again_is_another_one(self, log: Log, new_log: NewLog) -> None:
        """P4: what was kept for the old topic can be told from the new one."""
        name = unique("t")
        log.create([TopicSpec(name, 1)])
        log.append([Append(topic=name, records=[(b"k", b"old")])])
        first = log.topics([name])[name]
        log.delete([name])
        until(lambda: not log.topics([name]), what="the topic is gone")
        log.create([TopicSpec(name, 2)])
        again = new_log().topics([name])[name]
        assert again.id != first.id
        assert again.partitions == 2
        here = TopicPartition(name, 0)
        assert log.bounds([here])[here] == Bounds(0, 0)

    def test_no_topics_no_work(self, log: Log) -> None:
        log.create([])
        log.delete([])
        assert log.topics([]) == {}
        assert log.bounds([]) == {}
        assert log.append([]) == 0


class RecordsContract(LogParts):
    def test_records_come_in_the_order_they_were_appended(self, log: Log, topic: Making) -> None:
        name = topic()
        assert (
            log.append(
                [
                    Append(topic=name, records=[(b"a", b"1"), (b"b", b"2")], partition=0),
                    Append(topic=name, records=[(b"a", b"3")], partition=0),
                ]
            )
            == 3
        )
        assert log.append([Append(topic=name, records=[(b"c", b"4")], partition=0)]) == 1
        rows = read_to_end(log, name)
        assert [(row.key, row.value) for row in rows] == [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4")]
        assert [row.offset for row in rows] == sorted({row.offset for row in rows})

    def test_an_empty_partition_begins_and_ends_at_0(self, log: Log, topic: Making) -> None:
        name = topic(2)
        partitions = [TopicPartition(name, 0), TopicPartition(name, 1)]
        assert log.bounds(partitions) == dict.fromkeys(partitions, Bounds(0, 0))
        log.append([Append(topic=name, records=[(b"k", b"v")], partition=1)])
        bounds = log.bounds(partitions)
        assert bounds[partitions[0]] == Bounds(0, 0)
        assert bounds[partitions[1]].begin == 0
        assert bounds[partitions[1]].end >= 1

    def test_keys_values_and_headers_come_back_as_they_were(self, log: Log, topic: Making) -> None:
        name = topic()
        pairs = [(b"k", b"v"), (b"gone", None), (b"empty", b""), (None, b"no key"), (b"\0\xff", bytes(range(256)))]
        headers: list[Headers] = [(), (("a", b"1"), ("a", b"2"), ("ä", b"")), (), (("b", b"\0"),), ()]
        log.append([Append(topic=name, records=pairs, partition=0, headers=headers)])
        log.append([Append(topic=name, records=[(b"bare", b"x")], partition=0)])
        rows = read_to_end(log, name)
        assert [(row.key, row.value) for row in rows] == [*pairs, (b"bare", b"x")]
        assert [row.headers for row in rows] == [*headers, ()]

    def test_a_null_value_is_an_empty_message(self, log: Log, topic: Making) -> None:
        name = topic()
        pairs = [(b"a", b"first"), (b"b", None), (b"c", b""), (b"d", b"last")]
        log.append([Append(topic=name, records=pairs, partition=0)])
        with closing(log.reader({TopicPartition(name, 0): 0})) as reader:
            found: list[Any] = []
            until(lambda: sum(map(len, found)) == 4, lambda: found.extend(reader.poll(10, 1.0)))
        messages = [records.values[row] for records in found for row in range(len(records))]
        assert messages == [b"first", b"", b"", b"last"]
        assert [pair for records in found for pair in records.pairs()] == pairs
        assert all(len(each.values) == len(each.offsets) == len(each.times) == len(each) for each in found)

    def test_reading_begins_in_the_middle_and_goes_on_from_next(self, log: Log, topic: Making) -> None:
        name = topic()
        at = TopicPartition(name, 0)
        log.append([Append(topic=name, records=[(b"k", b"%d" % number) for number in range(10)], partition=0)])
        rows = read_to_end(log, name)
        with closing(log.reader({at: rows[4].offset})) as reader:
            assert reader.position(at) == rows[4].offset
            assert values(read_until(reader, lambda found: len(found) == 6)) == values(rows[4:])
        with closing(log.tail({at: rows[4].offset})) as reader:
            assert values(read_until(reader, lambda found: len(found) == 6)) == values(rows[4:])
        with closing(log.reader({at: 0})) as reader:
            few = read_until(reader, lambda found: len(found) >= 3, max_records=3)
            assert values(few) == values(rows[:3])
            assert reader.position(at) == rows[3].offset
            assert values(read_until(reader, lambda found: len(found) == 7)) == values(rows[3:])

    def test_glances_go_from_place_to_place_and_never_show_what_another_looked_at(
        self, log: Log, topic: Making
    ) -> None:
        """Readers may share what is behind them, one after the other: a record of an earlier place is not given."""
        names = [topic(2), topic()]
        places = [TopicPartition(names[0], 0), TopicPartition(names[0], 1), TopicPartition(names[1], 0)]
        for at in places:
            pairs = [(b"k", f"{at} {number} {'x' * 2_000}".encode()) for number in range(300)]
            log.append([Append(topic=at.topic, records=pairs, partition=at.partition)])
        random = Random(3)
        for _ in range(20):
            wanted = {at: random.randrange(300) for at in random.sample(places, random.randint(1, 3))}
            with closing(log.point_reader(wanted, random.choice([1, 5_000]))) as reader:
                for _ in range(3):
                    _assert_begins_at(reader, wanted)
                    wanted = {at: random.randrange(300) for at in wanted}
                    for at, offset in wanted.items():
                        reader.seek(at, offset)

    def test_a_poll_gives_at_most_what_was_asked_for(self, log: Log, topic: Making) -> None:
        name = topic(2)
        log.append([Append(topic=name, records=[(b"k", b"v")] * 30, partition=partition) for partition in (0, 1)])
        partitions = [TopicPartition(name, 0), TopicPartition(name, 1)]
        seen = 0
        with closing(log.reader(dict.fromkeys(partitions, 0))) as reader:
            deadline = time.monotonic() + DEADLINE_S
            while seen < 60 and time.monotonic() < deadline:
                got = reader.poll(7, 1.0)
                assert sum(map(len, got)) <= 7
                for records in got:
                    assert records.next <= reader.position(TopicPartition(records.topic, records.partition))
                    assert all(records.next > offset for offset in records.offsets.tolist())
                seen += sum(map(len, got))
        assert seen == 60

    def test_an_empty_poll_ends_when_its_time_is_over(self, log: Log, topic: Making, now_ms: Callable[[], int]) -> None:
        name = topic()
        with closing(log.reader({TopicPartition(name, 0): 0})) as reader:
            began_ms = now_ms()
            assert not any(map(len, reader.poll(10, 0.2)))
            assert 150 < now_ms() - began_ms < 5_000

    def test_a_waiting_reader_gets_what_comes(self, log: Log, new_log: NewLog, topic: Making) -> None:
        name = topic()
        with closing(new_log().reader({TopicPartition(name, 0): 0})) as reader:
            reader.poll(10, 0.0)
            for number in range(3):
                log.append([Append(topic=name, records=[(b"k", b"%d" % number)], partition=0)])
                assert values(read_until(reader, lambda found: len(found) == 1)) == [b"%d" % number]

    def test_a_record_has_the_time_of_its_append(self, log: Log, topic: Making, now_ms: Callable[[], int]) -> None:
        name = topic()
        at = TopicPartition(name, 0)
        assert log.offset_at(at, 0) == log.bounds([at])[at].end
        log.append([Append(topic=name, records=[(b"k", b"1"), (b"k", b"2")], partition=0)])
        passed = read_to_end(log, name)[-1].time
        until(lambda: now_ms() > passed + 2, what="the clock moves on")
        log.append([Append(topic=name, records=[(b"k", b"3")], partition=0)])
        rows = read_to_end(log, name)
        assert abs(rows[0].time - now_ms()) < 60_000
        assert rows[1].time < rows[2].time
        assert log.offset_at(at, 0) == rows[0].offset
        for time_ms in (rows[0].time, rows[1].time + 1, rows[2].time):
            assert log.offset_at(at, time_ms) == next(row.offset for row in rows if row.time >= time_ms)
        assert log.offset_at(at, rows[2].time + 1) == log.bounds([at])[at].end

    def test_a_key_goes_where_murmur2_says(self, log: Log, topic: Making) -> None:
        """Producers of other languages put a key into the same partition."""
        name = topic(5)
        keys = [b"card-%d" % number for number in range(200)]
        log.append([Append(topic=name, records=[(key, b"v") for key in keys])])
        rows = read_to_end(log, name)
        assert {row.key: row.at.partition for row in rows} == {key: partition_of(key, 5) for key in keys}
        assert len(rows) == len(keys)

    def test_keys_are_placed_among_the_first_partitions_where_that_is_asked_for(self, log: Log, topic: Making) -> None:
        """As they were before a topic grew."""
        name = topic(5)
        keys = [b"card-%d" % number for number in range(200)]
        log.append([Append(topic=name, records=[(key, b"v") for key in keys], headers=[(("h", b"1"),)] * 200, among=2)])
        log.append([Append(topic=name, records=[(key, b"w") for key in keys], among=2)])
        rows = read_to_end(log, name)
        assert {row.key: row.at.partition for row in rows} == {key: partition_of(key, 2) for key in keys}
        assert len(rows) == 2 * len(keys)

    def test_a_record_without_a_key_goes_to_any_partition(self, log: Log, topic: Making) -> None:
        name = topic(3)
        log.append([Append(topic=name, records=[(None, b"%d" % number) for number in range(20)])])
        assert sorted(values(read_to_end(log, name)), key=str) == sorted([b"%d" % n for n in range(20)], key=str)

    def test_many_records_make_the_round_trip(self, log: Log, topic: Making) -> None:
        name = topic(2)
        pairs = [(b"key-%d" % (number % 997), b'{"n":%d}' % number) for number in range(20_000)]
        assert log.append([Append(topic=name, records=pairs)]) == 20_000
        rows = read_to_end(log, name)
        expected = sorted(pairs, key=lambda pair: partition_of(pair[0], 2))
        assert [(row.key, row.value) for row in rows] == expected

    def test_large_records_make_the_round_trip(self, log: Log, topic: Making) -> None:
        name = topic()
        large = [bytes([number]) * 900_000 for number in range(5)]
        log.append([Append(topic=name, records=[(b"k", value) for value in large], partition=0)])
        log.append([Append(topic=name, records=[(b"k", b"small")], partition=0)])
        assert values(read_to_end(log, name)) == [*large, b"small"]
