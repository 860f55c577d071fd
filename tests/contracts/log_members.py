"""Groups: who owns what, and what a member reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from samovar.changelog.log import Append, Log, TopicPartition
from samovar.common.errors import Fenced
from tests.contracts.log_driving import (
    LogParts,
    Making,
    NewLog,
    Seat,
    Seating,
    commit_offsets,
    drive,
    read_to_end,
    seated,
    until,
    values,
)


def numbers(seat: Seat) -> set[int]:
    return {at.partition for at in seat.owned}


class MembersContract(LogParts):
    def test_an_assigned_partition_is_paused_until_it_is_sought(self, log: Log, topic: Making, seat: Seating) -> None:
        name = topic()
        at = TopicPartition(name, 0)
        log.append([Append(topic=name, records=[(b"k", b"%d" % number) for number in range(4)], partition=0)])
        rows = read_to_end(log, name)
        member = seated(seat(name, start=None), 1)
        assert [row for _ in range(4) for row in member.poll()] == []
        member.member.seek(at, rows[1].offset)
        assert member.member.position(at) == rows[1].offset
        drive(lambda: len(member.found) >= 3, member)
        assert values(member.found) == [b"1", b"2", b"3"]
        member.member.seek(at, rows[2].offset)
        drive(lambda: len(member.found) >= 5, member)
        assert values(member.found[3:]) == [b"2", b"3"]

    def test_at_end_is_when_all_was_given_out(self, log: Log, topic: Making, seat: Seating) -> None:
        name, out = topic(), topic()
        at = TopicPartition(name, 0)
        log.append([Append(topic=name, records=[(b"k", b"%d" % number) for number in range(5)], partition=0)])
        member = seated(seat(name, start=0), 1)
        assert not member.member.at_end(at)
        until(lambda: len(member.found) >= 2, lambda: member.poll(max_records=1))
        assert len(member.found) == 2
        assert not member.member.at_end(at)
        drive(lambda: member.member.at_end(at), member)
        assert len(member.found) == 5
        # A transaction's marker is not a record, and still the end is reached.
        member.member.transact(
            [
                Append(topic=name, records=[(b"k", b"own")], partition=0),
                Append(topic=out, records=[(b"k", b"v")], partition=0),
            ],
            {at: 5},
        )
        drive(lambda: len(member.found) == 6 and member.member.at_end(at), member)
        assert member.member.position(at) == log.bounds([at])[at].end
        assert values(member.found)[-1] == b"own"

    def test_the_log_says_again_and_again_that_an_end_is_the_end(self, log: Log, topic: Making, seat: Seating) -> None:
        """In one stretch while nothing comes, and again once what came was given out."""
        name = topic()
        at = TopicPartition(name, 0)
        log.append([Append(topic=name, records=[(b"k", b"v")], partition=0)])
        member = seated(seat(name, start=0), 1)
        stretches: list[int] = []

        def look() -> None:
            member.poll()
            stretches.extend(stretch for each, stretch in member.member.standing().items() if each == at)

        until(lambda: len(stretches) >= 3, look)
        assert len(member.found) == 1
        assert len(set(stretches)) == 1
        log.append([Append(topic=name, records=[(b"k", b"v")], partition=0)])
        until(lambda: len(member.found) == 2, look)
        stretches.clear()
        until(lambda: bool(stretches), look)
        assert member.member.position(at) == log.bounds([at])[at].end

    def test_a_paused_partition_waits(self, log: Log, topic: Making, seat: Seating) -> None:
        name = topic(2)
        still, busy = TopicPartition(name, 0), TopicPartition(name, 1)
        member = seated(seat(name), 2)
        member.member.pause([still])
        log.append(
            [
                Append(topic=name, records=[(b"k", b"still")], partition=0),
                Append(topic=name, records=[(b"k", b"busy")], partition=1),
            ]
        )
        drive(lambda: bool(member.found), member)
        assert [row.at for row in member.found + member.poll()] == [busy]
        assert member.member.position(still) == 0
        member.member.resume([still])
        drive(lambda: len(member.found) == 2, member)
        assert member.found[1].value == b"still"

    def test_two_members_share_and_one_takes_over(
        self, log: Log, new_log: NewLog, topic: Making, group: str, seat: Seating
    ) -> None:
        """P6: partition p of all topics has one owner, and never two."""
        names = topic(4), topic(4)
        one = seated(seat(*names), 8)
        assert len(log.members(group)) == 1
        two = seat(*names, at=new_log(), slot=1)

        def shared() -> bool:
            assert one.owned.isdisjoint(two.owned)
            return len(one.owned) == len(two.owned) == 4

        drive(shared, one, two, what="two members with half each")
        assert numbers(one).isdisjoint(numbers(two))
        for each in (one, two):
            assert each.owned == {TopicPartition(name, number) for name in names for number in numbers(each)}
        assert len(log.members(group)) == 2
        log.append(
            [
                Append(topic=name, records=[(b"k", b"v")], partition=partition)
                for name in names
                for partition in range(4)
            ]
        )
        drive(lambda: len(one.found) == len(two.found) == 4, one, two)
        assert {row.at for row in two.found} == two.owned
        two.member.close()
        assert two.owned == set()
        drive(lambda: len(one.owned) == 8, one, what="the other has all")
        assert len(log.members(group)) == 1
        # What was gained is read from where it is sought.
        drive(lambda: {row.at for row in one.found} == one.owned, one)

    def test_partitions_beyond_those_of_the_leading_topic_are_nobodys(
        self, new_log: NewLog, topic: Making, seat: Seating
    ) -> None:
        """Topics that differ in size are shared out alike, so that partition p of all of them has one owner."""
        lead, names = topic(3), (topic(3), topic(8))
        one, two = seat(*names, lead=lead), seat(*names, at=new_log(), slot=1, lead=lead)
        drive(lambda: len(one.owned) + len(two.owned) == 6 and bool(two.owned), one, two, what="all have an owner")
        assert numbers(one) | numbers(two) == {0, 1, 2}
        for each in (one, two):
            assert each.owned == {TopicPartition(name, number) for name in names for number in numbers(each)}

    def test_one_that_leaves_for_good_is_forgotten_at_once(
        self, log: Log, new_log: NewLog, topic: Making, group: str, seat: Seating
    ) -> None:
        """P6: the others need not wait for it; and it may come back all the same."""
        name = topic(4)
        one = seat(name)
        assert not one.member.has_assignment()
        seated(one, 4)
        two = seat(name, at=new_log(), slot=1)
        assert (one.member.has_assignment(), two.member.has_assignment()) == (True, False)
        drive(lambda: len(one.owned) == len(two.owned) == 2, one, two, what="two members with half each")
        two.member.leave()
        assert (two.owned, two.lost, two.told[-1]) == (set(), set(), "revoked")
        assert len(log.members(group)) == 1
        drive(lambda: len(one.owned) == 4, one, what="the other has all")
        again = seat(name, at=new_log(), slot=1)
        drive(lambda: len(one.owned) == len(again.owned) == 2, one, again, what="it is back")
        assert one.member.has_assignment()
        assert again.member.has_assignment()
        for each in (one, again):
            each.member.leave()
        assert not log.members(group)

    def test_one_that_gets_nothing_knows_it(self, new_log: NewLog, topic: Making, seat: Seating) -> None:
        name = topic(1)
        one, two = seated(seat(name), 1), seat(name, at=new_log(), slot=1)
        drive(two.member.has_assignment, one, two, what="the second knows its share")
        drive(lambda: len(one.owned) == 1, one, two, what="the first has it again")
        assert two.owned == set()

    def test_offsets_stay_when_their_member_is_gone(self, log: Log, topic: Making, group: str, seat: Seating) -> None:
        """P5: a member that was closed is gone; what it committed is not, and nothing else was."""
        name = topic(2)
        first, second = TopicPartition(name, 0), TopicPartition(name, 1)
        assert log.committed(group, [first]) == {first: None}
        commit_offsets(log, group, {first: 3})
        until(lambda: not log.members(group), what="the group is empty")
        assert log.committed(group, [first, second]) == {first: 3, second: None}
        member = seated(seat(name), 2)
        assert log.committed(group, [first, second]) == {first: 3, second: None}
        member.member.close()
        assert (member.owned, member.lost, member.told[-1]) == (set(), set(), "revoked")
        until(lambda: not log.members(group), what="the group is empty")
        commit_offsets(log, group, {second: 5})
        assert log.committed(group, [first, second]) == {first: 3, second: 5}

    def test_a_zombie_is_fenced(
        self, log: Log, new_log: NewLog, topic: Making, group: str, seat: Seating, loosen: Callable[[str], None]
    ) -> None:
        """P6: a member whose partition was taken writes nothing any more, and its end disturbs nobody."""
        name, out = topic(), topic()
        at = TopicPartition(name, 0)
        zombie = seated(seat(name), 1)
        zombie.member.transact([Append(topic=out, records=[(b"k", b"1")], partition=0)], {at: 1})
        loosen(group)
        heir = seated(seat(name, at=new_log()), 1)
        with pytest.raises(Fenced):
            zombie.member.transact([Append(topic=out, records=[(b"k", b"zombie")], partition=0)], {at: 9})
        assert log.committed(group, [at]) == {at: 1}
        zombie.member.close()
        heir.member.transact([Append(topic=out, records=[(b"k", b"2")], partition=0)], {at: 2})
        assert values(read_to_end(log, out)) == [b"1", b"2"]
        assert log.committed(group, [at]) == {at: 2}

    def test_a_zombie_learns_of_it_in_poll(
        self, new_log: NewLog, topic: Making, group: str, seat: Seating, loosen: Callable[[str], None]
    ) -> None:
        """P6"""
        name = topic()
        zombie = seated(seat(name), 1)
        loosen(group)
        seated(seat(name, at=new_log()), 1)
        with pytest.raises(Fenced):
            until(lambda: False, zombie.poll, "poll raises Fenced")
