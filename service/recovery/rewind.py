"""`samovar rewind`: a stopped service set back to a moment of event time, state and offsets together.

    STATE/<partition>/rewind.part    the state of the moment, being folded; it takes the store's place at the end

One task after the other, of all stages; each is set back by the transaction that ends it (tasks/replay/rewind.py), or
not at all. A kill leaves some of them done: run again with the same moment, it passes over those.

A stage is set back in what it reads, and that is never taken back: what a stage before it forwarded or emitted stays
where it is, and is not written a second time (tasks/rules/replay_dedup.py). So each stage does again what it did, by
itself.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from samovar.changelog.cursors import read_all
from samovar.changelog.formats.journal import EntryKind, was_rewound
from samovar.changelog.formats.record import CHECKPOINT, ChangelogCheckpoint, Position, pack_checkpoint
from samovar.changelog.log import TopicPartition
from samovar.changelog.restore.point_in_time import last_position, materialize_at
from samovar.common.errors import Refused
from samovar.common.folders import PART, make_private
from samovar.patterns.explain.key_trace import iso_time
from samovar.service.query.state.view import position_data, watermark_text
from samovar.service.recovery.restore.run import alone, keep_emitted_watermarks, replace_store
from samovar.service.topology.stores import StateLocation, digest_of, plan_for, position_of, reading
from samovar.state import snapshots
from samovar.state.rocks import RocksStore
from samovar.state.store import Change
from samovar.state.store_lock import holding
from samovar.tasks.model.plan import MAIN
from samovar.tasks.replay.rebuild import ReplayEnd, begins_after_repartition, journal_of
from samovar.tasks.replay.repair import (
    ChangelogRepair,
    changes_between,
    refuse_members,
    repaired_offsets,
    source_until,
)
from samovar.tasks.replay.rewind import RewoundState, fold_back, write_back
from samovar.tasks.rules.replay_dedup import SKIP, SKIP_END, ReplayDedupFilter, rows_between, skip_rows
from samovar.tasks.runtime.stream_task import name_of

SKIP_ALERTS = "skip"  # alerts that were published, and are found again; "again" publishes them a second time
NEVER_RAN = "it never ran"


@dataclass(frozen=True, kw_only=True)
class TaskRewind:
    """What will happen to one task. `left` says why nothing will."""

    site: StateLocation
    partition: int
    watermark: int | None
    until: ReplayEnd
    position: Position | None
    left: str | None = None

    @property
    def name(self) -> str:
        return name_of(self.site.stage, self.partition)

    @property
    def part(self) -> Path:
        """Where the state of the moment is folded."""
        return self.site.store(self.partition).with_name(f"rewind{PART}")

    def data(self) -> dict[str, Any]:
        inputs = dict(self.until.inputs)
        return {**self.site.placed(self.partition), "watermark": self.watermark, "inputs": inputs, "left": self.left}


@dataclass(frozen=True, kw_only=True)
class RewoundTask:
    """One task that was set back."""

    planned: TaskRewind
    position: Position
    digest: str
    rows: int
    skips: int
    events: int

    def data(self) -> dict[str, Any]:
        return {
            **self.planned.site.placed(self.planned.partition),
            **position_data(self.position),
            "inputs_before": dict(self.planned.until.inputs),
            "digest": self.digest,
            "rows": self.rows,
            "alerts_to_skip": self.skips,
            "events_folded": self.events,
        }


# ---------------------------------------------------------------- what will happen


def plan_rewind(site: StateLocation, moment_ms: int) -> list[TaskRewind]:
    """Nothing is changed."""
    refuse_members(site.log, site.settings.service)
    plans = [_plan_task(each, partition, moment_ms) for each in site.stages() for partition in range(site.partitions)]
    known = [each for each in plans if each.left != NEVER_RAN]
    if not known:
        hint = "There is nothing to set back: `samovar run` begins at the beginning."
        raise Refused("nothing-processed", f"the service {site.settings.service} never ran", hint)
    if all(each.left is not None and each.watermark is not None and each.watermark < moment_ms for each in known):
        raise Refused(
            "as-of-future",
            f"no partition's event time has reached {iso_time(moment_ms)}",
            "A rewind goes back: name an event time before that.",
            "; ".join(f"{each.name}: {watermark_text(each.watermark)}" for each in known),
        )
    return plans


def _plan_task(site: StateLocation, partition: int, moment_ms: int) -> TaskRewind:
    log, settings = site.log, site.settings
    position = last_position(log, site.changelog(partition))
    never = TaskRewind(
        site=site, partition=partition, watermark=None, until=ReplayEnd({}), position=None, left=NEVER_RAN
    )
    try:
        until = source_until(
            log, site.plan, partition, settings.service, position, settings.delivery, site.shared_topics()
        )
    except Refused as refused:
        if refused.code != "nothing-processed":
            raise
        return never
    if position is None:
        # Of an input that stages share, the group knows; that this one took it nobody says.
        has_begun = bool(journal_of(log, site.plan, partition))
        return (
            TaskRewind(site=site, partition=partition, watermark=None, until=until, position=None)
            if has_begun
            else never
        )
    left = None
    if position.watermark is None or position.watermark < moment_ms:
        left = f"its event time is {watermark_text(position.watermark)}, which is before that"
    elif not position.rewinding and _is_there(site, partition, position, moment_ms):
        left = "it is there already"
    return TaskRewind(
        site=site, partition=partition, watermark=position.watermark, until=until, position=position, left=left
    )


def _is_there(site: StateLocation, partition: int, position: Position, moment_ms: int) -> bool:
    """Whether a rewind to this moment is the last thing that happened."""
    entries = journal_of(site.log, site.plan, partition)
    last = next((entry for entry in reversed(entries) if entry.kind == EntryKind.REWIND), None)
    if last is None or last.facts["to"] != moment_ms or position.journal != entries[-1].number:
        return False
    inputs = {name: each.next for name, each in position.inputs.items()}
    return inputs == dict(last.inputs) and all(
        entry.kind == EntryKind.ADVANCE for entry in entries if entry.number > last.number
    )


def plan_lines(plans: Sequence[TaskRewind], moment_ms: int, alerts: str) -> list[str]:
    again = "are not published again" if alerts == SKIP_ALERTS else "are published again"
    lines = [f"back to event time {iso_time(moment_ms)}; alerts after it that were published {again}"]
    for each in plans:
        if each.left is not None:
            lines.append(f"{each.name}: stays; {each.left}")
            continue
        places = ", ".join(f"{name} {offset:,}" for name, offset in each.until.inputs.items())
        lines.append(f"{each.name}: back from event time {watermark_text(each.watermark)} ({places})")
    return lines


# ---------------------------------------------------------------- doing it


def rewind_all(
    site: StateLocation,
    plans: Sequence[TaskRewind],
    moment_ms: int,
    alerts: str,
    on_progress: Callable[[TaskRewind, int], None],
) -> Iterator[RewoundTask]:
    """Fold all tasks first, so that one that cannot be folded leaves all as they are; then set one back after the
    other. Those that are done stay done, whatever becomes of the next.
    """
    todo = [planned for planned in plans if planned.left is None]
    if not todo:
        return
    settings = site.settings
    with ExitStack() as stack:
        stack.enter_context(alone(site.state))
        for planned in todo:
            stack.enter_context(holding(planned.site.store(planned.partition)))
        wanted = [planned.partition for planned in todo]
        repair = ChangelogRepair(site.log, site.plans, settings.service, settings.delivery, wanted)
        stack.callback(repair.close)
        published = [*published_after(site, moment_ms)] if alerts == SKIP_ALERTS else []
        folded = [(each, _fold(each, moment_ms, alerts, partial(on_progress, each))) for each in todo]
        for planned, rewound in folded:
            ids = {each.id for each in published if each.may_come_from(planned)}
            with closing(RocksStore(planned.part)) as store:
                rows = _write_back(planned, store, repair, rewound, ids)
                plan = plan_for(planned.site, planned.partition, rewound.position)
                digest = digest_of(plan, store)
                store.flush()
            replace_store(planned.part, planned.site.store(planned.partition))
            yield RewoundTask(
                planned=planned,
                position=rewound.position,
                digest=digest,
                rows=rows,
                skips=len(ids),
                events=rewound.events,
            )


def _fold(planned: TaskRewind, moment_ms: int, alerts: str, on_progress: Callable[[int], None]) -> RewoundState:
    """The state of the moment, in a store next to the live one. Nothing else is touched."""
    site, part = planned.site, planned.part
    shutil.rmtree(part, ignore_errors=True)
    make_private(part.parent)
    start = _open_snapshot(planned, moment_ms)
    facts = {"alerts": alerts, "time_ms": int(time.time() * 1000)}
    with closing(RocksStore(part)) as store:
        return fold_back(
            site.log, site.plan, planned.partition, store, planned.until, moment_ms, facts, on_progress, start
        )


def _write_back(
    planned: TaskRewind, store: RocksStore, repair: ChangelogRepair, rewound: RewoundState, ids: set[bytes]
) -> int:
    """The changelog's difference goes out, and the store follows from there; how many rows that were."""
    site, partition = planned.site, planned.partition
    service, plan = site.settings.service, site.plan
    changelog = site.changelog(partition)  # as it is now that nobody else writes
    image = materialize_at(site.log, changelog, changelog.bounds.end)
    keep_emitted_watermarks(site, store, image)
    told = position_of(store)
    assert told is not None, "a fold ends with its position"
    rewound = replace(rewound, position=told)
    old = ReplayDedupFilter.of(image)
    emitted = set() if plan.task is None else {each.topic for each in plan.task.emits.values()}
    furthest = old.furthest(planned.until.inputs, planned.watermark)
    skips = skip_rows(ids, *furthest, old.topics | told.forwards.keys() | emitted)
    changes: list[Change] = [*changes_between(store, image), *rows_between(skips, image)]
    committed = site.log.committed(service, [TopicPartition(each.topic, partition) for each in told.inputs.values()])
    before = {at: offset for at, offset in committed.items() if offset is not None}
    after = repaired_offsets(site.log, service, told, partition, site.shared_topics())
    end = write_back(repair, plan.topics, partition, changes, position_of(image), rewound, (before, after))
    topic, at = changelog.topic, changelog.at
    checkpoint = ChangelogCheckpoint(
        topic=at.topic,
        topic_id=topic.id,
        partition=at.partition,
        partitions=topic.partitions,
        next=end,
        time_ms=int(time.time() * 1000),
    )
    stale: list[Change] = [(row, None) for row, _ in store.range(SKIP, SKIP_END)]
    store.write([*stale, *skips, (CHECKPOINT, pack_checkpoint(checkpoint))])
    return len(changes)


def _open_snapshot(planned: TaskRewind, moment_ms: int) -> Position | None:
    """Begin with the newest snapshot from before the moment, where the input no longer goes back to the beginning or to
    spare the way from there; None: there is none.
    """
    site, partition = planned.site, planned.partition
    entries = journal_of(site.log, site.plan, partition)
    for snapshot in reversed([*snapshots.listed(site.folder(partition) / "snapshots")]):
        watermark_ms = snapshot.manifest.watermark_ms
        if watermark_ms is None or watermark_ms > moment_ms:
            continue
        try:
            snapshots.verify(snapshot)
        except snapshots.BadSnapshot:
            continue
        with reading(snapshot.folder) as store:
            position = position_of(store)
        if position is None or not begins_after_repartition(entries, position) or not _may_begin(planned, position):
            continue
        nexts = {name: each.next for name, each in position.inputs.items()}
        if was_rewound(entries, position.journal, nexts):
            continue
        snapshots.open_copy(snapshot, planned.part)
        return position
    return None


def _may_begin(planned: TaskRewind, position: Position) -> bool:
    """Whether it is of this input, not ahead of what was processed, and what it waits for is still there."""
    log, until = planned.site.log, planned.until.inputs
    places = {TopicPartition(each.topic, planned.partition): each for each in position.inputs.values()}
    topics = log.topics([at.topic for at in places])
    if any(at.topic not in topics or topics[at.topic].id != each.topic_id for at, each in places.items()):
        return False
    bounds = log.bounds(list(places))
    is_ahead = any(each.next > until.get(name, each.next) for name, each in position.inputs.items())
    return not is_ahead and all(bounds[at].begin <= each.replay_from for at, each in places.items())


def done_line(done: RewoundTask) -> str:
    before, position = done.planned.until.inputs, done.position
    places = ", ".join(f"{name} {before.get(name, 0):,} to {each.next:,}" for name, each in position.inputs.items())
    skips = f"; {done.skips:,} alerts to skip" if done.skips else ""
    return (
        f"{done.planned.name}: set back to event time {watermark_text(position.watermark)}"
        f" ({places}), {done.rows:,} rows of the changelog changed{skips}\n  digest {done.digest}"
    )


# ---------------------------------------------------------------- alerts that were published


@dataclass(frozen=True)
class PublishedAlert:
    """An alert that was published: its id, its rule, and the partition of its events where it names any."""

    id: bytes
    rule: str
    partition: int | None

    def may_come_from(self, planned: TaskRewind) -> bool:
        """Whether a task may have found it. In a later stage, events of all partitions come together."""
        if planned.site.stage != MAIN:
            return planned.position is not None and self.rule in planned.position.rules
        return self.partition is None or self.partition == planned.partition


def published_after(site: StateLocation, moment_ms: int) -> Iterator[PublishedAlert]:
    """The alerts at or after the moment; others may write to the topic, too."""
    topic = site.plan.topics.alerts
    known = site.log.topics([topic]).get(topic)
    for partition in range(known.partitions if known is not None else 0):
        batches = read_all(site.log, TopicPartition(topic, partition))
        for _, value in chain.from_iterable(records.pairs() for records in batches):
            try:
                alert: Any = json.loads(value or b"null")
            except ValueError:
                continue
            is_alert = isinstance(alert, dict) and isinstance(alert.get("id"), str) and isinstance(alert.get("at"), int)
            if is_alert and alert["at"] >= moment_ms:
                places = [place for places in alert.get("steps", {}).values() for place in places]
                home = int(places[0][1]) if places and len(places[0]) == 3 else None
                yield PublishedAlert(alert["id"].encode(), str(alert.get("rule")), home)
