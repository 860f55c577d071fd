"""`samovar rewind`: a stopped service set back to a moment of event time, state and offsets together.

    STATE/<partition>/rewind.part    the state of the moment, being folded; it takes the store's place at the end

One task after the other, of all stages; each is set back by the transaction that ends it (tasks/replay/rewind.py), or
not at all. A kill leaves some of them done: run again with the same moment, it passes over those.

A stage is set back in what it reads, and that is never taken back: what a stage before it forwarded or emitted stays
where it is, and is not written a second time (tasks/rules/replay_dedup.py). So each stage does again what it did, by
itself.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from samovar.changelog.formats.journal import was_set_back
from samovar.changelog.formats.record import FOLLOWING, ChangelogCheckpoint, Position, pack_following
from samovar.changelog.log import TopicPartition
from samovar.changelog.restore.point_in_time import materialize_at
from samovar.common.folders import PART, make_private
from samovar.service.recovery.restore.run import alone, keep_told, put_in_place
from samovar.service.recovery.rewind_plan import SKIP_ALERTS, TaskRewind, moment_text, placed, published_after
from samovar.service.topology.stores import StateLocation, digest_of, plan_for, position_of, reading
from samovar.state import snapshots
from samovar.state.rocks import RocksStore
from samovar.state.store import Change
from samovar.state.store_lock import holding
from samovar.tasks.model.plan import Plan
from samovar.tasks.replay.rebuild import journal_of
from samovar.tasks.replay.repair import ChangelogRepair, changes_between, repaired_offsets
from samovar.tasks.replay.rewind import RewoundState, fold_back, write_back
from samovar.tasks.rules.replay_dedup import SKIP, SKIP_END, ReplayDedupFilter, rows_between, skip_rows
from samovar.tasks.runtime.stream_task import name_of

OnProgress = Callable[[int], None]


@dataclass(frozen=True)
class RewoundTask:
    """One task that was set back."""

    stage: str
    partition: int
    position: Position
    before: Mapping[str, int]
    digest: str
    rows: int
    skips: int
    events: int

    def data(self) -> dict[str, Any]:
        return {
            **placed(self.stage, self.partition),
            "watermark": self.position.watermark,
            "inputs": {name: each.next for name, each in self.position.inputs.items()},
            "inputs_before": dict(self.before),
            "digest": self.digest,
            "rows": self.rows,
            "alerts_to_skip": self.skips,
            "events_folded": self.events,
        }


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
            stack.enter_context(holding(site.at(planned.stage).store(planned.partition)))
        wanted = [planned.partition for planned in todo]
        repair = ChangelogRepair(site.log, site.plans, settings.service, settings.delivery, wanted)
        stack.callback(repair.close)
        published = published_after(site, moment_ms) if alerts == SKIP_ALERTS else []
        folded = [
            (planned, _fold(site.at(planned.stage), planned, moment_ms, alerts, partial(on_progress, planned)))
            for planned in todo
        ]
        for planned, rewound in folded:
            ids = {each.id for each in published if each.may_come_from(planned)}
            yield _set_back(site.at(planned.stage), planned, repair, rewound, ids)


def _part(site: StateLocation, planned: TaskRewind) -> Path:
    return site.store(planned.partition).with_name(f"rewind{PART}")


def _fold(
    site: StateLocation, planned: TaskRewind, moment_ms: int, alerts: str, on_progress: OnProgress
) -> RewoundState:
    """The state of the moment, in a store next to the live one. Nothing else is touched."""
    part = _part(site, planned)
    shutil.rmtree(part, ignore_errors=True)
    make_private(part.parent)
    start = _open_snapshot(site, planned, moment_ms, part)
    facts = {"alerts": alerts, "time_ms": int(time.time() * 1000)}
    store = RocksStore(part)
    try:
        return fold_back(
            site.log, site.plan, planned.partition, store, planned.until, moment_ms, facts, on_progress, start
        )
    finally:
        store.close()


def _set_back(
    site: StateLocation, planned: TaskRewind, repair: ChangelogRepair, rewound: RewoundState, ids: set[bytes]
) -> RewoundTask:
    part = _part(site, planned)
    store = RocksStore(part)
    try:
        rows = _write_back(site, planned, store, repair, rewound, ids)
        digest = digest_of(plan_for(site, planned.partition, rewound.position), store)
        store.flush()
    finally:
        store.close()
    put_in_place(part, site.store(planned.partition))
    before = planned.until.inputs
    return RewoundTask(site.stage, planned.partition, rewound.position, before, digest, rows, len(ids), rewound.events)


def _write_back(
    site: StateLocation,
    planned: TaskRewind,
    store: RocksStore,
    repair: ChangelogRepair,
    rewound: RewoundState,
    ids: set[bytes],
) -> int:
    """The changelog's difference goes out, and the store follows from there; how many rows that were."""
    changelog = site.changelog(planned.partition)  # as it is now that nobody else writes
    image = materialize_at(site.log, changelog, changelog.bounds.end)
    keep_told(site, store, image)
    told = position_of(store)
    assert told is not None, "a fold ends with its position"
    rewound = replace(rewound, position=told)
    old = ReplayDedupFilter.of(image)
    topics = old.topics | told.forwards.keys() | emitted_topics(site.plan)
    skips = skip_rows(ids, *old.furthest(planned.until.inputs, planned.watermark), topics)
    changes: list[Change] = [*changes_between(store, image), *rows_between(skips, image)]
    inputs = [TopicPartition(each.topic, planned.partition) for each in rewound.position.inputs.values()]
    committed = site.log.committed(site.settings.service, inputs)
    before = {at: offset for at, offset in committed.items() if offset is not None}
    after = repaired_offsets(site.log, site.settings.service, rewound.position, planned.partition, site.shared_topics())
    end = write_back(repair, site.plan.topics, planned.partition, changes, position_of(image), rewound, (before, after))
    topic, at = changelog.topic, changelog.at
    following = ChangelogCheckpoint(at.topic, topic.id, at.partition, topic.partitions, end, int(time.time() * 1000))
    stale: list[Change] = [(row, None) for row, _ in store.range(SKIP, SKIP_END)]
    store.write([*stale, *skips, (FOLLOWING, pack_following(following))])
    return len(changes)


def emitted_topics(plan: Plan) -> set[str]:
    return set() if plan.task is None else {each.topic for each in plan.task.emits.values()}


# ---------------------------------------------------------------- where to begin


def _open_snapshot(site: StateLocation, planned: TaskRewind, moment_ms: int, part: Path) -> Position | None:
    """Begin with the newest snapshot from before the moment, where the input no longer goes back to the beginning or to
    spare the way from there; None: there is none.
    """
    entries = journal_of(site.log, site.plan, planned.partition)
    for snapshot in reversed([*snapshots.listed(site.folder(planned.partition) / "snapshots")]):
        known = snapshot.manifest
        if known.watermark_ms is None or known.watermark_ms > moment_ms or not _is_valid(snapshot):
            continue
        with reading(snapshot.folder) as store:
            position = position_of(store)
        if position is None or not _may_begin(site, planned, position):
            continue
        nexts = {name: each.next for name, each in position.inputs.items()}
        if was_set_back(entries, position.journal, nexts):
            continue
        snapshots.open_copy(snapshot, part)
        return position
    return None


def _is_valid(snapshot: snapshots.Snapshot) -> bool:
    try:
        snapshots.verify(snapshot)
    except snapshots.BadSnapshot:
        return False
    return True


def _may_begin(site: StateLocation, planned: TaskRewind, position: Position) -> bool:
    """Whether it is of this input, not ahead of what was processed, and what it waits for is still there."""
    places = {TopicPartition(each.topic, planned.partition): each for each in position.inputs.values()}
    topics = site.log.topics([at.topic for at in places])
    if any(at.topic not in topics or topics[at.topic].id != each.topic_id for at, each in places.items()):
        return False
    bounds = site.log.bounds(list(places))
    until = planned.until.inputs
    ahead = any(each.next > until.get(name, each.next) for name, each in position.inputs.items())
    return not ahead and all(bounds[at].begin <= each.safe for at, each in places.items())


# ---------------------------------------------------------------- what was done


def done_line(done: RewoundTask) -> str:
    places = ", ".join(
        f"{name} {done.before.get(name, 0):,} to {each.next:,}" for name, each in done.position.inputs.items()
    )
    skips = f"; {done.skips:,} alerts to skip" if done.skips else ""
    return (
        f"{name_of(done.stage, done.partition)}: set back to event time {moment_text(done.position.watermark)}"
        f" ({places}), {done.rows:,} rows of the changelog changed{skips}\n  digest {done.digest}"
    )
