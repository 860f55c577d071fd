"""Transactions: all of it happens, or nothing."""

from __future__ import annotations

from contextlib import closing

import pytest

from samovar.changelog.log import Append, Delivery, Log, TopicPartition
from samovar.common import failpoints
from tests.contracts.log_driving import (
    LogParts,
    Making,
    NewLog,
    Seating,
    read_to_end,
    read_until,
    seated,
    values,
)

PASSED = """produce.before produce.after offsets.before offsets.after flush.after commit.before commit.after""".split()


class StoppedHere(Exception):
    """What a test raises in the middle of a transaction."""


class TransactionsContract(LogParts):
    def test_records_and_offsets_come_together(self, log: Log, topic: Making, group: str, seat: Seating) -> None:
        """P1, P6: output and offsets are one; the offset of the last record of each named partition is told."""
        name, out, other = topic(2), topic(3), topic()
        first, second = TopicPartition(name, 0), TopicPartition(name, 1)
        member = seated(seat(name), 2).member
        appends = [
            Append(topic=out, records=[(b"a", b"1"), (b"b", b"2")], partition=2, headers=[(("h", b"x"),), ()]),
            Append(topic=out, records=[(b"c", b"3")], partition=0),
            Append(topic=out, records=[(b"d", b"4")], partition=2),
            Append(topic=other, records=[(b"k", b"5")]),
        ]
        told = member.transact(appends, {first: 7})
        rows = read_to_end(log, out)
        assert values(rows) == [b"3", b"1", b"2", b"4"]
        assert rows[1].headers == (("h", b"x"),)
        assert told[TopicPartition(out, 2)] == rows[3].offset
        assert told[TopicPartition(out, 0)] == rows[0].offset
        assert values(read_to_end(log, other)) == [b"5"]
        assert log.committed(group, [first, second]) == {first: 7, second: None}
        told = member.transact([Append(topic=out, records=[(b"d", None)], partition=2)], {first: 8, second: 1})
        assert told[TopicPartition(out, 2)] == read_to_end(log, out)[-1].offset
        assert log.committed(group, [first, second]) == {first: 8, second: 1}

    def test_a_transaction_may_hold_only_offsets(self, log: Log, topic: Making, group: str, seat: Seating) -> None:
        name = topic()
        at = TopicPartition(name, 0)
        member = seated(seat(name), 1).member
        assert not member.transact([], {at: 0})
        assert log.committed(group, [at]) == {at: 0}
        member.transact([Append(topic=name, records=[], partition=0)], {at: 4})
        assert log.committed(group, [at]) == {at: 4}

    def test_nothing_is_seen_before_the_commit(
        self, log: Log, new_log: NewLog, topic: Making, seat: Seating, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P3: nothing that is not committed is ever read."""
        name, out = topic(), topic()
        at, there = TopicPartition(name, 0), TopicPartition(out, 0)
        log.append([Append(topic=out, records=[(b"k", b"before")], partition=0)])
        member = seated(seat(name), 1).member
        passed: list[str] = []
        early: list[int] = []
        with closing(new_log().reader({there: 0})) as reader:
            read_until(reader, lambda found: len(found) == 1)

            def passing(point: str) -> None:
                passed.append(point)
                if point == "commit.before":
                    early.extend(len(records) for records in reader.poll(10, 0.3))

            monkeypatch.setattr(failpoints, "hit", passing)
            member.transact([Append(topic=out, records=[(b"k", b"1"), (b"k", b"2")], partition=0)], {at: 1})
            assert sum(early) == 0
            assert values(read_until(reader, lambda found: len(found) == 2)) == [b"1", b"2"]
        assert passed == PASSED

    @pytest.mark.parametrize("point", ["produce.after", "commit.before"])
    def test_a_transaction_that_stops_leaves_nothing(
        self,
        log: Log,
        topic: Making,
        group: str,
        seat: Seating,
        monkeypatch: pytest.MonkeyPatch,
        point: str,
    ) -> None:
        """P3, P5: after a stop no transaction is open; readers pass it, and the next member goes on."""
        name, out = topic(), topic()
        at = TopicPartition(name, 0)
        first = seated(seat(name), 1)

        def passing(passed: str) -> None:
            if passed == point:
                raise StoppedHere

        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "hit", passing)
            with pytest.raises(StoppedHere):
                first.member.transact([Append(topic=out, records=[(b"k", b"never")], partition=0)], {at: 1})
        first.member.close()
        assert log.committed(group, [at]) == {at: None}
        assert read_to_end(log, out) == []
        again = seated(seat(name), 1)
        again.member.transact([Append(topic=out, records=[(b"k", b"then")], partition=0)], {at: 1})
        assert values(read_to_end(log, out)) == [b"then"]
        assert log.committed(group, [at]) == {at: 1}

    def test_at_least_once_never_has_offsets_without_records(
        self, log: Log, topic: Making, group: str, seat: Seating, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name, out = topic(), topic()
        at = TopicPartition(name, 0)
        member = seated(seat(name, delivery=Delivery.AT_LEAST_ONCE), 1).member
        passed: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "hit", passed.append)
            told = member.transact([Append(topic=out, records=[(b"k", b"1")], partition=0)], {at: 1})
        assert set(passed) == set(PASSED)
        assert passed.index("produce.after") < passed.index("offsets.before")
        assert values(read_to_end(log, out)) == [b"1"]
        assert told[TopicPartition(out, 0)] == 0
        assert log.committed(group, [at]) == {at: 1}

        def passing(point: str) -> None:
            if point == "offsets.before":
                raise StoppedHere

        monkeypatch.setattr(failpoints, "hit", passing)
        with pytest.raises(StoppedHere):
            member.transact([Append(topic=out, records=[(b"k", b"2")], partition=0)], {at: 2})
        member.close()
        assert log.committed(group, [at]) == {at: 1}
