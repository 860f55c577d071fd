"""What a changelog and the group's offsets need to agree with a rebuilt store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

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
from samovar.changelog.log import Append, TopicPartition, TopicSpec
from samovar.state.memory import MemoryStore
from samovar.state.store import Change
from samovar.tasks.model.clock import SetClock
from samovar.tasks.model.plan import OutputTopics
from samovar.tasks.replay.repair import (
    ChangelogRepair,
    RepairPlan,
    changes_between,
    is_same_position,
    repaired_offsets,
    split_changes,
)
from samovar.tasks.replay.rewind import RewoundState, write_back
from tests.simulation.broker import Broker
from tests.simulation.memory_log import MemoryLog

ROWS = [store_prefix(key, "rule") + b"\0" for key in (b"a", b"b", b"c")]
PLACE = Position(
    5, {"use": InputPosition("t", "id", 10, 5, 3)}, ("use",), {"r": "1"}, 2, ruleset_change=1, changelog="c1"
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
    read_more = replace(PLACE, inputs={"use": InputPosition("t", "id", 10, 1, 2)})
    assert is_same_position(PLACE, read_more)
    assert is_same_position(PLACE, replace(PLACE, changelog="", service="s"))
    assert is_same_position(replace(PLACE, changelog=""), PLACE)
    assert is_same_position(None, None)
    assert not is_same_position(PLACE, None)
    assert not is_same_position(None, PLACE)
    for other in (
        replace(PLACE, inputs={"use": InputPosition("t", "id", 11, 5, 3)}),
        replace(PLACE, inputs={"use": InputPosition("t", "id2", 10, 5, 3)}),
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
    place = replace(PLACE, inputs={**PLACE.inputs, "own": InputPosition("own", "id", 4, 4)})
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
