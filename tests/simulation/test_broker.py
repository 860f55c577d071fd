"""What the log of the simulator does as Kafka does it, beyond the contract of logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest

from samovar.changelog.log import Append, Delivery, Log, Member, TopicPartition, TopicSpec
from samovar.common import failpoints
from samovar.common.errors import CommitUnknown, Fenced, LogUnavailable, Refused
from samovar.tasks.model.clock import SetClock
from tests.contracts.log_driving import Seat, rows_of
from tests.simulation.broker import SESSION_MS, TRANSACTION_MS, Broker
from tests.simulation.faults import Fault, Killed
from tests.simulation.memory_log import MemoryLog

IN, OUT = TopicPartition("in", 0), TopicPartition("out", 0)


@dataclass
class Cluster:
    """A broker under a clock that stands still, with the topics `in` and `out`."""

    clock: SetClock = field(default_factory=SetClock)

    def __post_init__(self) -> None:
        self.broker = Broker(self.clock)
        self.log = MemoryLog(self.broker)
        self.log.create([TopicSpec("in", 2), TopicSpec("out", 1), TopicSpec("lead", 2)])

    def client(self, **faults: Fault) -> MemoryLog:
        """Another process. Each of the faults happens once, at the call of its name."""
        left = dict(faults)
        return MemoryLog(self.broker, faults=lambda call: left.pop(call, None), slow_ms=20_000)

    def seat(self, log: Log | None = None, slot: int = 0, polls: int = 2, **more: object) -> Seat:
        """A member that has its partitions, where nobody else has them."""
        seat = Seat(log or self.log, "g", ["in"], slot, **more)  # type: ignore[arg-type]
        for _ in range(polls):
            seat.poll()
        return seat

    def values(self, topic: str = "out") -> list[bytes | None]:
        return [record.value for record in self.broker.committed_records(topic)]

    def offsets(self, topic: str = "out") -> list[int]:
        return [record.offset for record in self.broker.committed_records(topic)]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def out(*values: bytes) -> list[Append]:
    return [Append(topic="out", records=[(b"k", value)], partition=0) for value in values]


def dies_at(point: str, log: MemoryLog, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """The process is killed there."""

    def passing(passed: str) -> None:
        if passed == point:
            raise Killed(point)

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "hit", passing)
        with pytest.raises(Killed):
            act()
    assert log.is_dead


def leaves_open(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, slot: int = 9) -> None:
    """A process of another slot that dies in the middle of a transaction with offsets."""
    log = cluster.client()
    seat = cluster.seat(log, slot)
    dies_at("commit.before", log, monkeypatch, lambda: seat.member.transact(out(b"never"), {IN: 7}))


# ---------------------------------------------------------------- transactions


def test_markers_and_aborted_records_take_offsets_that_nobody_reads(cluster: Cluster) -> None:
    seat = cluster.seat()
    seat.member.transact(out(b"1", b"2"), {IN: 1})  # 0 1, marker 2
    with pytest.raises(Refused):
        seat.member.transact(
            [*out(b"aborted"), Append(topic="nowhere", records=[(b"k", b"v")], partition=0)], {}
        )  # 3, marker 4
    assert cluster.broker.open_transactions() == 0
    seat.member.close()
    cluster.log.append(out(b"3"))
    assert cluster.offsets() == [0, 1, 5]
    reader = cluster.log.reader({OUT: 2})
    (records,) = reader.poll(10, 0.0)
    assert (records.offsets.tolist(), records.next, reader.position(OUT)) == ([5], 6, 6)
    cluster.seat().member.transact(out(), {IN: 2})
    assert cluster.log.bounds([OUT])[OUT] == (0, 6)  # a transaction without records leaves no marker


def test_an_open_transaction_holds_up_readers_until_its_time_is_over(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7: the end is the high watermark, and what stands above a dead writer's records comes late."""
    cluster.log.append(out(b"before"))
    leaves_open(cluster, monkeypatch)
    cluster.log.append(out(b"above"))
    assert cluster.log.bounds([OUT])[OUT] == (0, 3)
    reader = cluster.log.reader({OUT: 0})
    (records,) = reader.poll(10, 0.0)
    assert [row.value for row in rows_of(records)] == [b"before"]
    assert (records.next, reader.position(OUT)) == (1, 1)
    assert reader.poll(10, 0.0) == []
    cluster.clock.pass_ms(TRANSACTION_MS)
    assert reader.poll(10, 0.0) == []
    assert cluster.broker.open_transactions() == 1
    cluster.clock.pass_ms(1)
    (records,) = reader.poll(10, 0.0)
    assert [row.value for row in rows_of(records)] == [b"above"]
    assert reader.position(OUT) == 4  # past the marker
    assert cluster.broker.open_transactions() == 0


def test_a_reader_that_waits_lets_time_pass(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads up to the high watermark in a loop gets there; a member's poll leaves the clock alone."""
    leaves_open(cluster, monkeypatch)
    reader, began_ms = cluster.log.reader({OUT: 0}), cluster.clock.now_ms
    while reader.position(OUT) < cluster.log.bounds([OUT])[OUT].end:
        reader.poll(10, 0.1)
    assert TRANSACTION_MS < cluster.clock.now_ms - began_ms <= TRANSACTION_MS + 100
    now_ms = cluster.clock.now_ms
    assert cluster.seat().member.poll(10, 0.1) == []
    assert cluster.clock.now_ms == now_ms


def test_a_member_stays_while_its_process_waits_for_something_else(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Kafka's client, which sends heartbeats in a thread; others, who do nothing meanwhile, are missed."""
    cluster.broker.transaction_ms = 3 * SESSION_MS
    leaves_open(cluster, monkeypatch)
    cluster.clock.pass_ms(SESSION_MS + 1)
    log = cluster.client()
    seat, reader = cluster.seat(log), log.reader({OUT: 0})
    closed = cluster.seat(log, slot=1, polls=0)
    closed.member.close()
    began_ms = cluster.clock.now_ms
    while not reader.position(OUT):
        reader.poll(10, 1.0)
    assert cluster.clock.now_ms - began_ms > SESSION_MS
    seat.poll()
    assert seat.told == ["assigned"]
    assert len(log.heartbeats) == 1


def test_the_next_of_a_slot_ends_what_the_one_before_left_open(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = cluster.client()
    seat = cluster.seat(log)
    dies_at("produce.after", log, monkeypatch, lambda: seat.member.transact(out(b"never"), {IN: 1}))
    assert cluster.broker.open_transactions() == 1
    heir = cluster.seat(cluster.client())
    assert cluster.broker.open_transactions() == 0
    heir.member.transact(out(b"then"), {IN: 1})
    assert cluster.values() == [b"then"]


def test_a_zombie_without_offsets_is_fenced_by_its_epoch(cluster: Cluster) -> None:
    zombie = cluster.seat()
    cluster.seat(cluster.client())
    with pytest.raises(Fenced, match="epoch 1"):
        zombie.member.transact(out(b"zombie"), {})
    assert cluster.values() == []


def test_a_transaction_whose_time_was_over_cannot_be_committed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hung: its records were aborted by the broker, and it is fenced."""
    seat = cluster.seat()

    def passing(point: str) -> None:
        if point == "commit.before":
            cluster.clock.pass_ms(TRANSACTION_MS + 1)

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "hit", passing)
        with pytest.raises(Fenced):
            seat.member.transact(out(b"late"), {})
    seat.member.close()
    assert (cluster.values(), cluster.broker.open_transactions()) == ([], 0)
    cluster.log.append(out(b"next"))
    assert cluster.offsets() == [2]  # one record, one marker


# ---------------------------------------------------------------- offsets


def test_a_pending_offset_is_no_answer(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """P3: a successor must not begin at an offset that may yet be replaced."""
    cluster.seat().member.transact([], {IN: 3})
    cluster.clock.pass_ms(SESSION_MS + 1)
    leaves_open(cluster, monkeypatch)
    with pytest.raises(LogUnavailable, match="in/0"):
        cluster.log.committed("g", [IN])
    other = TopicPartition("in", 1)
    assert cluster.log.committed("g", [other]) == {other: None}
    cluster.clock.pass_ms(TRANSACTION_MS + 1)
    assert cluster.log.committed("g", [IN]) == {IN: 3}


def test_markers_may_come_after_the_answer(cluster: Cluster) -> None:
    """As Kafka answers a commit: it is decided, and seen by readers and by the group a little later."""
    seat = cluster.seat(cluster.client(commit=Fault.LATE_MARKERS))
    seat.member.transact(out(b"1"), {IN: 1})
    assert cluster.values() == []
    assert cluster.broker.open_transactions() == 1
    with pytest.raises(LogUnavailable):
        cluster.log.committed("g", [IN])
    cluster.broker.settle()
    assert cluster.values() == [b"1"]
    assert cluster.log.committed("g", [IN]) == {IN: 1}


@pytest.mark.parametrize("next_one", ["transact", "join"])
def test_late_markers_come_before_anything_else_of_that_producer(cluster: Cluster, next_one: str) -> None:
    seat = cluster.seat(cluster.client(commit=Fault.LATE_MARKERS))
    seat.member.transact(out(b"1"), {IN: 1})
    if next_one == "transact":
        seat.member.transact(out(b"2"), {IN: 2})
    else:
        cluster.seat(cluster.client())
    assert cluster.values()[:1] == [b"1"]


def test_an_offset_that_was_sent_earlier_never_replaces_a_later_one(cluster: Cluster) -> None:
    """Whichever of two transactions is seen first."""
    first = cluster.seat(cluster.client(commit=Fault.LATE_MARKERS))
    first.member.transact([], {IN: 1})
    cluster.clock.pass_ms(SESSION_MS + 1)
    second = cluster.seat(slot=1)
    second.member.transact([], {IN: 2})
    cluster.broker.settle()
    assert cluster.log.committed("g", [IN]) == {IN: 2}


# ---------------------------------------------------------------- groups


def test_offsets_of_an_old_generation_are_fenced(cluster: Cluster) -> None:
    """P6: its producer is nobody else's, and its partitions are: the group alone knows."""
    zombie = cluster.seat()
    cluster.clock.pass_ms(SESSION_MS + 1)
    heir = cluster.seat(slot=1)
    assert heir.owned == {IN, TopicPartition("in", 1)}
    with pytest.raises(Fenced):
        zombie.member.transact(out(b"zombie"), {IN: 1})
    zombie.member.close()
    assert (zombie.told[-1], zombie.lost) == ("lost", {IN, TopicPartition("in", 1)})
    assert (cluster.values(), cluster.broker.open_transactions()) == ([], 0)


@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_member_that_waits_for_others_cannot_commit_what_it_had(cluster: Cluster, delivery: Delivery) -> None:
    one = cluster.seat(delivery=delivery)
    two = cluster.seat(slot=1, delivery=delivery)
    assert (one.owned, two.owned) == ({IN, TopicPartition("in", 1)}, set())
    one.member.transact([], {IN: 1})  # nothing was given up yet
    one.poll()
    assert one.owned == {IN}  # of the new generation
    membership = one.member._membership  # type: ignore[attr-defined]
    assert membership.generation == 2
    one.member._membership = membership._replace(generation=1)  # type: ignore[attr-defined]
    with pytest.raises(Fenced, match="generation 1"):
        one.member.transact([], {IN: 2})
    assert cluster.log.committed("g", [IN]) == {IN: 1}


def test_a_restart_within_the_session_moves_nothing(cluster: Cluster) -> None:
    one, two = cluster.seat(), cluster.seat(slot=1)
    one.poll()
    two.poll()
    generation = cluster.broker.groups["g"].generation
    one.member.close()
    cluster.clock.pass_ms(SESSION_MS)
    two.poll()
    assert (two.told, two.owned) == (["assigned"], {TopicPartition("in", 1)})
    again = cluster.seat(polls=1)
    assert again.owned == {IN}
    two.poll()
    assert (two.told, cluster.broker.groups["g"].generation) == (["assigned"], generation)
    again.member.close()
    cluster.clock.pass_ms(SESSION_MS)
    two.poll()
    cluster.clock.pass_ms(1)
    two.poll()
    assert (two.told, len(two.owned)) == (["assigned", "revoked", "assigned"], 2)


def test_a_member_that_was_not_heard_of_has_lost_its_partitions(cluster: Cluster) -> None:
    seat = cluster.seat()
    cluster.clock.pass_ms(SESSION_MS)
    seat.poll()
    cluster.clock.pass_ms(SESSION_MS + 1)
    with pytest.raises(Fenced):
        seat.poll()
    assert (seat.told, seat.owned) == (["assigned", "lost"], set())
    with pytest.raises(ValueError, match="only be closed"):
        seat.poll()
    seat.member.close()
    assert cluster.log.members("g") == []


def test_all_members_give_up_before_anyone_is_given(cluster: Cluster) -> None:
    """As with Kafka's eager protocol: a generation begins when the last one has joined again."""
    one, two = cluster.seat(), cluster.seat(slot=1)
    for each in (one, two):
        each.poll()
    assert (len(one.owned), len(two.owned)) == (1, 1)
    three = cluster.seat(slot=2)
    assert (three.told, one.told[-1]) == ([], "assigned")
    one.poll()
    assert (one.told[-1], one.member.has_assignment()) == ("revoked", False)
    three.poll()
    assert not three.member.has_assignment()
    for each in (two, one, three):
        each.poll()
    assert [sorted(at.partition for at in each.owned) for each in (one, two, three)] == [[0], [1], []]
    assert three.member.has_assignment()


def test_who_waits_need_not_join_again_for_each_that_comes(cluster: Cluster) -> None:
    one, two, three = cluster.seat(), cluster.seat(slot=1), cluster.seat(slot=2)
    assert (two.told, three.told) == ([], [])
    one.poll()
    assert one.told == ["assigned", "revoked", "assigned"]
    assert cluster.broker.groups["g"].generation == 2


def test_a_topic_that_grows_is_shared_out_anew(cluster: Cluster) -> None:
    seat = cluster.seat()
    cluster.broker.add_partitions("in", 3)
    seat.poll()
    assert (seat.told, len(seat.owned)) == (["assigned", "revoked", "assigned"], 3)
    assert cluster.log.topics(["in"])["in"].partitions == 3


def test_of_topics_that_differ_only_what_exists_is_given(cluster: Cluster) -> None:
    seat = Seat(cluster.log, "g", ["in", "out"], lead="lead")
    seat.poll()
    assert seat.owned == {IN, TopicPartition("in", 1), OUT}


def test_ends_that_were_not_looked_at_for_a_while_are_another_stretch(cluster: Cluster) -> None:
    """An outage is not idleness."""
    seat = cluster.seat(cluster.client())
    member = seat.member

    def stretch(ms: int) -> int | None:
        cluster.clock.pass_ms(ms)
        seat.poll()
        return member.standing().get(IN)

    first = stretch(0)
    assert first is not None
    assert [stretch(1_000), stretch(3_000)] == [first, first]
    assert member.standing() == {}  # no look since
    second = stretch(3_001)
    assert second not in (None, first)
    cluster.log.append([Append(topic="in", records=[(b"k", b"v")], partition=0)])
    third = stretch(10)
    assert third not in (None, first, second)


# ---------------------------------------------------------------- what goes from a log


def pairs_of(cluster: Cluster, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(each.offset, each.key, each.value) for each in cluster.broker.committed_records(topic)]


class Largest(Random):
    """Chooses the largest up to a limit."""

    limit = 1_000

    def randint(self, a: int, b: int) -> int:
        return min(b, self.limit)


def compacted(cluster: Cluster, **settings: str) -> TopicPartition:
    more = {name.replace("_", "."): value for name, value in settings.items()}
    cluster.log.create([TopicSpec("c", 1, {"cleanup.policy": "compact", **more})])
    return TopicPartition("c", 0)


def put(cluster: Cluster, *pairs: tuple[bytes, bytes | None]) -> None:
    cluster.log.append([Append(topic="c", records=pairs, partition=0)])


def test_compaction_keeps_the_last_of_each_key_where_it_stands(cluster: Cluster) -> None:
    at = compacted(cluster)
    put(cluster, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None), (b"c", b"1"), (b"a", b"3"))
    cluster.broker.compact(Largest())
    assert pairs_of(cluster, "c") == [(3, b"b", None), (4, b"c", b"1"), (5, b"a", b"3")]
    assert cluster.log.bounds([at])[at] == (0, 6)
    reader = cluster.log.reader({at: 0})
    (records,) = reader.poll(1, 0.0)
    assert (records.offsets.tolist(), reader.position(at)) == ([3], 4)


def test_what_is_above_the_place_where_compaction_stops_takes_nothing_away(cluster: Cluster) -> None:
    compacted(cluster)
    put(cluster, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"a", b"3"))
    random = Largest()
    random.limit = 3
    cluster.broker.compact(random)
    assert pairs_of(cluster, "c") == [(1, b"b", b"1"), (2, b"a", b"2"), (3, b"a", b"3")]


def test_compaction_stops_somewhere(cluster: Cluster) -> None:
    compacted(cluster)
    left = set()
    for seed in range(40):
        cluster.log.delete(["c"])
        compacted(cluster)
        put(cluster, *((b"a", b"%d" % number) for number in range(6)))
        cluster.broker.compact(Random(seed))
        left.add(tuple(offset for offset, _, _ in pairs_of(cluster, "c")))
    assert left == {tuple(range(first, 6)) for first in range(6)}


def test_a_tombstone_stays_for_its_time_after_it_was_first_met(cluster: Cluster) -> None:
    compacted(cluster, delete_retention_ms="1000")
    put(cluster, (b"a", b"1"), (b"a", None))
    cluster.clock.pass_ms(5_000)
    cluster.broker.compact(Largest())
    cluster.clock.pass_ms(999)
    cluster.broker.compact(Largest())
    assert pairs_of(cluster, "c") == [(1, b"a", None)]
    cluster.clock.pass_ms(1)
    cluster.broker.compact(Largest())
    assert pairs_of(cluster, "c") == []


def test_what_is_young_or_undecided_is_not_compacted(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    compacted(cluster, min_compaction_lag_ms="1000")
    put(cluster, (b"a", b"1"), (b"a", b"2"))
    cluster.clock.pass_ms(999)
    cluster.broker.compact(Largest())
    assert len(pairs_of(cluster, "c")) == 2
    log = cluster.client()
    seat, there = cluster.seat(log), [Append(topic="c", records=[(b"a", b"3")], partition=0)]
    dies_at("commit.before", log, monkeypatch, lambda: seat.member.transact(there, {}))
    cluster.clock.pass_ms(2_000)
    cluster.broker.compact(Largest())
    assert pairs_of(cluster, "c") == [(1, b"a", b"2")]  # the third may yet be aborted
    cluster.clock.pass_ms(TRANSACTION_MS)
    cluster.broker.compact(Largest())
    assert pairs_of(cluster, "c") == [(1, b"a", b"2")]


def test_a_transaction_that_is_open_while_a_topic_is_compacted_may_still_commit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted(cluster)
    put(cluster, (b"a", b"1"))
    seat = cluster.seat()

    def passing(point: str) -> None:
        if point == "commit.before":
            put(cluster, (b"a", b"3"))
            cluster.broker.compact(Largest())

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "hit", passing)
        seat.member.transact([Append(topic="c", records=[(b"a", b"2")], partition=0)], {})
    assert pairs_of(cluster, "c") == [(0, b"a", b"1"), (1, b"a", b"2"), (2, b"a", b"3")]


def test_partitions_are_read_in_turn(cluster: Cluster) -> None:
    other = TopicPartition("in", 1)
    cluster.log.append([Append(topic="in", records=[(b"k", b"v")] * 3, partition=partition) for partition in (0, 1)])
    reader = cluster.log.reader({IN: 0, other: 0})
    found = [(records.partition, len(records)) for _ in range(4) for records in reader.poll(1, 0.0)]
    assert sorted(found) == [(0, 1), (0, 1), (1, 1), (1, 1)]


def test_what_is_wrong_with_one_partition_takes_nothing_from_another(cluster: Cluster) -> None:
    cluster.log.append([Append(topic="in", records=[(b"k", b"v")], partition=0)])
    for wrong in (TopicPartition("in", 1), TopicPartition("nowhere", 0)):
        for positions in ({IN: 0, wrong: 99}, {wrong: 99, IN: 0}):
            reader, given = cluster.log.reader(positions), 0
            with suppress(Refused):
                for _ in range(9):
                    given += sum(map(len, reader.poll(10, 0.0)))
            assert given == reader.position(IN)
            with pytest.raises(Refused):
                _ = reader.poll(10, 0.0) + reader.poll(10, 0.0)


def test_retention_moves_the_begin(cluster: Cluster) -> None:
    cluster.log.create([TopicSpec("r", 1, {"retention.ms": "1000"})])
    at = TopicPartition("r", 0)
    for number in range(3):
        cluster.log.append([Append(topic="r", records=[(b"k", b"%d" % number)], partition=0)])
        cluster.clock.pass_ms(500)
    assert cluster.log.offset_at(at, cluster.clock.now_ms - 1_000) == 1
    cluster.broker.retain()
    assert cluster.log.bounds([at])[at] == (1, 3)
    with pytest.raises(Refused) as refused:
        cluster.log.reader({at: 0}).poll(1, 0.0)
    assert refused.value.code == "log-truncated"
    cluster.clock.pass_ms(5_000)
    cluster.broker.retain()
    assert cluster.log.bounds([at])[at] == (3, 3)
    assert cluster.log.offset_at(at, 0) == 3
    cluster.broker.retain()
    assert cluster.log.reader({at: 3}).poll(1, 0.0) == []
    assert cluster.offsets("in") == []  # without a setting everything is kept


def test_a_topic_made_again_is_read_on_at_the_old_place(cluster: Cluster) -> None:
    """P4: nothing tells a member but the topic's id, and a position that is beyond the end."""
    seat = cluster.seat()
    cluster.log.append([Append(topic="in", records=[(b"k", b"%d" % number) for number in range(3)], partition=0)])
    seat.poll()
    seat.member.transact([], {IN: 3})
    before = cluster.log.topics(["in"])["in"].id
    cluster.log.delete(["in"])
    with pytest.raises(Refused) as refused:
        seat.poll()
    assert refused.value.code == "topic-missing"
    cluster.log.create([TopicSpec("in", 2)])
    assert cluster.log.topics(["in"])["in"].id != before
    assert cluster.log.committed("g", [IN]) == {IN: None}
    with pytest.raises(Refused) as refused:
        _ = seat.poll() + seat.poll()
    assert refused.value.code == "log-truncated"
    cluster.log.append([Append(topic="in", records=[(b"k", b"new %d" % number) for number in range(4)], partition=0)])
    assert [row.value for row in seat.poll() + seat.poll()] == [b"new 3"]


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize(("call", "is_open"), [("transact", 0), ("produce", 1), ("offsets", 1)])
def test_a_transaction_that_times_out_before_its_commit_did_not_happen(
    cluster: Cluster, call: str, is_open: int
) -> None:
    seat = cluster.seat(cluster.client(**{call: Fault.TIMEOUT_BEFORE}))
    with pytest.raises(LogUnavailable):
        seat.member.transact(out(b"1"), {IN: 1})
    seat.member.close()
    assert cluster.broker.open_transactions() == is_open  # whom it could not reach it could not tell either
    again = cluster.seat()
    assert cluster.log.committed("g", [IN]) == {IN: None}
    again.member.transact(out(b"2"), {IN: 1})
    assert cluster.values() == [b"2"]


@pytest.mark.parametrize(
    ("call", "fault", "happens"),
    [
        ("commit", Fault.TIMEOUT_BEFORE, False),
        ("commit", Fault.TIMEOUT_AFTER, True),
        ("transact", Fault.TIMEOUT_AFTER, True),
    ],
)
@pytest.mark.parametrize("delivery", list(Delivery))
def test_nobody_knows_of_a_commit_that_was_not_answered(
    cluster: Cluster, call: str, fault: Fault, happens: bool, delivery: Delivery
) -> None:
    seat = cluster.seat(cluster.client(**{call: fault}), delivery=delivery)
    with pytest.raises(CommitUnknown):
        seat.member.transact(out(b"1"), {IN: 1})
    seat.member.close()
    is_open = delivery is Delivery.EXACTLY_ONCE and not happens
    assert cluster.broker.open_transactions() == is_open
    cluster.seat(delivery=delivery)
    assert cluster.log.committed("g", [IN]) == {IN: 1 if happens else None}
    assert cluster.values() == ([b"1"] if happens or delivery is Delivery.AT_LEAST_ONCE else [])


@pytest.mark.parametrize(
    ("call", "fault", "written", "is_open"),
    [
        ("transact", Fault.CRASH_BEFORE, [], 0),
        ("transact", Fault.CRASH_MIDDLE, [], 1),
        ("produce", Fault.CRASH_MIDDLE, [], 1),
        ("offsets", Fault.CRASH_AFTER, [], 1),
        ("commit", Fault.CRASH_BEFORE, [], 1),
        ("commit", Fault.CRASH_AFTER, [b"1", b"2"], 0),
        ("transact", Fault.CRASH_AFTER, [b"1", b"2"], 0),
    ],
)
def test_a_crash_leaves_what_was_done(
    cluster: Cluster, call: str, fault: Fault, written: list[bytes], is_open: int
) -> None:
    log = cluster.client(**{call: fault})
    seat = cluster.seat(log)
    with pytest.raises(Killed):
        seat.member.transact(out(b"1", b"2"), {IN: 1})
    for act in (seat.member.close, seat.poll, lambda: log.bounds([IN])):
        with pytest.raises(Killed):
            act()
    assert cluster.values() == written
    assert cluster.broker.open_transactions() == is_open
    assert cluster.log.members("g") == ["g-0"]
    assert seat.told == ["assigned"]


def test_half_of_what_is_produced_may_be_in_the_log(cluster: Cluster) -> None:
    seat = cluster.seat(cluster.client(produce=Fault.CRASH_MIDDLE))
    with pytest.raises(Killed):
        seat.member.transact(out(b"1", b"2"), {})
    assert cluster.log.bounds([OUT])[OUT] == (0, 1)
    client = cluster.client(append=Fault.CRASH_MIDDLE)
    with pytest.raises(Killed):
        client.append(out(b"3", b"4"))
    cluster.clock.pass_ms(TRANSACTION_MS + 1)
    cluster.broker.expire()
    assert cluster.values() == [b"3"]


def test_an_append_that_is_not_answered_may_have_happened(cluster: Cluster) -> None:
    client = cluster.client(append=Fault.TIMEOUT_AFTER)
    with pytest.raises(LogUnavailable):
        client.append(out(b"1"))
    client.append(out(b"1"))
    assert cluster.values() == [b"1", b"1"]


def test_a_slow_call_lets_time_pass_first(cluster: Cluster) -> None:
    began_ms = cluster.clock.now_ms
    cluster.client(bounds=Fault.SLOW).bounds([IN])
    assert cluster.clock.now_ms == began_ms + 20_000
    seat = cluster.seat(cluster.client(commit=Fault.SLOW))
    with pytest.raises(Fenced):
        seat.member.transact(out(b"late"), {IN: 1})
    assert cluster.values() == []


def test_a_poll_that_gives_nothing_says_nothing(cluster: Cluster) -> None:
    left = [Fault.NOTHING]
    log = MemoryLog(cluster.broker)
    seat = cluster.seat(log)
    seat.poll()
    seat.member.standing()
    cluster.log.append([Append(topic="in", records=[(b"k", b"v")], partition=0)])
    log.faults = lambda call: left.pop() if left and call == "poll" else None
    assert seat.poll() == []
    assert seat.member.standing() == {}
    assert len(seat.poll()) == 1
    assert IN in seat.member.standing()


def test_a_poll_that_is_not_answered_loses_no_record(cluster: Cluster) -> None:
    cluster.log.append([Append(topic="in", records=[(b"k", b"v")], partition=0)])
    log = MemoryLog(cluster.broker)
    seat = cluster.seat(log, polls=1)
    for fault in (Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER):
        left = [fault]
        log.faults = lambda call, left=left: left.pop() if left and call == "poll" else None
        with pytest.raises(LogUnavailable):
            seat.poll()
    assert [row.value for row in seat.poll()] == [b"v"]


@pytest.mark.parametrize("fault", [Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER])
def test_one_that_cannot_say_that_it_leaves_is_missed_later(cluster: Cluster, fault: Fault) -> None:
    seat = cluster.seat(cluster.client(leave=fault))
    with pytest.raises(LogUnavailable):
        seat.member.leave()
    assert seat.told[-1] == "revoked"
    assert cluster.log.members("g") == (["g-0"] if fault is Fault.TIMEOUT_BEFORE else [])
    cluster.clock.pass_ms(SESSION_MS + 1)
    assert cluster.log.members("g") == []


def test_a_join_that_is_not_answered_fences_all_the_same(cluster: Cluster) -> None:
    seat = cluster.seat()
    with pytest.raises(LogUnavailable):
        cluster.seat(cluster.client(join=Fault.TIMEOUT_AFTER))
    with pytest.raises(Fenced):
        seat.member.transact(out(b"1"), {IN: 1})


def test_every_call_may_be_struck(cluster: Cluster) -> None:
    calls: Sequence[tuple[str, Callable[[MemoryLog], object]]] = [
        ("topics", lambda log: log.topics(["in"])),
        ("create", lambda log: log.create([])),
        ("delete", lambda log: log.delete([])),
        ("bounds", lambda log: log.bounds([IN])),
        ("offset_at", lambda log: log.offset_at(IN, 0)),
        ("committed", lambda log: log.committed("g", [IN])),
        ("set_committed", lambda log: log.set_committed("h", {IN: 0})),
        ("members", lambda log: log.members("g")),
        ("append", lambda log: log.append([])),
        ("read", lambda log: log.reader({IN: 0}).poll(1, 0.0)),
        ("join", lambda log: Seat(log, "g", ["in"])),
        ("poll", lambda log: Seat(log, "g", ["in"]).poll()),
        ("close", lambda log: Seat(log, "g", ["in"]).member.close()),
    ]
    for name, act in calls:
        for fault in (Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER):
            with pytest.raises(LogUnavailable):
                act(cluster.client(**{name: fault}))
        for fault in (Fault.CRASH_BEFORE, Fault.CRASH_MIDDLE, Fault.CRASH_AFTER):
            with pytest.raises(Killed):
                act(cluster.client(**{name: fault}))


def test_a_member_is_a_member(cluster: Cluster) -> None:
    member: Member = cluster.seat().member
    with pytest.raises(ValueError, match="does not belong"):
        member.seek(OUT, 0)
    with pytest.raises(ValueError, match="not read here"):
        member.position(OUT)
    with pytest.raises(Fenced):
        member.transact([], {OUT: 1})
