"""Whether a partition's store, its changelog and its source say the same (P2), key by key.

The store says which offsets it stands for; the changelog is replayed up to there, and the input folded again up to the
offsets of its position. Store and changelog are equal byte by byte. Against the source, states are compared as a digest
sees them: how they came about does not show. Whatever event time has passed must have been raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeAlias

from samovar.changelog.formats.journal import was_set_back
from samovar.changelog.formats.record import ROW, USER, Position, key_prefix, row_parts
from samovar.changelog.log import TopicPartition
from samovar.changelog.restore.point_in_time import fill, first_time, is_exact
from samovar.changelog.restore.restore import following_of, next_step
from samovar.common.errors import Refused
from samovar.patterns.engine.matcher import StateError, canonical_rows, decode_key
from samovar.patterns.explain.key_trace import iso_time
from samovar.patterns.syntax.tree import Scalar
from samovar.service.query.state.view import described, key_text, text_of
from samovar.service.query.task_state import named, shown, versions_of
from samovar.service.topology.stores import (
    ROWS_END,
    StateLocation,
    digest_of,
    limits_of,
    plan_for,
    position_of,
    reading,
    rows_of,
    watermark_of,
)
from samovar.state import snapshots
from samovar.state.memory import MemoryStore
from samovar.state.soundness import check_sound
from samovar.state.store import Readable, TaskStore
from samovar.tasks.model.plan import MAIN, Plan
from samovar.tasks.replay.rebuild import Rebuilt, Until, journal_of, rebuild
from samovar.tasks.replay.repair import logged_rows
from samovar.tasks.rules.timer_index import overdue_rows
from samovar.tasks.runtime.stream_task import name_of
from samovar.tasks.user.timers import overdue_timers

UNREADABLE = b"\x00unreadable"
OnProgress = Callable[[str, int], None]
Scratch: TypeAlias = Callable[[], TaskStore]  # an empty store to replay into
Differing: TypeAlias = tuple[str, tuple[Scalar, ...]]  # rule and key


@dataclass(frozen=True)
class StateDifference:
    """The first thing that two sides do not agree on, and in how many rows they do not."""

    sides: tuple[str, str]
    rule: str
    key: tuple[Scalar, ...]
    held: tuple[Sequence[str], Sequence[str]]  # lines, of each side
    rows: int
    keys: tuple[Differing, ...] = ()  # as many as were asked for

    def data(self) -> dict[str, Any]:
        left, right = self.sides
        held = {left: list(self.held[0]), right: list(self.held[1])}
        found = {"between": [left, right], "rule": self.rule, "key": list(self.key), "held": held, "rows": self.rows}
        keys = [{"rule": rule, "key": list(key)} for rule, key in self.keys]
        return found | ({"keys": keys} if keys else {})


@dataclass(frozen=True)
class Overdue:
    """Timers that event time has passed, and that were not raised: how many, and the first of them."""

    timers: int
    rule: str
    key: tuple[Scalar, ...]
    at: int

    def data(self) -> dict[str, Any]:
        return {"timers": self.timers, "rule": self.rule, "key": list(self.key), "at": self.at}


@dataclass
class Verdict:
    """What was found of one task."""

    partition: int
    stage: str = MAIN
    position: Position | None = None
    offset: int = 0  # of the changelog
    events: int = 0  # folded again
    digests: dict[str, str] = field(default_factory=dict)
    differences: list[StateDifference] = field(default_factory=list)
    overdue: Overdue | None = None
    unverifiable: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    listed: int = 0  # keys to list where sides differ

    @property
    def is_equal(self) -> bool:
        return not self.differences and self.overdue is None

    def data(self) -> dict[str, Any]:
        known = self.position
        stage = {} if self.stage == MAIN else {"stage": self.stage}
        return {
            "partition": self.partition,
            **stage,
            "equal": self.is_equal,
            "offset": self.offset,
            "watermark": None if known is None else known.watermark,
            "inputs": {} if known is None else {name: each.next for name, each in known.inputs.items()},
            "digests": self.digests,
            "differences": [each.data() for each in self.differences],
            "overdue": None if self.overdue is None else self.overdue.data(),
            "unverifiable": self.unverifiable,
            "notes": self.notes,
        }


def verify(
    site: StateLocation,
    partition: int,
    now_ms: int,
    on_progress: OnProgress = lambda *_: None,
    *,
    scratch: Scratch = MemoryStore,
    keys: int = 0,
) -> Verdict:
    """Compare all that there is of a partition. Of what differs, up to so many keys are listed."""
    verdict = Verdict(partition, site.stage, listed=keys)
    changelog = site.changelog(partition)
    check_sound(site.store(partition), rows=True)
    with reading(site.store(partition)) as store:
        following = following_of(store)
        verdict.offset = changelog.bounds.begin if following is None else following.next
        if next_step(following, changelog, now_ms) is None or not is_exact(
            site.log, changelog, verdict.offset, site.settings.changelog.min_compaction_lag_ms, now_ms
        ):
            verdict.unverifiable.append(
                f"the changelog may have been compacted since the store's place in it, offset {verdict.offset:,};"
                " `samovar restore` brings the store to its end"
            )
        position = verdict.position = position_of(store)
        plan = plan_for(site, partition, position)
        verdict.digests["store"] = _digest(plan, store)
        verdict.overdue = overdue_in(plan, store, watermark_of(position))
        if not verdict.unverifiable:
            image = scratch()
            fill(image, site.log, changelog, verdict.offset, lambda done: on_progress("changelog", done))
            verdict.digests["changelog"] = _digest(plan, image)
            _compare_rows(plan, store, image, verdict)
        if position is not None:
            _compare_source(site, plan, store, position, verdict, scratch(), on_progress)
    if verdict.offset < changelog.bounds.end:
        verdict.notes.append(
            f"the changelog goes on to offset {changelog.bounds.end:,}; the store follows when it runs"
        )
    return verdict


def _digest(plan: Plan, store: Readable) -> str:
    try:
        return digest_of(plan, store)
    except StateError:
        return "unreadable"


# ---------------------------------------------------------------- against event time


def overdue_in(plan: Plan, store: Readable, watermark: int) -> Overdue | None:
    """A digest does not show them: it is over states as they are once their timers were raised."""
    if plan.task is not None:
        called = sorted((at, name) for name, at in overdue_timers(store, watermark))
        return Overdue(len(called), "timer", (called[0][1],), called[0][0]) if called else None
    rows = overdue_rows(store.range(ROW, ROWS_END), watermark)
    found = sorted((at, row) for row, at in rows if row_parts(row)[1] in plan.program.stores)
    if not found:
        return None
    key, name, _, _ = row_parts(found[0][1])
    return Overdue(len(found), rule_name(plan, name), decode_key(key), found[0][0])


# ---------------------------------------------------------------- against the changelog


def _compare_rows(plan: Plan, store: Readable, image: Readable, verdict: Verdict) -> None:
    differing = [row for row, _, _ in differences(logged_rows(store), logged_rows(image))]
    if not differing:
        return
    row = next((row for row in differing if row[:1] in (ROW, USER)), differing[0])
    sides = ("store", "changelog")
    if row[:1] == USER:
        verdict.differences.append(_of_task(sides, store, image, differing, verdict.listed))
    elif row[:1] == ROW:
        key, name, _, _ = row_parts(row)
        held = (_held(plan, store, key), _held(plan, image, key))
        keys = _keys_of(plan, differing, verdict.listed)
        verdict.differences.append(
            StateDifference(sides, rule_name(plan, name), decode_key(key), held, len(differing), keys)
        )
    else:
        held = (_shown(store.get(row)), _shown(image.get(row)))
        verdict.differences.append(StateDifference(sides, "position", (), held, len(differing)))


def _keys_of(plan: Plan, differing: Iterable[bytes], most: int) -> tuple[Differing, ...]:
    """The keys of rows of rules, each once a rule."""
    found: dict[Differing, None] = {}
    for row in differing:
        if len(found) >= most:
            break
        if row[:1] == ROW:
            key, name, _, _ = row_parts(row)
            found[rule_name(plan, name), decode_key(key)] = None
    return tuple(found)


def _of_task(
    sides: tuple[str, str], left: Readable, right: Readable, differing: Sequence[bytes], listed: int
) -> StateDifference:
    """The first difference in the rows of a user's task."""
    row = next(row for row in differing if row[:1] == USER)
    what, key = named(row)
    held = (shown(row, left.get(row)), shown(row, right.get(row)))
    keys = dict.fromkeys(_of_user(row) for row in differing if row[:1] == USER)
    return StateDifference(sides, what, (key,) if key else (), held, len(differing), tuple(keys)[:listed])


def _of_user(row: bytes) -> Differing:
    what, key = named(row)
    return what, (key,) if key else ()


def _shown(value: bytes | None) -> list[str]:
    return ["nothing"] if value is None else [value.decode("utf-8", "replace")]


def _held(plan: Plan, store: Readable, key: bytes) -> list[str]:
    prefix = key_prefix(key)
    rows = dict(store.range(prefix, prefix + b"\xff"))  # what follows is the length of a name
    lines = text_of(described(plan, key, rows))
    size = sum(map(len, rows.values()))
    return (
        [line.removeprefix("  ") for line in lines] + [f"({len(rows)} rows, {size:,} bytes)"] if rows else ["nothing"]
    )


def rule_name(plan: Plan, store: str) -> str:
    """The rule, or the history function, that a store's name stands for."""
    known = plan.program.histories.get(store)
    return store.partition("@")[0] if known is None else f"a history function of {known[0]}"


def differences(
    left: Iterable[tuple[bytes, bytes]], right: Iterable[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Rows that are on one side only or differ; both sides in order of keys."""
    lefts, rights = iter(left), iter(right)
    one, other = next(lefts, None), next(rights, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one[0] < other[0]):
            assert one is not None
            yield one[0], one[1], None
            one = next(lefts, None)
        elif one is None or other[0] < one[0]:
            yield other[0], None, other[1]
            other = next(rights, None)
        else:
            if one[1] != other[1]:
                yield one[0], one[1], other[1]
            one, other = next(lefts, None), next(rights, None)


# ---------------------------------------------------------------- against the source


def _compare_source(
    site: StateLocation,
    plan: Plan,
    store: Readable,
    position: Position,
    verdict: Verdict,
    folded: TaskStore,
    on_progress: OnProgress,
) -> None:
    until = Until({stream: each.next for stream, each in position.inputs.items()}, position.journal)
    try:
        rebuilt = _rebuilt(site, verdict, folded, until, on_progress)
    except Refused as refused:
        if refused.code not in ("input-expired", "journal-cut"):
            raise
        verdict.unverifiable.append(_before_when(site, verdict.partition, position) + refused.what)
        return
    verdict.events = rebuilt.events
    verdict.digests["source"] = digest_of(rebuilt.plan, folded)
    if rebuilt.position.watermark != position.watermark:
        held = ([_moment(position)], [_moment(rebuilt.position)])
        verdict.differences.append(StateDifference(("store", "source"), "event time", (), held, 1))
    if verdict.digests["source"] == verdict.digests["store"]:
        return
    if plan.task is None:
        verdict.differences.append(_first_in_source(plan, store, folded, position, verdict))
    elif (versions := versions_of(journal_of(site.log, plan, verdict.partition), plan.task.version)) > 1:
        verdict.unverifiable.append(
            f"the state was made by {versions} versions of the task's code, and only today's can be run over the input"
        )
    else:
        rows = [row for row, _, _ in differences(logged_rows(store), logged_rows(folded)) if row[:1] == USER]
        verdict.differences.append(_of_task(("store", "source"), store, folded, rows, verdict.listed))


def _moment(position: Position) -> str:
    return "none yet" if position.watermark is None else iso_time(position.watermark)


def _rebuilt(
    site: StateLocation, verdict: Verdict, folded: TaskStore, until: Until, on_progress: OnProgress
) -> Rebuilt:
    def told(events: int) -> None:
        on_progress("source", events)

    try:
        return rebuild(site.log, site.plan, verdict.partition, folded, until, on_progress=told)
    except Refused as refused:
        start = _oldest_snapshot(site, verdict, folded, until) if refused.code == "input-expired" else None
        if start is None:
            raise
    return rebuild(site.log, site.plan, verdict.partition, folded, until, on_progress=told, start=start)


def _oldest_snapshot(site: StateLocation, verdict: Verdict, folded: TaskStore, until: Until) -> Position | None:
    """Fill a store from the oldest snapshot whose input is still there, and say where it stands."""
    for snapshot in snapshots.listed(site.folder(verdict.partition) / "snapshots"):
        if (snapshot.manifest.journal or 0) > (until.journal or 0):
            continue
        try:
            snapshots.verify(snapshot)
        except snapshots.BadSnapshot as bad:
            verdict.notes.append(f"snapshot {snapshot.number} was passed over: {bad}")
            continue
        with reading(snapshot.folder) as store:
            position = position_of(store)
            if position is None or not _inputs_hold(site, verdict.partition, position):
                continue
            nexts = {stream: each.next for stream, each in position.inputs.items()}
            if was_set_back(journal_of(site.log, site.plan, verdict.partition), position.journal, nexts):
                continue
            folded.write(store.range())
        verdict.notes.append(
            f"unverifiable before event time {_moment(position)}: the input no longer goes back to the beginning, and"
            f" snapshot {snapshot.number} was taken for true"
        )
        return position
    return None


def _before_when(site: StateLocation, partition: int, position: Position) -> str:
    """From when on the input is there, in words."""
    places = [TopicPartition(each.topic, partition) for each in position.inputs.values()]
    times = [first_time(site.log, at, *bounds) for at, bounds in site.log.bounds(places).items()]
    known = [each for each in times if each is not None]
    return f"before {iso_time(max(known))} (log time), and no snapshot helps: " if known else "no snapshot helps: "


def _inputs_hold(site: StateLocation, partition: int, position: Position) -> bool:
    places = {TopicPartition(each.topic, partition): each.safe for each in position.inputs.values()}
    return all(bounds.begin <= places[at] for at, bounds in site.log.bounds(list(places)).items())


def _first_in_source(
    plan: Plan, store: Readable, folded: Readable, position: Position, verdict: Verdict
) -> StateDifference:
    left, right = (canonical(plan, each, watermark_of(position)) for each in (store, folded))
    differing = [row for row, _, _ in differences(left, right)]
    key, name, _, _ = row_parts(ROW + differing[0])
    held = (_held(plan, store, key), _held(plan, folded, key))
    keys = _keys_of(plan, (ROW + row for row in differing), verdict.listed)
    return StateDifference(("store", "source"), rule_name(plan, name), decode_key(key), held, len(differing), keys)


def canonical(plan: Plan, store: Readable, watermark: int) -> list[tuple[bytes, bytes]]:
    """States as a digest sees them. One that cannot be read stands for itself, and differs from every other."""
    program, limits = plan.program, limits_of(plan)
    try:
        return list(canonical_rows(program, rows_of(store), watermark, limits, plan.tunables))
    except StateError:
        pass
    found: list[tuple[bytes, bytes]] = []
    for _, group in groupby(rows_of(store), key=lambda pair: row_parts(ROW + pair[0])[:2]):
        rows = list(group)
        try:
            found += canonical_rows(program, rows, watermark, limits, plan.tunables)
        except StateError:
            found.append((rows[0][0], UNREADABLE))
    return found


# ---------------------------------------------------------------- as text


def text_of_verdict(verdict: Verdict) -> list[str]:
    """A line or more for a partition."""
    known = verdict.position
    moment = "no event yet" if known is None else f"event time {_moment(known)}"
    sides = ", ".join(verdict.digests)
    digest = verdict.digests.get("store", "")[:16]
    head = f"{name_of(verdict.stage, verdict.partition)}: "
    if verdict.is_equal:
        word = "equal" if not verdict.unverifiable else "equal as far as it can be verified"
        lines = [f"{head}{word} ({sides}) at {moment}, changelog offset {verdict.offset:,}; digest {digest}"]
    else:
        lines = [f"{head}DIFFERENT at {moment}, changelog offset {verdict.offset:,}"]
    for each in verdict.differences:
        left, right = each.sides
        key = f", key {key_text(each.key)}" if each.key else ""
        lines.append(
            f"  {left} and {right} differ in {each.rows:,} row{'s' * (each.rows != 1)}; the first: {each.rule}{key}"
        )
        for side, held in zip(each.sides, each.held, strict=True):
            lines += [f"    {side}:", *(f"      {line}" for line in held)]
        lines += [f"    {rule}, key {key_text(found)}" for rule, found in each.keys]
    if (due := verdict.overdue) is not None:
        lines.append(
            f"  {due.timers:,} timer{'s' * (due.timers != 1)} not raised that event time has passed; the first:"
            f" {due.rule}, key {key_text(due.key)}, due at {iso_time(due.at)}"
        )
    lines += [f"  unverifiable: {reason}" for reason in verdict.unverifiable]
    return lines + [f"  {note}" for note in verdict.notes]
