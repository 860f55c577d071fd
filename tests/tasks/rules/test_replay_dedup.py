"""What a rewound task must not write twice, by itself; whole services are in tests/service/recovery/test_rewind.py."""

from __future__ import annotations

import pytest

from samovar.changelog.formats.record import InputPosition, Position
from samovar.state.memory import MemoryStore
from samovar.tasks.model.results import Counts
from samovar.tasks.rules.alert_filter import Alarm
from samovar.tasks.rules.replay_dedup import ReplayDedupFilter, dedup_rows, rows_between, skip_rows


def skips(topics: tuple[str, ...] = ()) -> ReplayDedupFilter:
    store = MemoryStore()
    store.write(skip_rows({b"x"}, {"a": 10}, 500, topics))
    return ReplayDedupFilter.of(store)


def test_what_goes_to_a_topic_of_later_stages_is_there_up_to_where_the_task_had_been() -> None:
    found = skips(("r",))
    assert [found.written_up_to(*each) for each in (("a", "r"), ("a", "other"), ("b", "r"))] == [10, 0, 0]
    assert skips().written_up_to("a", "r") == 0


def test_an_alert_is_skipped_once() -> None:
    found, alert = skips(), Alarm("x", (b"k", b""))
    assert found.left([alert, alert], Counts()) == [alert]


def test_a_store_that_takes_the_place_of_another_gets_its_rows() -> None:
    store = MemoryStore()
    store.write([*skip_rows({b"x"}, {"a": 10}, 500), (b"r", b"other"), (b"t", b"other")])
    assert [row for row, _ in dedup_rows(store)] == [b"s", b"sx"]


def rows(found: ReplayDedupFilter, next_: int, watermark: int | None) -> list[bytes]:
    """What is taken away at a position."""
    position = Position(
        watermark=watermark,
        inputs={"a": InputPosition(topic="t", topic_id="", next=next_, replay_from=next_)},
        streams=("a",),
        rules={},
    )
    changes = found.changes(position)
    assert all(value is None for _, value in changes)
    return [row for row, _ in changes]


@pytest.mark.parametrize(
    ("next_", "watermark", "is_past"),
    [(10, 500, True), (9, 500, False), (10, 499, False), (10, None, False), (99, 999, True)],
)
def test_all_of_it_goes_once_the_task_is_past_where_it_had_been(
    next_: int, watermark: int | None, is_past: bool
) -> None:
    found = skips()
    assert not found.is_idle
    assert rows(found, next_, watermark) == ([b"s", b"sx"] if is_past else [])
    assert found.is_idle == is_past
    assert (found.ids, dict(found.inputs), found.watermark) == (
        (set(), {}, None) if is_past else ({b"x"}, {"a": 10}, 500)
    )
    assert rows(found, next_, watermark) == [], "once"


def test_an_alert_that_was_found_again_goes_with_the_next_commit() -> None:
    found, counts = skips(), Counts()
    left = found.left([Alarm("x", (b"k", b"")), Alarm("y", (b"k", b""))], counts)
    assert ([each.id for each in left], counts.skipped) == (["y"], 1)
    assert rows(found, 3, 3) == [b"sx"]
    assert rows(found, 3, 3) == []
    assert not found.is_idle, "it is not past it yet"


def test_without_a_time_only_offsets_count() -> None:
    store = MemoryStore()
    store.write(skip_rows({b"y", b"x"}, {"a": 10, "gone": 4}, None))
    assert rows(ReplayDedupFilter.of(store), 10, None) == [b"s", b"sx", b"sy"]


def test_nothing_to_skip_has_no_rows() -> None:
    assert skip_rows(set(), {"a": 10}, 500) == []
    assert [row for row, _ in skip_rows(set(), {"a": 10}, 500, ("r",))] == [b"s"]
    idle = ReplayDedupFilter.of(MemoryStore())
    assert (idle.is_idle, idle.written_up_to("a", "r"), rows(idle, 10, 500)) == (True, 0, [])


def test_a_rewind_of_a_rewind_knows_how_far_the_first_had_been() -> None:
    found = skips()
    assert found.furthest({"a": 7, "b": 3}, 400) == ({"a": 10, "b": 3}, 500)
    assert found.furthest({"a": 12}, 600) == ({"a": 12}, 600)
    assert ReplayDedupFilter.of(MemoryStore()).furthest({"a": 1}, None) == ({"a": 1}, None)


def test_what_makes_the_rows_of_an_image_those_that_are_wanted() -> None:
    there = MemoryStore()
    there.write([(b"s", b"old"), (b"sx", b""), (b"sz", b""), (b"t", b"other")])
    wanted = [(b"s", b"new"), (b"sx", b""), (b"sy", b"")]
    assert rows_between(wanted, there) == [(b"s", b"new"), (b"sy", b""), (b"sz", None)]
