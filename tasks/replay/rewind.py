"""A task set back to a moment of event time: its state, its place in the inputs and its journal, as one.

The state of the moment is folded from the source (tasks/replay/point_in_time.py) into a store next to the live one.
What the changelog has otherwise goes out in transactions of the service's own group, with the journal's entries and the
offsets in the last one. A store that follows the changelog is then where the rewind is, wherever it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from samovar.changelog.formats.journal import EntryKind, JournalEntry, pack_entry, to_ranges
from samovar.changelog.formats.record import POSITION, Position, pack_position
from samovar.changelog.log import Append, Log, TopicPartition
from samovar.state.store import Change, TaskStore
from samovar.tasks.model.plan import OutputTopics, Plan
from samovar.tasks.replay.point_in_time import PointInTimeRebuild
from samovar.tasks.replay.rebuild import ReplayEnd
from samovar.tasks.replay.repair import ChangelogRepair


@dataclass(frozen=True)
class RewoundState:
    """A state that was folded up to the moment, and the journal entries that say so."""

    position: Position
    entries: Sequence[JournalEntry]
    events: int


def fold_back(
    log: Log,
    plan: Plan,
    partition: int,
    store: TaskStore,
    until: ReplayEnd,
    moment_ms: int,
    facts: Mapping[str, Any],
    on_progress: Callable[[int], None] = lambda _: None,
    start: Position | None = None,
) -> RewoundState:
    """Fold input and journal into a store up to a moment. With `start`, the store holds the state of that position."""
    with closing(PointInTimeRebuild(log, plan, partition, store, until, on_progress, start)) as replay:
        replay.run_to(until.inputs, moment_ms)
    unread = {entry.number for entry in replay.entries} - set(replay.applied)
    kept = replay.standing - unread
    void = to_ranges(entry.number for entry in replay.journal if entry.number not in kept)
    # That it was set back, and how event time came up to the moment there.
    last, nexts = replay.journal[-1].number, replay.processor.source.nexts()
    all_facts = {"to": moment_ms, "void": void, "until": dict(until.inputs), **facts}
    told = [JournalEntry(kind=EntryKind.REWIND, number=last + 1, inputs=nexts, watermark=None, facts=all_facts)]
    told += [replace(entry, number=last + 2 + place, inputs=nexts) for place, entry in enumerate(replay.released)]
    position = replace(replay.processor.position(), journal=told[-1].number)
    store.put(POSITION, pack_position(position))
    return RewoundState(position, told, replay.events)


def write_back(
    repair: ChangelogRepair,
    topics: OutputTopics,
    partition: int,
    changes: Sequence[Change],
    was: Position | None,
    rewound: RewoundState,
    offsets: tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]],
) -> int:
    """Let the changelog, the journal and the offsets follow; the offset after the last record of the changelog.

    `offsets` are the group's, before and after. Where one transaction would be too large, the first marks the position
    that `was` and the offsets stay as they were: a service that is started then is refused, and the rewind can be run
    again with all that only the position knows.
    """
    before, after = offsets
    at = TopicPartition(topics.changelog, partition)
    rows = [change for change in changes if change[0] != POSITION]
    parts = repair.parts_of(rows)
    if len(parts) > 1:
        half = None if was is None else pack_position(replace(was, rewinding=True))
        parts[0] = [(POSITION, half), *parts[0]]
    for part in parts[:-1]:
        repair.write([Append(topic=at.topic, records=part, partition=partition)], before)
    ended = [*parts[-1], (POSITION, pack_position(rewound.position))]
    told = [(str(partition).encode(), pack_entry(entry)) for entry in rewound.entries]
    last = repair.write(
        [
            Append(topic=at.topic, records=ended, partition=partition),
            Append(topic=topics.journal, records=told, partition=partition),
        ],
        after,
    )
    return last[at] + 1
