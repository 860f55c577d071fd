"""The bytes of events that wait for a user's task: which are kept, for how long, and what they take."""

from __future__ import annotations

from samovar.changelog.formats.record import Position
from samovar.tasks.input.source import known_time
from samovar.tasks.input.user_source import UserEvent, UserStreamSource
from tests.tasks.input.test_source import MARKS, T0, A, B, block, value


def source_of() -> UserStreamSource:
    return UserStreamSource((A, B), ("k", "n"), 3, MARKS)


def given(source: UserStreamSource, topic: str, *values: bytes) -> list[UserEvent]:
    start = source.by_topic[topic].next
    return list(source.events(source.feed(block(topic, start, values)).ordered.released))


def test_events_are_whole_and_forgotten_once_they_are_given_out() -> None:
    source = source_of()
    early, later = value(100, "x", n=1, more=[1]), value(500, "y")
    base = source.waiting_bytes()
    assert given(source, "ta", early, b"{", later, value(0, "late")) == []
    assert sorted(source.kept) == [(0, 3, 0), (0, 3, 2)], "neither what is no event nor what is late"
    assert source._kept_bytes == len(early) + len(later) + 2 * len(b"x")
    assert source.waiting_bytes() > base + source._kept_bytes
    (found,) = given(source, "tb", value(300, "z")) or given(source, "tb", value(301, "z"))[:1]
    event = found.event
    assert (event.stream, event.type, event.key, event.time, event.topic) == ("a", "a", "x", T0 + 100, "ta")
    assert (event.partition, event.offset, event["more"], found.record) == (3, 0, [1], (b"x", early))
    assert (0, 3, 0) not in source.kept


def test_after_a_crash_only_what_still_waits_is_kept_again() -> None:
    source = source_of()
    values = [value(100, "x"), value(500, "y"), value(450, "z")]
    given(source, "ta", *values)
    given(source, "tb", value(300, "w"), value(310, "w"))
    position = Position(
        watermark=known_time(source.watermark), inputs=source.inputs(), streams=source.streams, rules={}, journal=0
    )
    again = source_of()
    again.resume(position)
    for stream, topic, all_ in (("a", "ta", values), ("b", "tb", [value(300, "w"), value(310, "w")])):
        stored = position.inputs[stream]
        again.recover(stream, [block(topic, stored.replay_from, all_[stored.replay_from :])], stored)
    assert again.kept == source.kept
    assert (again._kept_bytes, again.waiting_bytes()) == (source._kept_bytes, source.waiting_bytes())
    assert sorted(again.kept) == [(0, 3, 1), (0, 3, 2), (1, 3, 1)]
