"""Whether a partition's store, its changelog and its source say the same (P2), key by key.

The store says which offsets it stands for; the changelog is replayed up to there, and the input folded again up to the
offsets of its position. Store and changelog are equal byte by byte. Against the source, states are compared as a digest
sees them: how they came about does not show. Whatever event time has passed must have been raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias

from samovar.changelog.formats.journal import was_rewound
from samovar.changelog.formats.record import ROW, USER, Position, key_prefix, row_parts
from samovar.changelog.log import TopicPartition
from samovar.changelog.restore.point_in_time import fill, first_time, is_exact
from samovar.changelog.restore.restore import checkpoint_of, next_step
from samovar.common.errors import Refused
from samovar.common.texts import counted
from samovar.patterns.engine.matcher import StateError, canonical_rows, decode_key
from samovar.patterns.explain.key_trace import iso_time
from samovar.patterns.syntax.tree import Scalar
from samovar.service.query.state.view import (
    described,
    key_text,
    named,
    position_data,
    rule_name,
    task_row_lines,
    watermark_text,
)
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
from samovar.tasks.replay.rebuild import RebuildResult, ReplayEnd, begins_after_repartition, journal_of, rebuild
from samovar.tasks.replay.repair import logged_rows
from samovar.tasks.rules.timer_index import overdue_rows
from samovar.tasks.runtime.stream_task import name_of
from samovar.tasks.user.timers import overdue_timers

FROM_A_SNAPSHOT = ("input-expired", "state-repartitioned")  # why a fold cannot begin at the beginning
UNREADABLE = b"\x00unreadable"
OnProgress = Callable[[str, int], None]
Scratch: TypeAlias = Callable[[], TaskStore]  # an empty store to replay into
Differing: TypeAlias = tuple[str, tuple[Scalar, ...]]  # rule and key


@dataclass(frozen=True, kw_only=True)
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


@dataclass(kw_only=True)
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
        return {
            "partition": self.partition,
            **({} if self.stage == MAIN else {"stage": self.stage}),
            "equal": self.is_equal,
            "offset": self.offset,
            **position_data(self.position),
            "digests": self.digests,
            "differences": [each.data() for each in self.differences],
            "overdue": None if self.overdue is None else asdict(self.overdue),
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
    verdict = Verdict(partition=partition, stage=site.stage, listed=keys)
    changelog = site.changelog(partition)
    check_sound(site.store(partition), rows=True)
    with reading(site.store(partition)) as store:
        checkpoint = checkpoint_of(store)
        verdict.offset = changelog.bounds.begin if checkpoint is None else checkpoint.next
        if next_step(checkpoint, changelog, now_ms) is None or not is_exact(
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
            differing = [row for row, _, _ in differences(logged_rows(store), logged_rows(image))]
            if differing:
                sides = ("store", "changelog")
                verdict.differences.append(_first_difference(sides, plan, store, image, differing, keys))
        if position is not None:
            _compare_source(site, plan, store, position, verdict, scratch(), on_progress)
    if verdict.offset < changelog.bounds.end:
        verdict.notes.append(
            f"the changelog goes on to offset {changelog.bounds.end:,}; the store follows when it runs"
        )
    return verdict


def verify_logs(
    site: StateLocation,
    partition: int,
    on_progress: OnProgress = lambda *_: None,
    *,
    scratch: Scratch = MemoryStore,
    keys: int = 0,
) -> Verdict:
    """Compare the changelog up to its end and the source, where the store is on another machine."""
    verdict, changelog = Verdict(partition=partition, stage=site.stage, listed=keys), site.changelog(partition)
    verdict.offset = changelog.bounds.end
    verdict.notes.append("the store is not looked at from here: `samovar verify` on its own machine does it")
    image = scratch()
    fill(image, site.log, changelog, verdict.offset, lambda done: on_progress("changelog", done))
    position = verdict.position = position_of(image)
    plan = plan_for(site, partition, position)
    verdict.digests["changelog"] = _digest(plan, image)
    verdict.overdue = overdue_in(plan, image, watermark_of(position))
    if position is not None:
        _compare_source(site, plan, image, position, verdict, scratch(), on_progress, "changelog")
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


# ---------------------------------------------------------------- what differs


def _name_of(plan: Plan, row: bytes) -> Differing:
    """What a row belongs to, and its key."""
    if row[:1] == USER:
        what, text = named(row)
        return what, (text,) if text else ()
    key, name, _, _ = row_parts(row)
    return rule_name(plan, name), decode_key(key)


def _first_difference(
    sides: tuple[str, str], plan: Plan, left: Readable, right: Readable, differing: Sequence[bytes], listed: int
) -> StateDifference:
    """The first of the rows that differ, what each side holds there, and the keys of up to so many."""
    row = next((row for row in differing if row[:1] in (ROW, USER)), differing[0])
    if row[:1] == USER:
        held = (task_row_lines(row, left.get(row)), task_row_lines(row, right.get(row)))
    elif row[:1] == ROW:
        held = (_held_lines(plan, left, row_parts(row)[0]), _held_lines(plan, right, row_parts(row)[0]))
    else:
        values = (left.get(row), right.get(row))
        one, other = (["nothing"] if each is None else [each.decode("utf-8", "replace")] for each in values)
        return StateDifference(sides=sides, rule="position", key=(), held=(one, other), rows=len(differing))
    keys: dict[Differing, None] = {}
    for each in differing:
        if len(keys) >= listed:
            break
        if each[:1] == row[:1]:
            keys[_name_of(plan, each)] = None
    rule, key = _name_of(plan, row)
    return StateDifference(sides=sides, rule=rule, key=key, held=held, rows=len(differing), keys=tuple(keys))


def _held_lines(plan: Plan, store: Readable, key: bytes) -> list[str]:
    prefix = key_prefix(key)
    rows = dict(store.range(prefix, prefix + b"\xff"))  # what follows is the length of a name
    if not rows:
        return ["nothing"]
    lines = [line.removeprefix("  ") for line in described(plan, key, rows).lines()]
    return [*lines, f"({len(rows)} rows, {sum(map(len, rows.values())):,} bytes)"]


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
    side: str = "store",
) -> None:
    until = ReplayEnd({stream: each.next for stream, each in position.inputs.items()}, position.journal)
    sides = (side, "source")
    try:
        rebuilt = _fold_source(site, verdict, folded, until, on_progress)
    except Refused as refused:
        if refused.code not in ("input-expired", "journal-cut", "state-repartitioned"):
            raise
        places = [TopicPartition(each.topic, verdict.partition) for each in position.inputs.values()]
        times = [first_time(site.log, at, *bounds) for at, bounds in site.log.bounds(places).items()]
        known = [each for each in times if each is not None]
        since = f"before {iso_time(max(known))} (log time), and " if known else ""
        verdict.unverifiable.append(f"{since}no snapshot helps: {refused.what}")
        return
    verdict.events = rebuilt.events
    verdict.digests["source"] = digest_of(rebuilt.plan, folded)
    if rebuilt.position.watermark != position.watermark:
        held = ([watermark_text(position.watermark)], [watermark_text(rebuilt.position.watermark)])
        verdict.differences.append(StateDifference(sides=sides, rule="event time", key=(), held=held, rows=1))
    if verdict.digests["source"] == verdict.digests[side]:
        return
    if plan.task is None:
        left, right = (canonical(plan, each, watermark_of(position)) for each in (store, folded))
        rows = [ROW + row for row, _, _ in differences(left, right)]
    else:
        entries = journal_of(site.log, plan, verdict.partition)
        versions = {entry.facts["task"]["version"] for entry in entries if "task" in entry.facts} | {plan.task.version}
        if len(versions) > 1:
            verdict.unverifiable.append(
                f"the state was made by {len(versions)} versions of the task's code, and only today's can be run over"
                " the input"
            )
            return
        rows = [row for row, _, _ in differences(logged_rows(store), logged_rows(folded)) if row[:1] == USER]
    verdict.differences.append(_first_difference(sides, plan, store, folded, rows, verdict.listed))


def _fold_source(
    site: StateLocation, verdict: Verdict, folded: TaskStore, until: ReplayEnd, on_progress: OnProgress
) -> RebuildResult:
    """From the beginning; where the input no longer goes back there, from a snapshot."""
    fold = partial(rebuild, site.log, site.plan, verdict.partition, folded, until)
    try:
        return fold(on_progress=partial(on_progress, "source"))
    except Refused as refused:
        start = _oldest_snapshot(site, verdict, folded, until) if refused.code in FROM_A_SNAPSHOT else None
        if start is None:
            raise
    return fold(on_progress=partial(on_progress, "source"), start=start)


def _oldest_snapshot(site: StateLocation, verdict: Verdict, folded: TaskStore, until: ReplayEnd) -> Position | None:
    """Fill a store from the oldest snapshot whose input is still there, and say where it stands."""
    entries = journal_of(site.log, site.plan, verdict.partition)
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
            if position is None or not begins_after_repartition(entries, position):
                continue
            replay_from = {
                TopicPartition(each.topic, verdict.partition): each.replay_from for each in position.inputs.values()
            }
            if any(bounds.begin > replay_from[at] for at, bounds in site.log.bounds(list(replay_from)).items()):
                continue
            nexts = {stream: each.next for stream, each in position.inputs.items()}
            if was_rewound(journal_of(site.log, site.plan, verdict.partition), position.journal, nexts):
                continue
            folded.write(store.range())
        verdict.notes.append(
            f"unverifiable before event time {watermark_text(position.watermark)}: the input no longer goes back to the"
            f" beginning, and snapshot {snapshot.number} was taken for true"
        )
        return position
    return None


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
    moment = "no event yet" if known is None else f"event time {watermark_text(known.watermark)}"
    name, where = name_of(verdict.stage, verdict.partition), f"at {moment}, changelog offset {verdict.offset:,}"
    if verdict.is_equal:
        word = "equal" if not verdict.unverifiable else "equal as far as it can be verified"
        digest = next(iter(verdict.digests.values()), "")[:16]
        lines = [f"{name}: {word} ({', '.join(verdict.digests)}) {where}; digest {digest}"]
    else:
        lines = [f"{name}: DIFFERENT {where}"]
    for each in verdict.differences:
        left, right = each.sides
        key = f", key {key_text(each.key)}" if each.key else ""
        lines.append(f"  {left} and {right} differ in {counted(each.rows, 'row')}; the first: {each.rule}{key}")
        for side, held in zip(each.sides, each.held, strict=True):
            lines += [f"    {side}:", *(f"      {line}" for line in held)]
        lines += [f"    {rule}, key {key_text(found)}" for rule, found in each.keys]
    if (due := verdict.overdue) is not None:
        lines.append(
            f"  {counted(due.timers, 'timer')} not raised that event time has passed; the first:"
            f" {due.rule}, key {key_text(due.key)}, due at {iso_time(due.at)}"
        )
    lines += [f"  unverifiable: {reason}" for reason in verdict.unverifiable]
    return lines + [f"  {note}" for note in verdict.notes]
