"""What a changelog and the group's offsets need to agree with a rebuilt store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from samovar.changelog.log import TopicPartition, TopicSpec
from samovar.changelog.record import BOOK, FOLLOWING, POSITION, STORM, USER, Input, Position, store_prefix
from samovar.state.memory import MemoryStore
from samovar.tasks.clock import SetClock
from samovar.tasks.restoring import changes_between, mended_offsets, shared_out, stands_alike
from tests.simulation.broker import Broker
from tests.simulation.memory_log import MemoryLog

ROWS = [store_prefix(key, "rule") + b"\0" for key in (b"a", b"b", b"c")]
PLACE = Position(5, {"use": Input("t", "id", 10, 5, 3)}, ("use",), {"r": "1"}, 2, book=1, changelog="c1")


def store_of(*pairs: tuple[bytes, bytes]) -> MemoryStore:
    store = MemoryStore()
    store.write(pairs)
    return store


def test_what_is_missing_other_or_too_much_and_the_position_last() -> None:
    a, b, c = ROWS
    wanted = store_of((POSITION, b"new"), (a, b"1"), (b, b"2"), (USER, b"1"), (STORM, b"1"), (BOOK, b"1"))
    there = store_of((POSITION, b"old"), (a, b"1"), (b, b"1"), (c, b"1"), (FOLLOWING, b"local"))
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
    mended, adopted = shared_out(changes, image, {(b"b", "rule")}, same_place)
    own = [(POSITION, b"live")] if same_place else []
    assert adopted == [(a, b"live"), (c, None), *own]
    assert mended == [(b, b"2"), (USER, b"3"), *([] if same_place else [(POSITION, b"4")])]


def test_two_positions_are_alike_but_for_how_far_back_is_read_again() -> None:
    read_more = replace(PLACE, inputs={"use": Input("t", "id", 10, 1, 2)})
    assert stands_alike(PLACE, read_more)
    assert stands_alike(PLACE, replace(PLACE, changelog="", service="s"))
    assert stands_alike(replace(PLACE, changelog=""), PLACE)
    assert stands_alike(None, None)
    assert not stands_alike(PLACE, None)
    assert not stands_alike(None, PLACE)
    for other in (
        replace(PLACE, inputs={"use": Input("t", "id", 11, 5, 3)}),
        replace(PLACE, inputs={"use": Input("t", "id2", 10, 5, 3)}),
        replace(PLACE, watermark=6),
        replace(PLACE, rules={"r": "2"}),
        replace(PLACE, journal=3),
        replace(PLACE, book=2),
        replace(PLACE, rewinding=True),
        replace(PLACE, changelog="c2"),
    ):
        assert not stands_alike(PLACE, other), other


@pytest.mark.parametrize(("committed", "offset"), [(7, 7), (12, 10), (10, 10), (None, None)])
def test_the_offset_of_a_shared_input_is_never_raised(committed: int | None, offset: int | None) -> None:
    log, at, own = MemoryLog(Broker(SetClock())), TopicPartition("t", 0), TopicPartition("own", 0)
    log.create([TopicSpec("t", 1), TopicSpec("own", 1)])
    if committed is not None:
        log.set_committed("g", {at: committed, own: 3})
    place = replace(PLACE, inputs={**PLACE.inputs, "own": Input("own", "id", 4, 4)})
    found = mended_offsets(log, "g", place, 0, {"t"})
    assert found == ({own: 4} if offset is None else {own: 4, at: offset})
