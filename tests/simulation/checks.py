"""What must hold whenever a simulated service has come to rest. Every check says what was expected and what was found.

Outputs are compared with the oracle (tests/oracle), lateness and dead letters with small models of their own, states
with their changelogs and with a rebuild from the source.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from samovar.changelog.formats.journal import EntryKind, JournalEntry, is_void, unpack_entry
from samovar.changelog.formats.record import POSITION, ROW, Position, row_parts, unpack_position
from samovar.changelog.partitioner import key_text, partition_of
from samovar.changelog.schema_registry import ASK_AGAIN_S
from samovar.common.wire import from_wire
from samovar.patterns.engine.compile import state_shape
from samovar.patterns.engine.order import NO_TIME
from samovar.patterns.semantics.versioning import history_ms
from samovar.patterns.syntax.tree import Rule
from samovar.service.query.verify import overdue_in
from samovar.service.topology.stores import digest_of
from samovar.state.memory import MemoryStore
from samovar.state.prefixed import after
from samovar.state.stack import ROWS, namespace
from samovar.state.store import Readable
from samovar.state.ttl import unwrapped
from samovar.tasks.input.placement import checked_streams
from samovar.tasks.model.plan import MAIN, InputSpec, Plan, PublishedRule
from samovar.tasks.replay.rebuild import ReplayEnd, rebuild
from samovar.tasks.replay.repair import logged_rows
from samovar.tasks.rules.crash_marks import ENDED_MOST
from samovar.tasks.rules.migration import rule_of
from samovar.tasks.rules.replay_dedup import dedup_rows
from samovar.tasks.user.processor import TASK_FAILED
from tests import oracle
from tests.faults.comparing import at_places, rounded
from tests.simulation.avro_events import decoded, schema_of
from tests.simulation.counting import TASK, TakenEvent, expected_counts, is_failing, text_of
from tests.simulation.scenario import MOST_AHEAD_MS, event_of

Place: TypeAlias = tuple[str, int, int]  # topic, partition, offset
Match: TypeAlias = dict[str, Any]


class Broken(AssertionError):
    """A promise does not hold."""


def require(holds: bool, promise: str, *details: object) -> None:
    if not holds:
        raise Broken("\n  ".join([promise, *map(str, details)]))


@dataclass(frozen=True)
class InputRecord:
    """A record as it was produced, and what is wrong with it."""

    place: Place
    stream: str
    value: bytes | None
    time_ms: int  # when the log got it
    key: bytes | None = None
    is_avro: bool = False

    @cached_property
    def event(self) -> dict[str, Any] | None:
        return decoded(self.value) if self.is_avro else event_of(self.value)


@dataclass(frozen=True)
class Letter:
    """A record that was put aside, as it was written."""

    headers: Mapping[str, bytes]
    key: bytes | None
    value: bytes | None


@dataclass
class Observed:
    """All that a service at rest shows of itself. The source of truth for one round of checks."""

    plans: Sequence[Plan]
    partitions: int
    limits: Mapping[str, Any]  # of the oracle
    inputs: Sequence[InputRecord]  # stream by stream, partition by partition, in order of offset
    alerts: Sequence[Match]
    late: Sequence[Mapping[str, bytes]]  # headers
    dead: Sequence[Mapping[str, bytes]]
    journals: Mapping[tuple[str, int], Sequence[JournalEntry]]  # by stage and partition
    advances: Mapping[
        int, Sequence[tuple[JournalEntry, int]]
    ]  # of the main stage, by partition, with when they were written
    changelogs: Mapping[tuple[str, int], Mapping[bytes, bytes]]  # newest values
    stores: Mapping[tuple[str, int], Readable]
    counts: Sequence[Mapping[str, Any]]  # records of the user-defined task
    steady: Mapping[str, Rule]  # rules that never changed
    was_rewound: bool = False
    has_changed: bool = False
    drained: Mapping[str, Rule] = field(default_factory=dict)  # rules that changed once, and were to drain
    letters: Sequence[Letter] = ()  # late and dead ones
    heard: Mapping[tuple[str, int], Sequence[tuple[int, int]]] = field(default_factory=dict)  # looks at inputs' ends
    storm: tuple[int, int] | None = None  # of all rules: alerts and ms
    registered_ms: Mapping[int, int] = field(default_factory=dict)  # schemas of the registry, and since when
    has_snapshots: bool = True
    at_work: Mapping[tuple[str, int], frozenset[str]] = field(default_factory=dict)  # names of states of rules
    positions: dict[tuple[str, int], Position] = field(init=False)

    def __post_init__(self) -> None:
        self.positions = {
            place: unpack_position(data)
            for place, store in self.stores.items()
            if (data := store.get(POSITION)) is not None
        }

    @property
    def raised(self) -> list[Match]:
        """Alerts without the alarms about them."""
        return [alert for alert in self.alerts if "alarm" not in alert]

    @property
    def quarantined(self) -> set[str]:
        """Rules that a task took out at some time."""
        texts = [
            text
            for entries_ in self.journals.values()
            for entry in entries_
            if entry.kind == "rules"
            for text in entry.facts.get("rules", ())
        ]
        return {text["id"] for text in texts if text.get("quarantined") is not None}

    def watermark(self, stage: str, partition: int) -> int:
        position = self.positions.get((stage, partition))
        return NO_TIME if position is None or position.watermark is None else position.watermark


def place_of(headers: Mapping[str, bytes]) -> Place:
    prefix = "__streams.errors."
    return (
        headers[prefix + "topic"].decode(),
        int(headers[prefix + "partition"]),
        int(headers[prefix + "offset"]),
    )


def stage_of(headers: Mapping[str, bytes]) -> str:
    return headers.get("samovar.stage", b"").decode()


def is_failed(headers: Mapping[str, bytes]) -> bool:
    """Whether not the record was wrong, but a task's own code failed on it."""
    return headers.get("__streams.errors.exception", b"").decode() == TASK_FAILED


# ---------------------------------------------------------------- records that were put aside


def check_put_aside(seen: Observed) -> None:
    """A record is put aside once; a late one is late by its partition's own times or by the journal, a dead one has
    something wrong with it (P1, P8).
    """
    for what, found in (("late", seen.late), ("dead", seen.dead)):
        counts = Counter((place_of(headers), stage_of(headers)) for headers in found)
        twice = {place: count for place, count in counts.items() if count > 1}
        require(not twice or seen.was_rewound, f"a record is put aside once ({what})", twice)
        own = Counter(
            place_of(headers) for headers in found if stage_of(headers) in (MAIN, TASK) and not is_failed(headers)
        )
        both = {place: count for place, count in own.items() if count > 1}
        require(
            not both or seen.was_rewound, f"of two stages that read a stream one puts a record aside ({what})", both
        )
    check_letters(seen)
    own_late = {place_of(headers) for headers in seen.late if stage_of(headers) == MAIN}
    own_dead = {place_of(headers) for headers in seen.dead if stage_of(headers) == MAIN}
    if seen.was_rewound:
        return
    require(not own_late & own_dead, "a record is late or dead, not both", own_late & own_dead)
    bad, misplaced = expected_dead(seen)
    if seen.has_changed:  # whether partitions are checked depends on the rules of the time
        require(bad <= own_dead <= bad | misplaced, "bad records are dead letters, good ones are not", bad ^ own_dead)
    else:
        checked = checked_streams(seen.plans[0])
        by_place = {each.place: each.stream for each in seen.inputs}
        wanted = bad | {place for place in misplaced if by_place[place] in checked}
        require(wanted == own_dead, "bad records are dead letters, good ones are not", wanted ^ own_dead)
    for plan in seen.plans[1:]:
        slack = {spec.stream: spec.slack_ms for spec in plan.inputs}
        for partition in range(seen.partitions):
            for entry in seen.journals[plan.stage, partition]:
                if entry.kind == "active" and entry.watermark is not None and entry.facts["stream"] in slack:
                    is_right = entry.facts["max_event_time"] == entry.watermark + slack[entry.facts["stream"]]
                    require(is_right, "an idle partition joins at event time", plan.stage, entry)
    wanted_late = expected_late(seen, own_dead)
    by_ms = {place_of(headers): int(headers["samovar.late.ms"]) for headers in seen.late if stage_of(headers) == MAIN}
    wrong = wanted_late.items() ^ by_ms.items()
    require(not wrong, "events are late by their own partition's times or by the journal", wrong)


def check_letters(seen: Observed) -> None:
    """What was put aside is the record as it came; another stage had it under another key."""
    came = {each.place: each for each in seen.inputs}
    for letter in seen.letters:
        record = came[place_of(letter.headers)]
        is_same = letter.value == record.value and (stage_of(letter.headers) != MAIN or letter.key == record.key)
        require(is_same, "a letter is the record as it came", record, letter)


def expected_dead(seen: Observed, stage: str = MAIN) -> tuple[set[Place], set[Place]]:
    """Records that no reader can take, or that a stage knew no schema of, and records that are in the wrong
    partition.
    """
    bad, misplaced = unknown_to(seen, stage), set()
    for record in seen.inputs:
        event = record.event
        if record.place in bad:
            continue
        if event is None or (key := key_text(event.get("u"))) is None or event["ts"] - record.time_ms > MOST_AHEAD_MS:
            bad.add(record.place)
        elif partition_of(key, seen.partitions) != record.place[1]:
            misplaced.add(record.place)
    return bad, misplaced


def unknown_to(seen: Observed, stage: str) -> set[Place]:
    """Records whose schemas were unknown to a stage when it took them, as its journal says."""
    found: set[Place] = set()
    for record in seen.inputs:
        if record.is_avro and (number := schema_of(record.value)) is not None:
            turns = [
                entry.facts["known"]
                for entry in seen.journals.get((stage, record.place[1]), ())
                if entry.kind == EntryKind.SCHEMA
                and (entry.facts["stream"], entry.facts["schema"]) == (record.stream, number)
                and entry.inputs[record.stream] <= record.place[2]
            ]
            if turns and not turns[-1]:
                found.add(record.place)
    return found


def check_schemas(seen: Observed) -> None:
    """A schema is unknown as long as it is not registered, and for as long as nobody asks again."""
    if seen.was_rewound or not any(each.is_avro for each in seen.inputs):
        return
    unknown = unknown_to(seen, MAIN)
    for record in seen.inputs:
        number = schema_of(record.value) if record.is_avro else None
        if number is None or record.event is None:
            continue
        since_ms = seen.registered_ms.get(number)
        is_unknown = record.place in unknown
        is_right = is_unknown if since_ms is None else not is_unknown or record.time_ms <= since_ms + ASK_AGAIN_S * 1000
        require(is_right, "a schema is known once it is registered, and not before", record, since_ms)


def expected_late(seen: Observed, dead: set[Place], stage: str = MAIN) -> dict[Place, int]:
    """By the times of the same partition before it, and by advances in the journal; with how many ms."""
    late = {}
    for spec in seen.plans[0].inputs:
        for partition in range(seen.partitions):
            entries_ = [
                entry
                for entry in seen.journals.get((stage, partition), ())
                if entry.kind in ("advance", "active", "idle") and entry.facts.get("stream") == spec.stream
            ]
            check_silence(entries_, spec)
            max_event_time: int | None = None
            idle: JournalEntry | None = None
            for record in seen.inputs:
                topic, own, offset = record.place
                if topic != spec.topic or own != partition or record.place in dead:
                    continue
                while entries_ and entries_[0].inputs[spec.stream] <= offset:
                    entry = entries_.pop(0)
                    idle = entry if entry.kind == "idle" else None
                    if idle is None:
                        max_event_time = max(
                            entry.facts["max_event_time"], max_event_time if max_event_time is not None else NO_TIME
                        )
                is_told = idle is None or idle.watermark is None
                require(is_told, "an idle stream joins before it is taken", record.place, idle)
                idle = None
                event = record.event
                assert event is not None
                time = event["ts"]
                if max_event_time is not None and time < max_event_time - spec.slack_ms:
                    late[record.place] = max_event_time - spec.slack_ms - time
                else:
                    max_event_time = time if max_event_time is None else max(max_event_time, time)
    return late


def check_silence(entries_: Sequence[JournalEntry], spec: InputSpec) -> None:
    """A stream falls idle once, and what it says from then on is late where it is behind event time."""
    before = ""
    for entry in entries_:
        require(not entry.kind == before == "idle", "a stream falls idle once", entry)
        if entry.kind == "active":
            joined = entry.facts["max_event_time"], (entry.watermark or 0) + spec.slack_ms
            require(joined[0] == joined[1], "an idle stream joins at event time", entry)
        before = entry.kind


def check_idleness(seen: Observed, session_ms: int) -> None:
    """Event time advances without an event only past inputs that were read to their ends: an outage is not idleness."""
    for spec in seen.plans[0].inputs:
        for partition in range(seen.partitions):
            records = [each for each in seen.inputs if each.place[0] == spec.topic and each.place[1] == partition]
            for entry, written_ms in seen.advances.get(partition, ()):
                if entry.facts.get("stream") != spec.stream:
                    continue
                unread = [each for each in records if each.place[2] >= entry.inputs[spec.stream]]
                waited = [each.time_ms for each in unread if written_ms - each.time_ms > session_ms]
                require(not waited, "an input with unread records is not idle", spec.topic, partition, entry, waited)
                check_raise(seen, spec, partition, entry, written_ms)


def check_raise(seen: Observed, spec: InputSpec, partition: int, entry: JournalEntry, written_ms: int) -> None:
    """While nobody hears of the log, nobody knows whether an input is idle: that time moves event time nowhere."""
    looks = [look for look in seen.heard.get((spec.topic, partition), ()) if look[0] <= written_ms]
    taken = [
        each
        for each in seen.inputs
        if each.place[:2] == (spec.topic, partition) and each.place[2] < entry.inputs[spec.stream]
    ]
    joined = [
        each.facts["max_event_time"]
        for each in seen.journals[MAIN, partition]
        if each.kind == "active" and each.facts.get("stream") == spec.stream and each.number < entry.number
    ]
    advances = [each for each in seen.advances[partition] if each[0].facts.get("stream") == spec.stream]
    most = NO_TIME
    for look_ms, heard_ms in looks:
        # What was taken by then ended an earlier stretch.
        since_ms = max([heard_ms, *(each.time_ms for each in taken if each.time_ms <= look_ms)])
        times = [each.event["ts"] for each in taken if each.event]
        times += [each.facts["max_event_time"] for each, when_ms in advances if when_ms <= since_ms]
        most = max(most, max(times + joined, default=NO_TIME) + look_ms - since_ms - spec.idle_ms)
    require(
        entry.facts["max_event_time"] <= most,
        "an outage is not idleness",
        spec.topic,
        partition,
        entry,
        written_ms,
        most,
    )


# ---------------------------------------------------------------- rules


def check_journals(seen: Observed) -> None:
    """Entries are numbered one after the other, and no number is used again: a snapshot's says what came after it."""
    for place, entries_ in seen.journals.items():
        numbers = [entry.number for entry in entries_]
        require(numbers == list(range(1, len(numbers) + 1)), f"the journal of {place} is numbered", numbers)


def check_migrations(seen: Observed) -> None:
    """A rule whose lists change keeps its states, if they have the same shape; one that drains goes on with what began
    by then. After a rewind what was before a change is another question.
    """
    for place, entries_ in seen.journals.items() if not seen.was_rewound else ():
        before: dict[str, PublishedRule] = {}
        draining: set[str] = set()
        for entry in [each for each in entries_ if each.kind == EntryKind.RULES]:
            rules = [from_wire(PublishedRule, each) for each in entry.facts["rules"]]
            for rule in rules:
                old = before.get(rule.id)
                if rule.drains:
                    is_right = rule.name in draining or rule.began_by_ms == entry.watermark
                    require(is_right, "a version ends what began by then", place, rule.name, entry)
                elif old is not None and is_other_by_lists(old, rule):
                    wanted, moves = (
                        (f"{old.id}@{old.version}", f"{rule.id}@{rule.version}"),
                        entry.facts.get("moves", {}),
                    )
                    require(wanted in moves.items(), "a rule whose lists change keeps its states", place, wanted, moves)
            before = {rule.id: rule for rule in rules if not rule.drains}
            draining = {rule.name for rule in rules if rule.drains}


def is_other_by_lists(old: PublishedRule, new: PublishedRule) -> bool:
    """Whether nothing but its lists makes it another version, with states of the same shape."""
    is_same = (old.text, old.params) == (new.text, new.params) and old.version != new.version
    return (
        is_same and not (old.quarantined or new.quarantined) and state_shape(rule_of(old)) == state_shape(rule_of(new))
    )


def check_rules_taken(seen: Observed) -> None:
    """A service at rest works by the rules that were published last."""
    for plan in seen.plans:
        wanted = None if plan.ruleset_change is None else plan.ruleset_change.change
        for partition in range(seen.partitions):
            taken = [entry for entry in seen.journals[plan.stage, partition] if entry.kind == "rules"]
            change = taken[-1].facts.get("change") if taken else None
            is_right = wanted is None or change == wanted or seen.was_rewound
            require(is_right, f"stage `{plan.stage}` takes the newest rules", partition, change, wanted)
            if taken and plan.task is None and not seen.was_rewound:
                check_versions(plan, partition, [from_wire(PublishedRule, each) for each in taken[-1].facts["rules"]])


def check_versions(plan: Plan, partition: int, taken: Sequence[PublishedRule]) -> None:
    """Rules have the parameters and lists of now; what was taken out may be of an earlier version."""
    quarantined = {rule.id for rule in (*plan.rules, *taken) if rule.quarantined is not None}
    wanted, found = (
        {rule.id: rule.version for rule in rules if not rule.drains and rule.id not in quarantined}
        for rules in (plan.rules, taken)
    )
    require(wanted == found, f"stage `{plan.stage}` has the rules of now", partition, wanted, found)


def check_crashes(seen: Observed, ended: Mapping[str, int]) -> None:
    """A rule is taken out for crashes where the process ended often enough while an event of it took much."""
    for place, entries_ in seen.journals.items():
        for entry in entries_:
            told = entry.facts.get("quarantine") if entry.kind == "rules" else None
            if told is not None and "the process ended" in told["reason"]:
                is_right = ended[told["rule"]] >= ENDED_MOST
                require(is_right, "a rule is taken out when it ended the process three times", place, told, ended)


# ---------------------------------------------------------------- rewinds


def check_rewinds(seen: Observed) -> None:
    """A rewind voids the entries of its journal that were after its moment, and no others. One that began with a
    snapshot keeps those before it, by which a stream may have been past the moment. Not looked at where source
    partitions pass the moment one by one, in stages that read repartition topics.
    """
    for plan in seen.plans:
        if any(spec.is_forwarded for spec in plan.inputs):
            continue
        slack_ms = {spec.stream: spec.slack_ms for spec in plan.inputs}
        for partition in range(seen.partitions):
            standing: list[JournalEntry] = []
            for entry in seen.journals[plan.stage, partition]:
                if entry.kind == EntryKind.REWIND:
                    for each in standing:
                        is_right = is_after(each, entry, slack_ms) == is_void(each.number, entry)
                        is_right = is_right or each.kind == EntryKind.REWIND
                        is_right = is_right or (seen.has_snapshots and not is_void(each.number, entry))
                        require(is_right, f"a rewind voids what was after it ({plan.stage}, {partition})", each, entry)
                    standing = [
                        replace(each, inputs={name: min(at, entry.inputs[name]) for name, at in each.inputs.items()})
                        for each in standing
                        if not is_void(each.number, entry)
                    ]
                standing.append(entry)


def is_after(entry: JournalEntry, rewind: JournalEntry, slack_ms: Mapping[str, int]) -> bool:
    """Whether it happened after the moment of a rewind: by its event time, or by where its stream was."""
    moment_ms, stream = rewind.facts["to"], entry.facts.get("stream")
    if stream is None:
        return entry.watermark is not None and entry.watermark > moment_ms
    max_event_time = entry.facts.get("max_event_time", NO_TIME)
    return entry.inputs[stream] > rewind.inputs[stream] or max_event_time - slack_ms[stream] > moment_ms


# ---------------------------------------------------------------- alerts


def check_alerts(seen: Observed, *, is_end: bool) -> None:
    """Alerts are the oracle's over all events that were not put aside: up to each stage's event time, and at the end
    all of them (P1, P9).
    """
    # Runs that let go of their oldest events may end as one and the same match. Of rules that never changed these are
    # counted below, against the oracle's.
    is_counted = "max_events" in seen.limits and not seen.was_rewound
    ids = Counter(alert["id"] for alert in seen.alerts if not (is_counted and alert["rule"] in seen.steady))
    twice = {id_: count for id_, count in ids.items() if count > 1}
    require(not twice, "an alert is written once", twice)
    if seen.was_rewound:  # what was late then may be in time now
        return
    quarantined = seen.quarantined
    if seen.storm is None:
        check_drained(seen, quarantined, is_end=is_end)
        if seen.has_changed or quarantined:
            check_published(seen, is_end=is_end)
    for plan in seen.plans:
        rules = [seen.steady[each.id] for each in plan.rules if each.id in seen.steady.keys() - quarantined]
        if not rules or plan.task is not None:
            continue
        names = {rule.id for rule in rules}
        found = Counter(shown(alert) for alert in seen.raised if alert["rule"] in names)
        expected = expected_matches(seen, plan.stage, rules)
        every = Counter(shown(match) for _, match in expected)
        surplus = found - every
        require(not surplus, f"no alert but the oracle's (stage `{plan.stage}`)", *surplus)
        due = Counter(
            shown(match)
            for partition, match in expected
            if is_end or match["at"] < low_watermark(seen, plan.stage, partition)
        )
        missing = due - found
        require(not missing, f"no alert is lost or withheld (stage `{plan.stage}`)", *missing)
        if not is_end:
            early = Counter(
                shown(match)
                for partition, match in expected
                if match["at"] <= high_watermark(seen, plan.stage, partition)
            )
            require(not found - early, f"no alert comes before its time (stage `{plan.stage}`)", *(found - early))


def check_drained(seen: Observed, quarantined: Collection[str], *, is_end: bool) -> None:
    """A version that drains raises all that began before another took its place, and nothing that began later."""
    for name, rule in seen.drained.items():
        if name in quarantined:
            continue
        drains = {
            partition: text
            for partition in range(seen.partitions)
            for entry in seen.journals[MAIN, partition]
            if entry.kind == "rules"
            for text in entry.facts["rules"]
            if text["id"] == name and text.get("drains_until_ms") is not None
        }
        if not drains:
            continue
        versions = {text["version"] for text in drains.values()}
        alerts = [alert for alert in seen.alerts if alert["rule"] == name and alert["version"] in versions]
        found = Counter(map(shown, alerts))
        expected = [
            (partition, match)
            for partition, match in expected_matches(seen, MAIN, [rule])
            if partition in drains and match["start"] <= drains[partition]["began_by_ms"]
        ]
        surplus = found - Counter(shown(match) for _, match in expected)
        require(not surplus, "a version that drains begins nothing", *surplus)
        due = [match for place, match in expected if is_end or match["at"] < low_watermark(seen, MAIN, place)]
        missing = Counter(map(shown, due)) - found
        require(not missing, "a version that drains ends all that it began", *missing)


@dataclass(frozen=True)
class Version:
    """A version of a rule in one task, from one change of rules to another."""

    text: PublishedRule
    partition: int
    begins_ms: int  # event time
    begins_at: Mapping[str, int]  # offsets of the streams
    ends_ms: int | None = None
    muted_until_ms: int | None = None
    warm_from: Mapping[str, int] | None = None  # offsets of the streams from which on its history was folded
    is_comparable: bool = True  # with what the oracle says about events from then on

    def is_given(self, record: InputRecord) -> bool:
        """Whether an event was not released before: of one stream, that is done up to event time itself."""
        time_ms = NO_TIME if record.event is None else record.event["ts"]
        is_read = len(self.begins_at) == 1 and record.place[2] < self.begins_at[record.stream]
        return time_ms > self.begins_ms or (time_ms == self.begins_ms and not is_read)

    def is_folded(self, record: InputRecord) -> bool:
        """Whether it is part of the history that the version began with."""
        if self.warm_from is None or record.place[1] != self.partition or self.is_given(record):
            return False
        return self.warm_from[record.stream] <= record.place[2] < self.begins_at[record.stream]


def check_published(seen: Observed, *, is_end: bool) -> None:
    """What a version raised between two changes of rules is the oracle's over the events that it was given (P1). Not of
    one that took over states or histories of another: that is compared with a rebuild.
    """
    found_at: dict[tuple[str, str], Counter[str]] = {}
    for alert in seen.alerts:
        found_at.setdefault((alert["rule"], alert["version"]), Counter())[shown(alert)] += 1
    versions: dict[tuple[str, str], list[Version]] = {}
    for partition in range(seen.partitions):
        for version in versions_of(seen, partition):
            versions.setdefault((version.text.id, version.text.version), []).append(version)
    for (name, number), parts in versions.items():
        rule = rule_of(parts[0].text)
        # `distinct` of a session or window holds no more values than max_events, which the oracle does not know.
        is_limited = "max_events" in seen.limits and "distinct(" in parts[0].text.text
        if is_limited or history_ms(rule) or not all(each.is_comparable for each in parts):
            continue
        found = found_at.get((name, number), Counter())
        expected = [match for each in parts for match in matches_of(seen, rule, each)]
        surplus = found - Counter(map(shown, expected))
        require(not surplus, f"a version of {name} raises what its events make", parts, *surplus)
        due = [match for each in parts for match in matches_of(seen, rule, each, is_due=True, is_end=is_end)]
        missing = Counter(map(shown, due)) - found
        require(not missing, f"no alert of a version of {name} is lost or withheld", parts, *missing)


def versions_of(seen: Observed, partition: int) -> list[Version]:
    """The versions that were at work in a task, one after the other."""
    at_work: dict[str, Version] = {}
    ended: list[Version] = []
    for entry in seen.journals[MAIN, partition]:
        if entry.kind != "rules":
            continue
        now_ms = NO_TIME if entry.watermark is None else entry.watermark
        texts = [from_wire(PublishedRule, each) for each in entry.facts["rules"]]
        taken_over = {*entry.facts.get("moves", {}).values()}
        draining = {(each.id, each.version) for each in texts if each.drains}
        for text in texts:
            if text.drains or text.quarantined is not None:
                continue
            before = at_work.get(text.id)
            if before is not None and before.text.version == text.version:
                is_as_it_was = before.text.shadow == text.shadow
                at_work[text.id] = replace(before, is_comparable=before.is_comparable and is_as_it_was)
                continue
            if before is not None:
                ended.append(ending(at_work.pop(text.id), now_ms, draining))
            warm = entry.facts.get("warm", {"rules": ()})
            version = Version(
                text, partition, now_ms, entry.inputs, None, text.alerts_from_ms,
                warm["from"] if text.id in warm["rules"] else None,
                f"{text.id}@{text.version}" not in taken_over,
            )  # fmt: skip
            at_work[text.id] = replace(version, is_comparable=version.is_comparable and is_plain(seen, version))
        gone = at_work.keys() - {each.id for each in texts if not each.drains and each.quarantined is None}
        ended += [ending(at_work.pop(name), now_ms, draining) for name in sorted(gone)]
    return [*ended, *at_work.values()]


def is_plain(seen: Observed, version: Version) -> bool:
    """Whether nothing was put aside in its history that it may judge otherwise: by partition or by schema."""
    _, misplaced = expected_dead(seen)
    doubtful = misplaced | unknown_to(seen, MAIN)
    return not any(record.place in doubtful and version.is_folded(record) for record in seen.inputs)


def late_in_history(seen: Observed, version: Version, dead: Collection[Place]) -> set[Place]:
    """Records of a version's history that are behind those before them there: nothing else is known of its past."""
    slack_ms = {spec.stream: spec.slack_ms for spec in seen.plans[0].inputs}
    max_event_time: dict[str, int] = {}
    late: set[Place] = set()
    for record in seen.inputs:
        start = None if version.warm_from is None else version.warm_from[record.stream]
        is_read = start is not None and start <= record.place[2] < version.begins_at[record.stream]
        if record.place[1] != version.partition or not is_read or record.place in dead:
            continue
        assert record.event is not None
        time, most = record.event["ts"], max_event_time.get(record.stream, NO_TIME)
        if time < most - slack_ms[record.stream]:
            late.add(record.place)
        max_event_time[record.stream] = max(time, most)
    return late


def ending(version: Version, now_ms: int, draining: Collection[tuple[str, str]]) -> Version:
    is_dropped = (version.text.id, version.text.version) not in draining
    return replace(version, ends_ms=now_ms, is_comparable=version.is_comparable and is_dropped)


def matches_of(
    seen: Observed, rule: Rule, version: Version, *, is_due: bool = False, is_end: bool = True
) -> list[Match]:
    """The oracle's, of the events that a version was given: those that it may have raised, or those that it must."""
    if version.text.shadow:
        return []
    expected = expected_matches(seen, MAIN, [rule], version)
    watermark = seen.watermark(MAIN, version.partition)
    found = []
    for _, match in expected:
        at = match["at"]
        ends_ms = version.ends_ms
        is_in_time = ends_ms is None or at < ends_ms or (not is_due and at == ends_ms)
        if version.warm_from is not None:  # what it finds in the past is told to nobody
            is_in_time = is_in_time and (at > version.begins_ms or (not is_due and at == version.begins_ms))
        is_muted = version.muted_until_ms is not None and at < version.muted_until_ms
        is_past = not is_due or ends_ms is not None or is_end or at < watermark
        if is_in_time and is_past and not is_muted:
            found.append(match)
    return found


def low_watermark(seen: Observed, stage: str, partition: int | None) -> int:
    places = range(seen.partitions) if partition is None else [partition]
    return min(seen.watermark(stage, each) for each in places)


def high_watermark(seen: Observed, stage: str, partition: int | None) -> int:
    places = range(seen.partitions) if partition is None else [partition]
    return max(seen.watermark(stage, each) for each in places)


def expected_matches(
    seen: Observed, stage: str, rules: Sequence[Rule], version: Version | None = None
) -> list[tuple[int | None, Match]]:
    """The oracle's matches, in the main stage with the partition. A further stage sees the events of all partitions,
    a version those that it was given.
    """
    aside = {place_of(headers) for headers in (*seen.late, *seen.dead) if stage_of(headers) in (MAIN, stage)}
    parts: Iterable[int | None] = range(seen.partitions) if stage == MAIN else (None,)
    parts = parts if version is None else [version.partition]
    past: set[Place] = set()  # that the version folded; what was late then may be in time there
    if version is not None and version.warm_from is not None:
        dead = {place_of(headers) for headers in seen.dead if stage_of(headers) == MAIN}
        past = {each.place for each in seen.inputs if each.place not in dead and version.is_folded(each)}
        past -= late_in_history(seen, version, dead)
    found: list[tuple[int | None, Match]] = []
    for partition in parts:
        records = [each for each in seen.inputs if partition is None or each.place[1] == partition]
        events = [
            each.event
            if each.place in past or (each.place not in aside and (version is None or version.is_given(each)))
            else None
            for each in records
        ]
        places = [list(each.place) for each in records]
        told = oracle.run(rules, events, **seen.limits)
        matches = [at_places(match, places) for match in told.matches]
        found += [(partition, match) for match in (matches if seen.storm is None else throttled(matches, *seen.storm))]
    return found


def throttled(matches: Sequence[Match], most: int, per_ms: int) -> list[Match]:
    """Of each rule and window those before which there were fewer than the limit; a moment is one."""
    windows: dict[tuple[str, int], list[int]] = {}
    for match in matches:
        windows.setdefault((match["rule"], match["at"] // per_ms), []).append(match["at"])
    return [
        match
        for match in matches
        if sum(at < match["at"] for at in windows[match["rule"], match["at"] // per_ms]) < most
    ]


def shown(match: Match) -> str:
    plain = {key: value for key, value in match.items() if key not in ("id", "version")}
    return json.dumps(rounded(plain), sort_keys=True)


def check_counts(seen: Observed, *, is_end: bool) -> None:
    """What the user-defined task emitted is what its events, in order, make of it; those on which it failed are dead
    letters, and what it had done until then is not there.
    """
    if seen.was_rewound or all(plan.stage != TASK for plan in seen.plans):
        return
    # A stage has its own event time; a letter is written once, by whichever stage comes first.
    bad, misplaced = expected_dead(seen, TASK)
    aside = bad | misplaced | expected_late(seen, bad | misplaced, TASK).keys()
    expected: Counter[str] = Counter()
    failing: set[Place] = set()
    for partition in range(seen.partitions):
        taken: list[TakenEvent] = []
        for record in seen.inputs:
            event = record.event
            if record.place[1] != partition or record.place in aside or event is None:
                continue
            key = key_text(event.get("u"))
            assert key is not None
            taken.append(TakenEvent(event["ts"], key.decode(), is_failing(event)))
            if is_failing(event):
                failing.add(record.place)
        expected += expected_counts(sorted(taken, key=lambda each: each.time))
    found = Counter(text_of(value) for value in seen.counts)
    require(not found - expected, "no record but those that its events make", *(found - expected))
    require(not is_end or found == expected, "no record of a user-defined task is lost", *(expected - found))
    failed = {place_of(headers) for headers in seen.dead if is_failed(headers)}
    is_right = failed == failing if is_end else failed <= failing
    require(is_right, "an event on which a task's code fails is a dead letter", failed ^ failing)


# ---------------------------------------------------------------- states


def check_states(seen: Observed, log: Any, *, rebuilds: bool) -> None:
    """Each store is its changelog, byte by byte, and a rebuild from the source, by digest; no timer is due (P2, P9)."""
    alerts: Counter[tuple[str, str]] = Counter()
    for plan in seen.plans:
        for partition in range(seen.partitions):
            place = plan.stage, partition
            if place not in seen.stores:
                continue
            store, position = seen.stores[place], seen.positions.get(place)
            logged = dict(logged_rows(store)) | dict(dedup_rows(store))
            changelog = dict(seen.changelogs[place])
            require(
                logged == changelog, f"store and changelog of {place} are equal",
                [key for key in logged.keys() | changelog.keys() if logged.get(key) != changelog.get(key)],
            )  # fmt: skip
            if position is None:
                continue
            if place in seen.at_work:
                gone = {row_parts(row)[1] for row in logged if row[:1] == ROW} - seen.at_work[place]
                require(not gone, f"{place} has no states of rules that are gone", gone)
            watermark = seen.watermark(*place)
            if plan.stage == TASK:
                prefix = namespace(ROWS, "recent")
                times = [unwrapped(value)[0] for _, value in store.range(prefix, after(prefix))]
                is_right = all(time is not None and time > watermark for time in times)
                require(is_right, f"{place} has no rows that have expired", times, watermark)
            require(overdue_in(plan, store, watermark) is None, f"no timer of {place} is due and not raised")
            if rebuilds:
                again = MemoryStore()
                until = ReplayEnd({stream: each.next for stream, each in position.inputs.items()})
                rebuild(
                    log, plan, partition, again, until,
                    on_alerts=lambda pairs: alerts.update(named(value) for _, value in pairs),
                )  # fmt: skip
                require(
                    digest_of(plan, store) == digest_of(plan, again),
                    f"the state of {place} is what its source gives",
                )
    if rebuilds and not seen.was_rewound:
        check_rebuilt(seen, alerts)


def named(alert: bytes | None) -> tuple[str, str]:
    data = json.loads(alert or b"")
    return data["rule"], data["id"]


def check_rebuilt(seen: Observed, alerts: Counter[tuple[str, str]]) -> None:
    """A rebuild gives the alerts of the live run; not those of stages that are gone with the last of their rules."""
    known = {
        (text["id"], text["version"])
        for plan in seen.plans
        for partition in range(seen.partitions)
        for entry in seen.journals[plan.stage, partition]
        if entry.kind == "rules"
        for text in entry.facts.get("rules", ())
    }
    own = [alert for alert in seen.alerts if (alert["rule"], alert["version"]) in known]
    found = Counter((alert["rule"], alert["id"]) for alert in own)
    require(found == alerts, "a rebuild gives the same alerts", found - alerts, alerts - found)


def entries(values: Iterable[bytes | None]) -> list[JournalEntry]:
    return [unpack_entry(value) for value in values if value is not None]
