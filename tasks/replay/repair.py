"""What a restore does to one partition: a store built next to the live one, and a changelog that agrees with it."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from samovar.changelog.formats.journal import EntryKind, effective_entries
from samovar.changelog.formats.record import BOOK, POSITION, ROW, STORM, USER, WAITING, Position, row_parts
from samovar.changelog.log import Append, Delivery, GroupConfig, Log, Member, TopicPartition
from samovar.common.errors import CommitUnknown, Fenced, LogUnavailable, Refused
from samovar.state.store import Change, Readable
from samovar.tasks.model.plan import Plan
from samovar.tasks.replay.rebuild import ReplayEnd, journal_of, plan_at

LOGGED = (POSITION, WAITING, ROW, USER, STORM, BOOK)  # what the rows of a changelog begin with, in order
JOIN_S = 60.0


def plan_of_position(log: Log, plan: Plan, partition: int, position: Position | None) -> Plan:
    """The plan with the rules that a stored state was made by, which the service file may no longer have."""
    if position is None or dict(position.rules) == plan.versions:
        return plan
    entries = effective_entries(journal_of(log, plan, partition), position.journal)
    rules = [entry for entry in entries if entry.kind == EntryKind.RULES]
    return plan_at(plan, rules[-1]) if rules else plan


def source_until(
    log: Log,
    plan: Plan,
    partition: int,
    group: str,
    position: Position | None,
    delivery: Delivery,
    shared: Collection[str] = (),
) -> ReplayEnd:
    """Up to where the input was processed, by the changelog's position or, where that is lost, the group's offsets."""
    inputs = [TopicPartition(spec.topic, partition) for spec in plan.inputs]
    committed = log.committed(group, inputs)
    until: dict[str, int] = {}
    is_behind = position is None
    for spec, at in zip(plan.inputs, inputs, strict=True):
        stored = None if position is None else position.inputs.get(spec.stream)
        offset = None if stored is not None and at.topic in shared else committed[at]
        topic = log.topics([at.topic]).get(at.topic)
        if topic is None:
            what = f"the topic {at.topic} of the stream `{spec.stream}` does not exist"
            raise Refused("topic-missing", what, "Put the input back.")
        if stored is not None and stored.topic_id != topic.id:
            raise Refused(
                "input-replaced",
                f"the stream `{spec.stream}` is another topic than the state of partition {partition} was made from",
                "Point the stream to the topic it had: the state cannot be made again from another one.",
                f"state: {at.topic} ({stored.topic_id}), now: {at.topic} ({topic.id})",
            )
        if stored is not None and offset is not None and offset < stored.next and delivery is Delivery.EXACTLY_ONCE:
            raise Refused(
                "offsets-differ",
                f"the state of partition {partition} stands for {at} up to {stored.next:,}, and the group's offset is"
                f" {offset:,}",
                "Offsets and state move together only: set the offset of the group back to that.",
            )
        known = [each for each in (None if stored is None else stored.next, offset) if each is not None]
        if not known:
            continue
        until[spec.stream] = max(known)
        is_behind = is_behind or stored is None or stored.next < until[spec.stream]
    if not until:
        raise Refused(
            "nothing-processed",
            f"neither the changelog nor the group {group} knows that partition {partition} was ever processed",
            "There is nothing to restore: `samovar run` begins at the beginning.",
        )
    return ReplayEnd(until, None if is_behind or position is None else position.journal)


def repaired_offsets(
    log: Log, group: str, position: Position, partition: int, shared: Collection[str]
) -> dict[TopicPartition, int]:
    """The group's offsets as they go with a repaired changelog. Of an input that other stages read too, the group's is
    that of the one furthest behind: it is never raised here, and stays unknown where it is.
    """
    found = {TopicPartition(each.topic, partition): each.next for each in position.inputs.values()}
    committed = log.committed(group, [at for at in found if at.topic in shared])
    known = {at: min(offset, found[at]) for at, offset in committed.items() if offset is not None}
    return {at: offset for at, offset in found.items() if at.topic not in shared} | known


def logged_rows(store: Readable) -> Iterator[tuple[bytes, bytes]]:
    """The rows of a store that a changelog has too, in order."""
    for kind in LOGGED:
        yield from store.range(kind, bytes([kind[0] + 1]))


def changes_between(wanted: Readable, there: Readable) -> list[Change]:
    """What makes the rows of one store those of another; the position comes last, as in every commit."""
    changes: list[Change] = []
    rows = dict(logged_rows(there))
    for key, value in logged_rows(wanted):
        if rows.pop(key, None) != value:
            changes.append((key, value))
    changes += [(key, None) for key in rows]
    last = [change for change in changes if change[0] == POSITION]
    return [change for change in changes if change[0] != POSITION] + last


def split_changes(
    changes: Sequence[Change], image: Readable, differing: Collection[tuple[bytes, str]], same_place: bool
) -> tuple[list[Change], list[Change]]:
    """Which changes the changelog gets, and which rows the store takes from it instead: those of states that are equal
    and only packed otherwise, as the commits of a live run leave them. `differing` are states by key and store name.
    """
    repaired: list[Change] = []
    adopted: list[Change] = []
    for row, value in changes:
        is_equal = same_place if row == POSITION else row[:1] == ROW and row_parts(row)[:2] not in differing
        if is_equal:
            adopted.append((row, image.get(row)))
        else:
            repaired.append((row, value))
    return repaired, adopted


def is_same_position(one: Position | None, other: Position | None) -> bool:
    """Whether two positions say the same, but for how far back events that wait are read again."""
    if one is None or other is None:
        return one is other
    nexts = [{name: (each.next, each.topic_id) for name, each in position.inputs.items()} for position in (one, other)]
    rest = [
        (each.watermark, each.streams, dict(each.rules), each.journal, each.ruleset_change, each.rewinding)
        for each in (one, other)
    ]
    is_one_changelog = one.changelog == other.changelog or not (one.changelog and other.changelog)
    return nexts[0] == nexts[1] and rest[0] == rest[1] and is_one_changelog


@dataclass(frozen=True)
class RepairPlan:
    """What a changelog needs to agree with a rebuilt store."""

    changelog: TopicPartition
    changes: Sequence[Change]
    packed_position: bytes
    offsets: Mapping[TopicPartition, int]  # of the inputs, which go with it


class ChangelogRepair:
    """A member of the service's group for the time of a repair, so that no container can write at the same time.

    The source of truth for which partitions are ours. Changes of a partition go out in transactions that carry its
    input offsets. Where one transaction would be too large, the first takes the position row away: a service started
    on half a changelog is refused then (state-lost), until this was run again.
    """

    def __init__(
        self, log: Log, plans: Sequence[Plan], group: str, delivery: Delivery, wanted: Collection[int]
    ) -> None:
        """`plans` are those of all stages: the partitions of their inputs are owned together."""
        refuse_members(log, group)
        self.owned: set[int] = set()
        topics = sorted({spec.topic for plan in plans for spec in plan.inputs})
        lead = plans[0].topics.journal
        joining = GroupConfig(
            group=group,
            slot=0,
            topics=topics,
            delivery=delivery,
            on_assigned=self._on_assigned,
            on_revoked=self._on_revoked,
            on_lost=self._on_revoked,
            lead=lead,
        )
        self._member: Member = log.join(joining)
        self._at_once = log.tunables.append_rows
        deadline = time.monotonic() + JOIN_S
        try:
            while not set(wanted) <= self.owned:
                self._member.poll(1, 0.05)
                if time.monotonic() > deadline:
                    raise _active(group, "its partitions did not come free")
        except BaseException:
            self.close()
            raise

    def _on_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.owned |= {at.partition for at in partitions}

    def _on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.owned -= {at.partition for at in partitions}

    def repair(self, repairing: RepairPlan) -> int:
        """Append what is missing; the offset after the last record."""
        at, offsets = repairing.changelog, repairing.offsets
        # The position row goes last even where it is the same, so that a commit ends here.
        rows = [change for change in repairing.changes if change[0] != POSITION]
        parts = self.parts_of(rows)
        parts[-1] = [*parts[-1], (POSITION, repairing.packed_position)]
        if len(parts) > 1:
            parts[0] = [(POSITION, None), *parts[0]]
        last: Mapping[TopicPartition, int] = {}
        for part in parts:
            last = self.write([Append(topic=at.topic, records=part, partition=at.partition)], offsets)
        return last[at] + 1

    def parts_of(self, rows: Sequence[Change]) -> list[list[Change]]:
        """Rows as transactions take them; one part at least."""
        return [list(rows[start : start + self._at_once]) for start in range(0, len(rows), self._at_once)] or [[]]

    def write(self, appends: Sequence[Append], offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """One transaction; the last offset of each partition that was named."""
        try:
            return self._member.transact(appends, offsets)
        except (Fenced, CommitUnknown, LogUnavailable) as error:
            raise Refused(
                "repair-failed",
                "the changelog could not be written: another container joined, or the log did not answer",
                "Stop all containers of the service and run this again: it begins again, and nothing is lost.",
                f"{type(error).__name__}: {error}",
            ) from error

    def close(self) -> None:
        self._member.leave()


def refuse_members(log: Log, group: str) -> None:
    """Refuse while containers of the service live."""
    members = log.members(group)
    if members:
        raise _active(group, f"it has members: {', '.join(members)}")


def _active(group: str, detail: str) -> Refused:
    return Refused(
        "group-active",
        f"the service {group} runs, and its changelog must not be written by two",
        "Stop all its containers first, then run this again.",
        detail,
    )
