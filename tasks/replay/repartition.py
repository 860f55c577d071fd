"""State for another number of partitions: where each row goes, and where the new tasks begin.

Rows of a key move with it. What a task holds of its own is merged: positions, the rules at work, counts of alerts. A
new task begins at the least event time of the old ones, and with the greatest maximum event time of each stream: an
event that it takes is behind no state, wherever that comes from (docs/decisions/repartition.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from samovar.changelog.formats.journal import JournalEntry, effective_entries
from samovar.changelog.formats.record import (
    BOOK,
    ROW,
    STORM,
    USER,
    EmittedWatermark,
    InputPosition,
    Position,
    RepartitionCut,
    SourcePartitionPosition,
    row_parts,
)
from samovar.changelog.formats.waiting import WaitingEvent, waiting_events
from samovar.changelog.log import Log, TopicPartition
from samovar.changelog.partitioner import key_text, partition_of
from samovar.common.errors import Refused
from samovar.patterns.engine.compile import compile_rules
from samovar.patterns.engine.matcher import decode_key
from samovar.patterns.syntax.tree import Rule
from samovar.state.store import Readable, TaskStore
from samovar.tasks.input.processor import Processor
from samovar.tasks.input.repartition_sink import ONE_KEY
from samovar.tasks.input.source import numbered
from samovar.tasks.input.startup_checks import read_between, recover_waiting
from samovar.tasks.model.plan import MAIN, Plan
from samovar.tasks.model.user_task import RepartitionableTask
from samovar.tasks.processors import make_processor
from samovar.tasks.replay.rebuild import journal_of
from samovar.tasks.replay.repair import plan_of_position
from samovar.tasks.rules.migration import plan_of_facts, stored_ruleset
from samovar.tasks.rules.replay_dedup import SKIP, SKIP_END
from samovar.tasks.user.timers import OWN, TIMER, WINDOW

EVERYWHERE = -1  # of a row that every new task has
OF_ONE_CHANGE = ("moves", "warm", "quarantine")  # facts of a journal entry that only tell how the rules came in
Placing = Callable[[Rule], int | None]  # which place of a rule's key says its partition; None: all have one key


@dataclass(frozen=True, kw_only=True)
class OldTask:
    """A task as the cut left it: its image, and the plan with the rules that made it. Nothing is to be read again of
    its inputs: what waits for event time is in `waiting`, by stream, with the key by which it is placed.
    """

    partition: int
    plan: Plan
    position: Position
    store: TaskStore
    facts: Mapping[str, Any]  # of the journal: what is at work
    waiting: Sequence[tuple[str, bytes, WaitingEvent]]


def old_task(log: Log, plan: Plan, partition: int, position: Position, store: TaskStore) -> OldTask:
    """Refuses a task that is on its way between two states: these cannot be put together with others'."""
    if next(iter(store.range(SKIP, SKIP_END)), None) is not None or position.rewinding:
        where = f"partition {partition}" + (f" of {plan.stage}" if plan.stage != MAIN else "")
        raise unsettled(f"{where} was set back, and has not come again to where it was")
    plan, facts = plan_at_work(log, plan, partition, position, store)
    processor = make_processor(plan, partition, store, numbered(position, plan.inputs), position)
    try:
        recover_waiting(log, processor.source, position, partition)
        waiting = list(_waiting(log, processor, position))
        inputs = {name: processor.source.settled(name) for name in position.inputs if name in processor.source.sources}
    finally:
        processor.close()
    kept = {name: fact for name, fact in facts.items() if name not in OF_ONE_CHANGE}
    return OldTask(
        partition=partition,
        plan=plan,
        position=replace(position, inputs=inputs),
        store=store,
        facts=kept,
        waiting=waiting,
    )


def plan_at_work(
    log: Log, plan: Plan, partition: int, position: Position, store: TaskStore
) -> tuple[Plan, Mapping[str, Any]]:
    """The plan with the rules that made a state, and what a journal says of them."""
    facts = stored_ruleset(store)
    if facts is not None:
        return plan_of_facts(plan, facts, position.inputs), facts
    entries = effective_entries(journal_of(log, plan, partition), position.journal)
    facts = [entry.facts for entry in entries if entry.kind == "rules"][-1]
    return plan_of_position(log, plan, partition, position), facts


def _waiting(log: Log, processor: Processor, position: Position) -> Iterator[tuple[str, bytes, WaitingEvent]]:
    """The events that wait, with their records: read again, or from rows of an earlier repartition."""
    held, pending = waiting_events(processor.store), processor.source.buffer.pending
    for stream, source in processor.source.sources.items():
        if stream not in position.inputs:
            continue
        known = {(each.partition, each.offset): each for each in held.get(stream, ())}
        known |= _read_again(log, processor, position.inputs[stream])
        texts = [key_text(value) for value in pending.values(source.key_column)]
        places = zip(pending.stream.tolist(), pending.partition.tolist(), pending.offset.tolist(), strict=True)
        for text, (number, *place) in zip(texts, places, strict=True):
            if number == source.number:
                event = known[place[0], place[1]]
                yield stream, (event.key if source.spec.is_forwarded else text) or b"", event


def _read_again(log: Log, processor: Processor, stored: InputPosition) -> dict[tuple[int, int], WaitingEvent]:
    source, found = processor.source, {}
    if stored.replay_from >= stored.next:
        return {}
    at = TopicPartition(stored.topic, processor.partition)
    for records in read_between(log, at, stored.replay_from, stored.next, source.tunables.recover_records):
        times, is_forwarded = source.log_times(records), source.by_topic[records.topic].spec.is_forwarded
        for row, place in enumerate(zip(*source.origins(records), strict=True)):
            key, value = source.original(records, row)
            if value is not None and not (is_forwarded and key is None):  # a mark has no key
                found[place] = WaitingEvent(*place, int(times[row]), key, value)
    return found


def unsettled(what: str) -> Refused:
    return Refused(
        "repartition-unsettled",
        what,
        "Let the service run until that is over, with its inputs standing still: `samovar run CONFIG"
        " --until-caught-up`; then stop it, and run this again. Nothing was changed.",
    )


# ---------------------------------------------------------------- rows


class RowPlaces:
    """Where the rows of one old task go. Refuses a row that is not where its key says: nobody knows whose it is."""

    def __init__(self, plan: Plan, partition: int, old: int, new: int, placing: Placing) -> None:
        self._partition, self._old, self._new = partition, old, new
        self._by_store: dict[str, int | None] = {}
        for each in plan.program.rules:
            place = placing(each.rule)
            # A history function's key is that of the step it stands in, which is the rule's.
            for name in (f"{each.rule.id}@{each.version}", *compile_rules([each.rule]).histories):
                self._by_store[name] = place
        self._last: tuple[bytes, str, int] | None = None
        self._stage = plan.stage
        self._user: Any = None if plan.task is None else plan.task.make()

    def place(self, row: bytes) -> int | None:
        """A row's new partition, or EVERYWHERE; None: it stays behind."""
        if row[:1] == ROW:
            key, name, _, _ = row_parts(row)
            # Else of a rule that is no more: the next start would drop it.
            return self._of_rule(key, name) if name in self._by_store else None
        return self._of_user(row) if row[:1] == USER else None

    def rows(self, store: Readable, kinds: Sequence[bytes] = (ROW, USER)) -> Iterator[tuple[int, bytes, bytes]]:
        """Each row of a store that moves, with its place."""
        for kind in kinds:
            for row, value in store.range(kind, bytes([kind[0] + 1])):
                place = self.place(row)
                if place is not None:
                    yield place, row, value

    def _of_rule(self, key: bytes, name: str) -> int:
        if self._last is None or self._last[:2] != (key, name):
            place = self._by_store[name]
            text = ONE_KEY if place is None else key_text(decode_key(key)[place])
            self._last = key, name, self._moved(text, f"a state of {name}")
        return self._last[2]

    def _of_user(self, row: bytes) -> int:
        size = row[1]
        store, rest = row[2 : 2 + size].decode(), row[2 + size :]
        if store == OWN and rest == WINDOW:
            return EVERYWHERE
        assert isinstance(self._user, RepartitionableTask), self._stage
        name, kind = (rest[len(TIMER) :].decode(), None) if store == OWN else (rest.decode(), store)
        text = self._user.key_of(kind, name)
        what = f"the timer `{name}`" if kind is None else f"the row `{name}` of the store `{store}`"
        return EVERYWHERE if text is None else self._moved(text.encode(), what)

    def _moved(self, text: bytes | None, what: str) -> int:
        if text is None or partition_of(text, self._old) != self._partition:
            shown = "null" if text is None else text.decode("utf-8", "replace")
            raise Refused(
                "repartition-misplaced",
                f"{what} is in partition {self._partition}, and its key `{shown}` belongs to another of {self._old}",
                "Keys must be placed by murmur2 of their text: a stream with `repartition: false` cannot be"
                " repartitioned. Of a task of your own, `key_of` must give the key of the events that made the row.",
            )
        return partition_of(text, self._new)


# ---------------------------------------------------------------- what a task holds of its own


@dataclass(frozen=True, kw_only=True)
class NewTasks:
    """What the new tasks of a stage have in common, and where each begins."""

    positions: Sequence[Position]
    facts: Mapping[str, Any]
    rows: Sequence[tuple[bytes, bytes]]  # that every task has


def merged(
    tasks: Sequence[OldTask],
    plan: Plan,
    nexts: Sequence[Mapping[str, int]],
    repartitioned: RepartitionCut,
) -> NewTasks:
    """The new tasks of one stage. `nexts` say, by new partition, where each stream of the main stage is read on."""
    first = tasks[0]
    for each in tasks[1:]:
        if dict(each.position.rules) != dict(first.position.rules) or each.position.streams != first.position.streams:
            raise unsettled(
                f"the tasks of {plan.stage or 'the main stage'} do not all have the same rules: a change is coming in"
            )
    facts, rows = _merged_rules(tasks)
    rows += _merged_counts(tasks)
    positions = [each.position for each in tasks]
    known = [each.watermark for each in positions]
    watermark = None if None in known else min(each for each in known if each is not None)
    streams = dict.fromkeys(stream for each in positions for stream in each.inputs)
    specs = {spec.stream: spec for spec in (*plan.inputs, *plan.others)}
    found = []
    for partition in range(len(nexts)):
        inputs = {}
        for stream in streams:
            stored = [each.inputs[stream] for each in positions if stream in each.inputs]
            own = next((each.position.inputs.get(stream) for each in tasks if each.partition == partition), None)
            if specs[stream].is_forwarded:
                inputs[stream] = _forwarded_input(stored, stream, nexts)
            else:
                inputs[stream] = _merged_input(stored, own, nexts[partition][stream])
        cut = {stream: each.next for stream, each in inputs.items()}
        forwards = _merged_forwards(positions, plan, nexts[partition])
        found.append(
            replace(
                first.position,
                watermark=watermark,
                inputs=inputs,
                journal=1,
                forwards=forwards,
                changelog="",
                journal_id="",
                repartitioned=replace(repartitioned, inputs=cut),
            )
        )
    return NewTasks(positions=found, facts=facts, rows=rows)


def first_entry(position: Position, facts: Mapping[str, Any], to: int) -> JournalEntry:
    """With what a new task's journal begins."""
    moved = position.repartitioned
    assert moved is not None
    fact = {"at_ms": moved.at_ms, "from": moved.partitions, "to": to}
    return JournalEntry(
        kind="rules",
        number=1,
        inputs={stream: each.next for stream, each in position.inputs.items()},
        watermark=position.watermark,
        facts={**facts, "repartitioned": fact},
    )


def _greatest(times: Sequence[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)


def _merged_input(stored: Sequence[InputPosition], own: InputPosition | None, next_: int) -> InputPosition:
    time = _greatest([each.max_event_time for each in stored])
    return InputPosition(
        topic=stored[0].topic,
        topic_id=stored[0].topic_id,
        next=next_,
        replay_from=next_,
        max_event_time=time,
        idle=time is None and all(each.idle for each in stored),
        unknown=() if own is None else tuple(each for each in own.unknown if each.until is None),
        placing=(0,) if len(stored[0].placing) % 2 else (),
    )


def _forwarded_input(stored: Sequence[InputPosition], stream: str, nexts: Sequence[Mapping[str, int]]) -> InputPosition:
    """A repartition topic that is made again: empty, and all that its source partitions brought has come."""
    told = [part for each in stored for part in each.parts]
    time = _greatest([part.max_event_time for part in told])
    idle = time is None and bool(told) and all(part.idle for part in told)
    parts = [
        SourcePartitionPosition(partition, time, idle, each[stream], each[stream])
        for partition, each in enumerate(nexts)
    ]
    return InputPosition(topic=stored[0].topic, topic_id="", next=0, replay_from=0, parts=tuple(parts))


def _merged_forwards(
    positions: Sequence[Position], plan: Plan, nexts: Mapping[str, int]
) -> dict[str, EmittedWatermark]:
    found = {}
    for forward in plan.forwards:
        told = [each.forwards[forward.topic] for each in positions if forward.topic in each.forwards]
        time = _greatest([each.max_event_time for each in told])
        idle = time is None and bool(told) and all(each.idle for each in told)
        if told:
            found[forward.topic] = EmittedWatermark(nexts[forward.stream], time, idle)
    return found


def _merged_rules(tasks: Sequence[OldTask]) -> tuple[dict[str, Any], list[tuple[bytes, bytes]]]:
    """The rules at work. A published one came into each task at that task's event time: the latest counts."""
    facts = dict(tasks[0].facts)
    latest = ("alerts_from_ms", "began_by_ms", "drains_until_ms")
    together = []
    for same in zip(*(each.facts["rules"] for each in tasks), strict=True):
        plain = [{name: fact for name, fact in each.items() if name not in latest} for each in same]
        if any(each != plain[0] for each in plain):
            raise unsettled(f"the rule {same[0]['id']} is not the same in all tasks: a change is coming in")
        times = {name: [each[name] for each in same if name in each] for name in latest}
        rule = plain[0] | {name: max(known) for name, known in times.items() if known}
        together.append(rule)
    facts["rules"] = together
    stored = tasks[0].store.get(BOOK)
    if stored is None:
        return facts, []
    version = json.loads(stored)["v"]
    return facts, [(BOOK, json.dumps({"v": version, **facts}, separators=(",", ":")).encode())]


def _merged_counts(tasks: Sequence[OldTask]) -> list[tuple[bytes, bytes]]:
    """Counts of alerts are each task's own: the newest window of a rule, and of these the fullest, goes to all. So a
    storm that stands goes on standing, and none is forgotten.
    """
    newest: dict[bytes, tuple[tuple[int, int], bytes]] = {}
    for task in tasks:
        for row, value in task.store.range(STORM, bytes([STORM[0] + 1])):
            raw = json.loads(value)
            rank = raw.get("window_ms", 0), raw.get("all", 0)
            if row not in newest or newest[row][0] < rank:
                newest[row] = rank, value
    return [(row, value) for row, (_, value) in sorted(newest.items())]


def same_everywhere(found: dict[bytes, bytes], row: bytes, value: bytes, stage: str) -> None:
    """Remember a row that every task has; refused where another task has it otherwise."""
    if found.setdefault(row, value) != value:
        is_window = row[1] == 0 and row[2:] == WINDOW
        what = "windows of different ends are open" if is_window else "a row that belongs to no key is not the same"
        raise unsettled(f"in the tasks of {stage}, {what}")
