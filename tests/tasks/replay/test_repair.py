"""What a changelog and the group's offsets need to agree with a rebuilt store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from samovar.changelog.formats.journal import JournalEntry, pack_entry
from samovar.changelog.formats.record import (
    BOOK,
    CHECKPOINT,
    POSITION,
    STORM,
    USER,
    InputPosition,
    Position,
    pack_position,
    store_prefix,
)
from samovar.changelog.log import Append, Delivery, TopicPartition, TopicSpec
from samovar.common.errors import Refused
from samovar.service.offline.trial import plan_of_rules
from samovar.state.memory import MemoryStore
from samovar.state.store import Change
from samovar.tasks.model.clock import SetClock
from samovar.tasks.model.plan import InputSpec, OutputTopics, Plan
from samovar.tasks.replay.rebuild import ReplayEnd
from samovar.tasks.replay.repair import (
    ChangelogRepair,
    RepairPlan,
    changes_between,
    is_same_position,
    logged_rows,
    plan_of_position,
    repaired_offsets,
    source_until,
    split_changes,
)
from samovar.tasks.replay.rewind import RewoundState, write_back
from samovar.tasks.rules.migration import rules_facts
from tests.simulation.broker import Broker
from tests.simulation.faults import Fault
from tests.simulation.memory_log import MemoryLog

RULE = """
rule: twice
match: |
  sequence by k with maxspan=10s
    [use where true] as one
    [use where true] as two
"""
ROWS = [store_prefix(key, "rule") + b"\0" for key in (b"a", b"b", b"c")]
PLACE = Position(
    watermark=5,
    inputs={"use": InputPosition(topic="t", topic_id="id", next=10, replay_from=5, max_event_time=3)},
    streams=("use",),
    rules={"r": "1"},
    journal=2,
    ruleset_change=1,
    changelog="c1",
)


def store_of(*pairs: tuple[bytes, bytes]) -> MemoryStore:
    store = MemoryStore()
    store.write(pairs)
    return store


def test_what_is_missing_other_or_too_much_and_the_position_last() -> None:
    a, b, c = ROWS
    wanted = store_of((POSITION, b"new"), (a, b"1"), (b, b"2"), (USER, b"1"), (STORM, b"1"), (BOOK, b"1"))
    there = store_of((POSITION, b"old"), (a, b"1"), (b, b"1"), (c, b"1"), (CHECKPOINT, b"local"))
    assert changes_between(wanted, there) == [
        (b, b"2"), (USER, b"1"), (STORM, b"1"), (BOOK, b"1"), (c, None), (POSITION, b"new"),
    ]  # fmt: skip
    assert changes_between(wanted, wanted) == []
    assert changes_between(store_of(), store_of((POSITION, b"old"), (a, b"1"))) == [(a, None), (POSITION, None)]


@pytest.mark.parametrize("same_place", [True, False])
def test_rows_of_equal_states_are_taken_from_the_changelog(same_place: bool) -> None:
    a, b, c = ROWS
    image = store_of((a, b"live"), (POSITION, b"live"))
    changes = [(a, b"1"), (b, b"2"), (c, None), (USER, b"3"), (POSITION, b"4")]
    repaired, adopted = split_changes(changes, image, {(b"b", "rule")}, same_place)
    own = [(POSITION, b"live")] if same_place else []
    assert adopted == [(a, b"live"), (c, None), *own]
    assert repaired == [(b, b"2"), (USER, b"3"), *([] if same_place else [(POSITION, b"4")])]


def test_two_positions_are_alike_but_for_how_far_back_is_read_again() -> None:
    read_more = replace(
        PLACE, inputs={"use": InputPosition(topic="t", topic_id="id", next=10, replay_from=1, max_event_time=2)}
    )
    assert is_same_position(PLACE, read_more)
    assert is_same_position(PLACE, replace(PLACE, changelog="", service="s"))
    assert is_same_position(replace(PLACE, changelog=""), PLACE)
    assert is_same_position(None, None)
    assert not is_same_position(PLACE, None)
    assert not is_same_position(None, PLACE)
    for other in (
        replace(
            PLACE, inputs={"use": InputPosition(topic="t", topic_id="id", next=11, replay_from=5, max_event_time=3)}
        ),
        replace(
            PLACE, inputs={"use": InputPosition(topic="t", topic_id="id2", next=10, replay_from=5, max_event_time=3)}
        ),
        replace(PLACE, watermark=6),
        replace(PLACE, rules={"r": "2"}),
        replace(PLACE, journal=3),
        replace(PLACE, ruleset_change=2),
        replace(PLACE, rewinding=True),
        replace(PLACE, changelog="c2"),
    ):
        assert not is_same_position(PLACE, other), other


@pytest.mark.parametrize(("committed", "offset"), [(7, 7), (12, 10), (10, 10), (None, None)])
def test_the_offset_of_a_shared_input_is_never_raised(committed: int | None, offset: int | None) -> None:
    log, at, own = MemoryLog(Broker(SetClock())), TopicPartition("t", 0), TopicPartition("own", 0)
    log.create([TopicSpec("t", 1), TopicSpec("own", 1)])
    if committed is not None:
        log.set_committed("g", {at: committed, own: 3})
    place = replace(
        PLACE, inputs={**PLACE.inputs, "own": InputPosition(topic="own", topic_id="id", next=4, replay_from=4)}
    )
    found = repaired_offsets(log, "g", place, 0, {"t"})
    assert found == ({own: 4} if offset is None else {own: 4, at: offset})


# ---------------------------------------------------------------- more than one transaction


class Writes:
    """A member of a group that keeps what it is given to write."""

    def __init__(self) -> None:
        self.written: list[tuple[list[Change], Mapping[TopicPartition, int]]] = []

    def transact(
        self, appends: Sequence[Append], offsets: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        self.written.append(([(key or b"", value) for key, value in appends[0].records], offsets))
        return {TopicPartition("c", 0): 9}


def repair() -> tuple[ChangelogRepair, Writes]:
    """One that writes two rows in a transaction."""
    found, member = ChangelogRepair.__new__(ChangelogRepair), Writes()
    found._member, found._at_once = member, 2  # type: ignore[assignment]
    return found, member


CHANGES: list[Change] = [(row, b"1") for row in ROWS]


def test_half_a_changelog_has_no_position_while_it_is_repaired() -> None:
    found, member = repair()
    offsets = {TopicPartition("t", 0): 3}
    assert found.repair(RepairPlan(TopicPartition("c", 0), [*CHANGES, (POSITION, b"old")], b"new", offsets)) == 10
    a, b, c = CHANGES
    assert member.written == [([(POSITION, None), a, b], offsets), ([c, (POSITION, b"new")], offsets)]
    found, member = repair()
    found.repair(RepairPlan(TopicPartition("c", 0), CHANGES[:2], b"new", offsets))
    assert member.written == [([a, b, (POSITION, b"new")], offsets)]


def test_half_a_rewind_says_so_and_leaves_the_offsets_to_the_last_transaction() -> None:
    before, after = {TopicPartition("t", 0): 10}, {TopicPartition("t", 0): 3}
    rewound = RewoundState(replace(PLACE, watermark=1), [], 0)
    topics = OutputTopics(alerts="alerts", late="late", dead_letters="dead", changelog="c", journal="journal")
    a, b, c = CHANGES
    last = (POSITION, pack_position(rewound.position))
    half = (POSITION, pack_position(replace(PLACE, rewinding=True)))
    for was, mark in ((PLACE, half), (None, (POSITION, None))):
        found, member = repair()
        assert write_back(found, topics, 0, CHANGES, was, rewound, (before, after)) == 10
        assert member.written == [([mark, a, b], before), ([c, last], after)]
    found, member = repair()
    write_back(found, topics, 0, CHANGES[:2], PLACE, rewound, (before, after))
    assert member.written == [([a, b, last], after)]


# ---------------------------------------------------------------- up to where the input was processed

USE = InputSpec(stream="use", topic="t", key="k")
OWN = InputSpec(stream="own", topic="own", key="k")
T, OWN_0 = TopicPartition("t", 0), TopicPartition("own", 0)


def log_with(**committed: int) -> MemoryLog:
    log = MemoryLog(Broker(SetClock()))
    log.create([TopicSpec(name, 1) for name in ("t", "own", "journal", "c")])
    if committed:
        log.set_committed("g", {TopicPartition(topic, 0): offset for topic, offset in committed.items()})
    return log


def plan_with(*inputs: InputSpec) -> Plan:
    plan = plan_of_rules(RULE, {"use": {"key": "k"}}, {}, {})
    topics = OutputTopics(alerts="alerts", late="late", dead_letters="dead", changelog="c", journal="journal")
    return replace(plan, inputs=inputs or (USE, OWN), topics=topics)


def place(log: MemoryLog, journal: int = 4, **nexts: int) -> Position:
    topics = {"use": "t", "own": "own"}
    inputs = {
        stream: InputPosition(
            topic=topics[stream], topic_id=log.topics([topics[stream]])[topics[stream]].id, next=at, replay_from=at
        )
        for stream, at in nexts.items()
    }
    return Position(watermark=None, inputs=inputs, streams=tuple(inputs), rules={}, journal=journal)


def until(
    log: MemoryLog, position: Position | None, delivery: Delivery = Delivery.EXACTLY_ONCE, shared: tuple[str, ...] = ()
) -> ReplayEnd:
    return source_until(log, plan_with(), 0, "g", position, delivery, shared)


def test_the_position_says_up_to_where_and_with_how_many_entries() -> None:
    log = log_with(t=10, own=3)
    assert until(log, place(log, use=10, own=3)) == ReplayEnd({"use": 10, "own": 3}, 4)
    assert until(log_with(), place(log_with(), use=10, own=3)).inputs == {"use": 10, "own": 3}


def test_where_the_changelog_is_behind_or_lost_the_groups_offsets_say_it() -> None:
    log = log_with(t=12, own=3)
    assert until(log, place(log, use=10, own=3)) == ReplayEnd({"use": 12, "own": 3}, None)
    assert until(log, None) == ReplayEnd({"use": 12, "own": 3}, None)
    assert until(log, place(log, use=12)) == ReplayEnd({"use": 12, "own": 3}, None)
    only = log_with(t=12)
    assert until(only, None) == ReplayEnd({"use": 12}, None)
    assert until(only, place(only, use=12)) == ReplayEnd({"use": 12}, 4)


def test_of_a_shared_input_the_position_counts_and_not_the_groups_offset() -> None:
    log = log_with(t=12, own=3)
    assert until(log, place(log, use=14, own=3), shared=("t",)) == ReplayEnd({"use": 14, "own": 3}, 4)
    assert until(log, None, shared=("t",)) == ReplayEnd({"use": 12, "own": 3}, None)


def test_offsets_behind_the_state_are_refused_unless_they_may_be() -> None:
    log = log_with(t=9, own=3)
    with pytest.raises(Refused, check=lambda error: error.code == "offsets-differ"):
        until(log, place(log, use=10, own=3))
    assert until(log, place(log, use=10, own=3), Delivery.AT_LEAST_ONCE) == ReplayEnd({"use": 10, "own": 3}, 4)


def test_an_input_that_is_gone_or_another_is_refused() -> None:
    log = log_with(t=9, own=3)
    position = place(log, use=9, own=3)
    log.delete(["t"])
    with pytest.raises(Refused, check=lambda error: error.code == "topic-missing"):
        until(log, position)
    log.create([TopicSpec("t", 1)])
    with pytest.raises(Refused, check=lambda error: error.code == "input-replaced"):
        until(log, position)


def test_what_was_never_processed_is_refused() -> None:
    with pytest.raises(Refused, check=lambda error: error.code == "nothing-processed"):
        until(log_with(), None)


def test_the_rules_of_a_state_are_those_that_the_journal_names() -> None:
    log, plan = log_with(), plan_with()
    assert plan_of_position(log, plan, 0, None) is plan
    assert plan_of_position(log, plan, 0, Position(watermark=None, inputs={}, streams=(), rules=plan.versions)) is plan
    older = plan_of_rules(RULE.replace("10s", "20s"), {"use": {"key": "k"}}, {}, {})
    for number, each in enumerate((older, plan), 1):
        inputs = {"use": 0, "own": 0}
        entry = JournalEntry(kind="rules", number=number, inputs=inputs, watermark=None, facts=rules_facts(each))
        log.append([Append(topic="journal", records=[(b"0", pack_entry(entry))], partition=0)])
    stored = Position(watermark=None, inputs={}, streams=(), rules=older.versions, journal=1)
    assert plan_of_position(log, plan, 0, stored).versions == older.versions
    assert plan_of_position(log, plan, 0, replace(stored, journal=2)).versions == plan.versions
    assert plan_of_position(log, plan, 0, replace(stored, journal=0)) is plan


# ---------------------------------------------------------------- a member for the time of a repair


def test_a_repair_owns_the_partitions_and_leaves_the_group_after_it() -> None:
    log = log_with()
    found = ChangelogRepair(log, [plan_with()], "g", Delivery.EXACTLY_ONCE, [0])
    assert (found.owned, log.members("g")) == ({0}, ["g-0"])
    at = TopicPartition("c", 0)
    assert found.repair(RepairPlan(at, CHANGES, b"new", {T: 3, OWN_0: 1})) == 4
    assert log.committed("g", [T, OWN_0]) == {T: 3, OWN_0: 1}
    with pytest.raises(Refused, check=lambda error: error.code == "group-active"):
        ChangelogRepair(log, [plan_with()], "g", Delivery.EXACTLY_ONCE, [0])
    found._on_revoked([T])
    assert found.owned == set()
    found._on_assigned([T, TopicPartition("t", 2)])
    assert found.owned == {0, 2}
    found.close()
    assert log.members("g") == []


def test_a_partition_that_does_not_come_free_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samovar.tasks.replay.repair.JOIN_S", 0.0)
    log = log_with()
    with pytest.raises(Refused, check=lambda error: error.code == "group-active"):
        ChangelogRepair(log, [plan_with()], "g", Delivery.EXACTLY_ONCE, [0, 7])
    assert log.members("g") == []


def test_a_repair_that_the_log_fails_says_so() -> None:
    log = log_with()
    found = ChangelogRepair(log, [plan_with()], "g", Delivery.EXACTLY_ONCE, [0])
    log.faults = lambda call: Fault.TIMEOUT_BEFORE if call == "transact" else None
    with pytest.raises(Refused, check=lambda error: error.code == "repair-failed"):
        found.write([Append(topic="c", records=CHANGES, partition=0)], {T: 3})


@pytest.mark.parametrize(("count", "parts"), [(0, [0]), (1, [1]), (2, [2]), (3, [2, 1]), (4, [2, 2])])
def test_rows_go_out_in_parts(count: int, parts: list[int]) -> None:
    found, _ = repair()
    rows = [(b"r%d" % number, b"") for number in range(count)]
    cut = found.parts_of(rows)
    assert ([len(part) for part in cut], [row for part in cut for row in part]) == (parts, rows)


def test_rows_that_a_changelog_has_come_in_order() -> None:
    keys = [POSITION, *ROWS, USER + b"1", STORM, BOOK]
    store = store_of(
        *((key, b"1") for key in reversed(keys)), (CHECKPOINT, b"local"), (b"t", b"local"), (b"x", b"local")
    )
    assert [key for key, _ in logged_rows(store)] == keys
