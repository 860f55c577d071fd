"""What a rewound task must not write twice, by itself; whole services are in tests/service/recovery/test_rewind.py."""

from __future__ import annotations

from samovar.state.memory import MemoryStore
from samovar.tasks.model.results import Counts
from samovar.tasks.rules.alert_filter import Alarm
from samovar.tasks.rules.replay_dedup import ReplayDedupFilter, dedup_rows, skip_rows


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
