"""Following one key through a run: its events, and the notes that the kernel takes of what happens to it.

    story = follow(program, key, feed)     # feed: gives a Replay its events and uses up its matches

The notes are those of native/match/trace.cpp and native/match/sequence_trace.cpp, one JSON object each; why.py reads
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from samovar.native.kernel import Batch
from samovar.patterns.engine.compile import Program, RulePlan
from samovar.patterns.engine.matcher import States, encode_key, step
from samovar.patterns.engine.order import NO_TIME
from samovar.patterns.engine.replay import EventReplay
from samovar.patterns.syntax.tree import Scalar

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """An event of the key, with the fields that the rule reads."""

    offset: int
    time: int
    type: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class KeyTrace:
    """One rule, one key: its events in order, and the kernel's notes."""

    plan: RulePlan
    key: Mapping[str, Scalar]
    events: tuple[KeyEvent, ...]
    notes: tuple[Mapping[str, Any], ...]
    end_ms: int | None  # where event time ended; None where it went on for ever

    @property
    def matches(self) -> int:
        return sum(note["what"] == "match" and not note["suppressed"] for note in self.notes)


@dataclass(frozen=True)
class Names:
    """How events and times are called: by line and clock, or in a test by number and offset."""

    event: Callable[[int], str]
    time: Callable[[int], str]
    events: Callable[[Sequence[int]], str]


def numbered(noun: str, time: Callable[[int], str]) -> Names:
    """`line 3`, and `lines 3, 4` of several."""
    return Names(
        lambda offset: f"{noun} {offset + 1}",
        time,
        lambda offsets: f"{noun}{'s' * (len(offsets) != 1)} {listed(offset + 1 for offset in offsets)}",
    )


def iso_time(ms: int) -> str:
    """An instant as people write it.

    >>> iso_time(1_700_000_000_500)
    '2023-11-14T22:13:20.500Z'
    """
    return (EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def listed(numbers: Any, most: int = 8) -> str:
    """Numbers in a row, the middle of many left out."""
    texts = [str(number) for number in numbers]
    return ", ".join(texts if len(texts) <= most else [*texts[: most - 2], "...", texts[-1]])


BY_LINE = numbered("line", iso_time)


def follow(
    program: Program,
    key: Sequence[Scalar],
    feed: Callable[[EventReplay], Iterator[object]],
    until_ms: int = NO_TIME,
    **options: Any,
) -> KeyTrace:
    """Runs a program of one rule and takes notes of one key. `feed` gives the replay its events, and is used up.

    Without `flush`, event time ends at the largest time of an event, or at `until_ms` where that is later.
    """
    (plan,) = program.rules
    events: dict[int, KeyEvent] = {}
    notes: list[Mapping[str, Any]] = []

    def after_step(batch: Batch) -> None:
        new = replay.states.notes()
        notes.extend(new)
        offsets = {note["event"] for note in new if note["what"] == "event"}
        for seen in _rows_at(batch, offsets, program.fields):
            events[seen.offset] = seen

    replay = EventReplay(program, after_step=after_step, show_suppressed=True, **options)
    replay.until_ms = until_ms
    replay.states.trace(encode_key(key))
    for _ in feed(replay):
        pass
    end = None if replay.flush else replay.end_ms
    return KeyTrace(
        plan=plan, key=_name_key_parts(plan, key), events=tuple(events.values()), notes=tuple(notes), end_ms=end
    )


def follow_from(
    program: Program, key: Sequence[Scalar], before: Batch, batch: Batch, until_ms: int, **limits: Any
) -> KeyTrace:
    """The same over events that stand in order already, with notes of the second batch only: the first one is what the
    rule knew by then. Event time ends at `until_ms`.
    """
    (plan,) = program.rules
    states = States(program, show_suppressed=True, **limits)
    if len(before):
        step(states, before, int(batch.time[0] if len(batch) else before.time[-1]))
    states.trace(encode_key(key))
    step(states, batch, until_ms)
    notes = states.notes()
    offsets = {note["event"] for note in notes if note["what"] == "event"}
    events = _rows_at(batch, offsets, program.fields)
    return KeyTrace(
        plan=plan, key=_name_key_parts(plan, key), events=tuple(events), notes=tuple(notes), end_ms=until_ms
    )


def _name_key_parts(plan: RulePlan, key: Sequence[Scalar]) -> dict[str, Scalar]:
    return dict(zip([part.name for part in plan.rule.form.by], key, strict=True))


def _rows_at(batch: Batch, offsets: set[int], fields: Sequence[str]) -> list[KeyEvent]:
    if not offsets:
        return []
    rows = np.flatnonzero(np.isin(batch.offset, np.fromiter(offsets, np.int64, len(offsets))))
    few = Batch(batch.columns)
    few.append(batch, rows)
    columns = [few.values(column) for column in range(few.columns)]
    return [
        KeyEvent(offset, time, type, {name: column[row] for name, column in zip(fields, columns, strict=True)})
        for row, (offset, time, type) in enumerate(
            zip(few.offset.tolist(), few.time.tolist(), few.types(), strict=True)
        )
    ]


def key_candidates(names: Sequence[str], text: str) -> list[tuple[Scalar, ...]]:
    """The keys that `c1`, or `card=c1,user=7`, can mean: text first, then a number or a boolean.

    >>> key_candidates(["card"], "7")
    [('7',), (7,)]
    """
    found = re.fullmatch(",".join(f"{re.escape(name)}=(.*?)" for name in names), text, re.DOTALL)
    if not names or (found is None and len(names) > 1):
        return []
    keys: list[tuple[Scalar, ...]] = [()]
    for part in found.groups() if found else [text]:
        keys = [(*key, value) for key in keys for value in _readings(part)]
    return keys


def _readings(text: str) -> list[Scalar]:
    readings: list[Scalar] = [text]
    for number in (int, float):
        try:
            readings.append(number(text))
            break
        except ValueError:
            continue
    return readings + [text == "true"] * (text in ("true", "false"))
