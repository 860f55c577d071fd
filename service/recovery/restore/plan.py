"""What a restore will do, before it does anything: for each partition what is there, from where it comes, how much."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samovar.changelog.formats.record import ChangelogCheckpoint
from samovar.changelog.formats.staged import StagedTables
from samovar.changelog.log import TopicPartition
from samovar.changelog.restore.point_in_time import (
    commit_before,
    is_exact,
    last_position,
    materialize_at,
    refuse_compacted,
)
from samovar.changelog.restore.restore import ChangelogPartition, next_step
from samovar.common.errors import Refused
from samovar.patterns.explain.key_trace import iso_time
from samovar.service.query.state.view import watermark_text
from samovar.service.topology.archives import history_of
from samovar.service.topology.stores import StateLocation, StoreStatus, read_store_status
from samovar.state import snapshots
from samovar.state.memory import MemoryStore
from samovar.tasks.model.plan import MAIN
from samovar.tasks.replay.rebuild import ReplayEnd, journal_of, rebuild
from samovar.tasks.replay.repair import source_until
from samovar.tasks.runtime.stream_task import name_of

SAMPLE_RECORDS = 20_000  # read to know how quick this machine is
ENOUGH = 1_000  # records that a rate can be told from
SOURCES = ("changelog", "snapshot", "source")
STAGING = "staging"  # what another machine made


@dataclass(frozen=True, kw_only=True)
class RestoreRequest:
    """What a person wants restored. Without a stage, all of them."""

    partitions: Sequence[int] = ()
    source: str | None = None
    to_offset: int | None = None
    to_time_ms: int | None = None
    out: Path | None = None
    dry_run: bool = False
    stage: str | None = None
    engine: str = "local"

    @property
    def is_past(self) -> bool:
        return self.to_offset is not None or self.to_time_ms is not None


@dataclass(frozen=True, kw_only=True)
class RestorePlan:
    """One partition's restore. Of a changelog, offsets from `start` to `end`; of the source, inputs up to `until`."""

    partition: int
    now: StoreStatus
    source: str
    start: int
    end: int
    changelog: ChangelogPartition | None = None  # None: it is gone
    snapshot: snapshots.Snapshot | None = None
    until: ReplayEnd | None = None
    moment_ms: int | None = None
    notes: tuple[str, ...] = ()
    is_behind: bool = False  # event time has not reached the moment
    stage: str = MAIN
    staged: StagedTables | None = None
    is_history: bool = False  # the changelog is read from the archive, with what compaction took since

    @property
    def name(self) -> str:
        return name_of(self.stage, self.partition)

    @property
    def todo(self) -> int:
        """Records to read, at most: offsets have gaps."""
        return max(self.end - self.start, 0)

    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = {"partition": self.partition} | ({} if self.stage == MAIN else {"stage": self.stage})
        found |= {"now": self.now.text, "from": self.source, "records": self.todo, "notes": list(self.notes)}
        if self.source != "source":
            found |= {"start": self.start, "end": self.end}
        if self.snapshot is not None:
            found["snapshot"] = self.snapshot.number
        if self.staged is not None:
            found["staging"] = str(self.staged.folder)
        if self.until is not None:
            found["inputs"] = dict(self.until.inputs)
        return found


def refuse_odd(asked: RestoreRequest, partitions: int, stages: int) -> None:
    """Options that do not go together."""
    if asked.engine == "spark" and asked.source == "snapshot":
        raise Refused(
            "engine-unfit",
            "a snapshot lies on this machine and is copied: Spark has no part in it",
            "Leave `--engine spark` out, or take `--from changelog`.",
        )
    if asked.is_past and asked.out is None:
        raise Refused(
            "out-missing",
            "a restore to the past never goes over the live store",
            "Add `--out DIR`, and read it with `samovar state get CONFIG KEY --store DIR`.",
        )
    if asked.out is not None and asked.out.exists() and (not asked.out.is_dir() or any(asked.out.iterdir())):
        raise Refused("out-not-empty", f"{asked.out} is there already", "Name a folder that is new or empty.")
    if asked.to_offset is None:
        return
    if asked.source == "source":
        raise Refused(
            "bad-moment",
            "an offset is one of the changelog, not of the source",
            "Use `--to-time T` with `--from source`.",
        )
    if partitions > 1 and len(asked.partitions) != 1:
        raise Refused("partition-missing", "an offset is one of a single partition's changelog", "Add `--partition P`.")
    if stages > 1:
        raise Refused("stage-missing", "an offset is one of a single stage's changelog", "Add `--stage S`.")


# ---------------------------------------------------------------- planning


def plan_restore(site: StateLocation, asked: RestoreRequest, now_ms: int) -> list[RestorePlan]:
    """Nothing is changed. Refused where a partition cannot be restored this way (P4)."""
    sites = site.stages(asked.stage)
    refuse_odd(asked, site.partitions, len(sites))
    plans = []
    for here in sites:
        for partition in here.chosen(asked.partitions):
            if here.stage != MAIN:  # it may be new in the service file, with nothing to restore
                journal = TopicPartition(here.plan.topics.journal, partition)
                if not site.log.topics([journal.topic]) or not site.log.bounds([journal])[journal].end:
                    continue
            plans.append(_plan_partition(here, asked, partition, now_ms))
    moment = asked.to_time_ms
    if moment is not None and all(each.is_behind for each in plans):
        raise Refused(
            "as-of-future",
            f"no partition's event time has reached {iso_time(moment)}",
            "With `--from source` T is event time: name a time before that.",
            "; ".join(f"{each.name}: {each.notes[-1]}" for each in plans if each.notes),
        )
    return plans


def _plan_partition(site: StateLocation, asked: RestoreRequest, partition: int, now_ms: int) -> RestorePlan:
    now, stage, notes = read_store_status(site.store(partition)), site.stage, list[str]()
    if asked.source == "source":
        return _from_source(site, asked, partition, now)
    changelog = site.changelog(partition)
    if asked.out is None and now.condition == "damaged":
        notes.append(now.detail)
    if asked.out is None and now.checkpoint is not None:
        try:
            if next_step(now.checkpoint, changelog, now_ms) is None:
                notes.append("the store is too old to be tailed")
        except Refused as refused:
            if refused.code != "store-ahead" or asked.source != "changelog":  # only this may be overruled
                raise
            notes.append(f"{refused.what}; the changelog is taken for right")
    end, is_history = _end(site, asked, changelog, now_ms)
    snapshot = _snapshot(site, asked, partition, changelog, end, now_ms, notes)
    start = changelog.bounds.begin if snapshot is None else snapshot.manifest.changelog.offset
    source = "changelog" if snapshot is None else "snapshot"
    return RestorePlan(
        partition=partition,
        now=now,
        source=source,
        start=start,
        end=end,
        changelog=changelog,
        snapshot=snapshot,
        notes=tuple(notes),
        stage=stage,
        is_history=is_history,
    )


def _end(site: StateLocation, asked: RestoreRequest, changelog: ChangelogPartition, now_ms: int) -> tuple[int, bool]:
    """Where to end; and whether only the archive has what that takes."""
    begin, end = changelog.bounds
    if not asked.is_past:
        return end, False
    log, history = site.log, history_of(site.settings, site.log) if asked.engine == "local" else None
    if history is not None:  # it also has the times of records that are gone
        log = history[1]
    wanted = asked.to_offset
    if wanted is None:
        assert asked.to_time_ms is not None
        if asked.to_time_ms > now_ms:
            raise Refused("as-of-future", f"{iso_time(asked.to_time_ms)} is yet to come", "Name a time before now.")
        wanted = log.offset_at(changelog.at, asked.to_time_ms + 1)
    if not begin <= wanted <= end:
        raise Refused(
            "offset-unknown",
            f"{changelog.at} has offsets from {begin:,} to {end:,}, not {wanted:,}",
            "Choose one of them.",
        )
    whole, lag_ms = commit_before(log, changelog, wanted), site.settings.changelog.min_compaction_lag_ms
    if is_exact(site.log, changelog, whole, lag_ms, now_ms):
        return whole, False
    if history is not None and history[0].is_exact(changelog.topic, changelog.at.partition, wanted):
        return whole, True
    refuse_compacted(site.log, changelog, whole, lag_ms, now_ms)
    raise AssertionError(whole)


def _snapshot(
    site: StateLocation,
    asked: RestoreRequest,
    partition: int,
    changelog: ChangelogPartition,
    end: int,
    now_ms: int,
    notes: list[str],
) -> snapshots.Snapshot | None:
    """The snapshot to begin with, where there is a valid one that can be tailed (P10)."""
    if asked.source == "changelog" or asked.engine == "spark" or (asked.is_past and asked.source is None):
        return None
    found = snapshots.newest_valid(site.folder(partition) / "snapshots")
    notes += found.skipped
    if (snapshot := found.snapshot) is not None:
        known = snapshot.manifest.changelog
        checkpoint = ChangelogCheckpoint(
            topic=known.topic,
            topic_id=known.topic_id,
            partition=known.partition,
            partitions=known.partitions,
            next=known.offset,
            time_ms=known.time_ms,
        )
        try:
            if known.offset > end:
                reason = f"it is at offset {known.offset:,}, after {end:,}"
            elif next_step(checkpoint, changelog, now_ms) is None:
                reason = "it is too old to be tailed"
            else:
                return snapshot
        except Refused as refused:
            reason = refused.what
        notes.append(f"snapshot {snapshot.number} was passed over: {reason}")
    if asked.source == "snapshot":
        raise Refused(
            "no-snapshot",
            f"partition {partition} has no snapshot that can be used",
            "Use `--from changelog`.",
            "\n  ".join(notes),
        )
    return None


def _from_source(site: StateLocation, asked: RestoreRequest, partition: int, now: StoreStatus) -> RestorePlan:
    log, plan, settings = site.log, site.plan, site.settings
    changelog = site.changelog(partition) if log.topics([plan.topics.changelog]) else None
    position = None if changelog is None else last_position(log, changelog)
    until = source_until(log, plan, partition, settings.service, position, settings.delivery, site.shared_topics())
    notes = [] if position is not None else ["the changelog is empty: the group's offsets say how far to go"]
    moment = asked.to_time_ms
    watermark = None if position is None else position.watermark
    is_behind = moment is not None and position is not None and (watermark is None or moment > watermark)
    if is_behind:
        notes.append(f"its event time is {watermark_text(watermark)}")
        moment = None
    begin = _first_offsets(site, partition)
    return RestorePlan(
        partition=partition,
        now=now,
        source="source",
        start=0,
        end=sum(offset - begin.get(stream, 0) for stream, offset in until.inputs.items()),
        changelog=changelog,
        until=until,
        moment_ms=moment,
        notes=tuple(notes),
        is_behind=is_behind,
        stage=site.stage,
    )


def _first_offsets(site: StateLocation, partition: int) -> Mapping[str, int]:
    entries = journal_of(site.log, site.plan, partition)
    return entries[0].inputs if entries else {}


# ---------------------------------------------------------------- how long


def measured_rate(site: StateLocation, plans: Sequence[RestorePlan]) -> float | None:
    """Records per second, by doing some of the work into memory; None where they are too few to tell."""
    first = max(plans, key=lambda each: each.todo, default=None)
    if first is None or not first.todo:
        return None
    here, begun = site.at(first.stage), time.monotonic()
    if first.until is None:
        assert first.changelog is not None
        begin = first.changelog.bounds.begin
        wanted = min(begin + SAMPLE_RECORDS, first.end)
        materialize_at(here.log, first.changelog, wanted)
        records = wanted - begin
    else:
        begins = _first_offsets(here, first.partition)
        some = {name: min(offset, begins.get(name, 0) + SAMPLE_RECORDS) for name, offset in first.until.inputs.items()}
        records = rebuild(here.log, here.plan, first.partition, MemoryStore(), ReplayEnd(some)).events
    return records / max(time.monotonic() - begun, 1e-6) if records >= ENOUGH else None


def plan_lines(plans: Sequence[RestorePlan], rate: float | None, asked: RestoreRequest) -> list[str]:
    """The plan for people."""
    lines = []
    for each in plans:
        lines.append(f"{each.name}: {each.now.text}; {_what(each, asked)}")
        lines += [f"  {note}" for note in each.notes]
    total = sum(each.todo for each in plans)
    if rate is None:
        return [*lines, f"{total:,} records: about a second"]
    seconds = total / rate
    about = "a second" if seconds < 1.5 else f"{seconds:,.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"
    return [*lines, f"{total:,} records: about {about} at {rate:,.0f} records/s as just measured"]


def _what(planned: RestorePlan, asked: RestoreRequest) -> str:
    own = "build one" if planned.now.condition == "missing" else "replace it"
    target = own if asked.out is None else f"write {asked.out / planned.stage / str(planned.partition)}"
    if planned.until is not None:
        places = ", ".join(f"{name} up to {offset:,}" for name, offset in planned.until.inputs.items())
        moment = "" if planned.moment_ms is None else f", to event time {iso_time(planned.moment_ms)}"
        return f"{target} by folding input and journal again ({places}{moment}): {planned.todo:,} records"
    first = ""
    if planned.staged is not None:
        first = f"{planned.staged.folder} and "
    elif planned.snapshot is not None:
        first = f"snapshot {planned.snapshot.number} ({planned.snapshot.bytes:,} bytes) and "
    stretch = f"changelog offsets {planned.start:,} to {planned.end:,}"
    return f"{target} from {first}{stretch}, up to {planned.todo:,} records"
