"""`samovar repartition`: a stopped service with keyed state gets another number of partitions.

    NAME.repartition            a topic: how far it is (`RepartitionMarker`)
    NAME.repartition.of.STAGE   the rows of the new changelogs, positions last, and what the new journals begin with
    NAME.repartition.switch     while it is there, the service does not start
    STATE/repartition.part      images of the old changelogs and of the new ones, to be compared; made again where lost

Copy: nothing of the old is touched, and a kill or `--abort` costs nothing. Switch: changelogs, journals and repartition
topics are made again under their names and filled from the copy; killed there, it is run again, and never goes back.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from samovar.changelog.cursors import PartitionCursor, read_all
from samovar.changelog.embedded.log import EmbeddedLog
from samovar.changelog.formats.journal import pack_entry
from samovar.changelog.formats.record import (
    POSITION,
    ROW,
    USER,
    WAITING,
    Position,
    RepartitionCut,
    pack_position,
    row_parts,
    unpack_position,
)
from samovar.changelog.log import Append, Log, Pair, Topic, TopicPartition, TopicSpec
from samovar.changelog.restore.point_in_time import last_position
from samovar.changelog.restore.restore import ChangelogPartition, Restore, checkpoint_of
from samovar.common.errors import Refused
from samovar.common.failpoints import hit
from samovar.common.folders import PART, make_private, remove
from samovar.patterns.explain.key_trace import iso_time
from samovar.service.config.models import ServiceFile
from samovar.service.recovery.restore.run import alone
from samovar.service.topology.plans import plans_of
from samovar.service.topology.rule_registry import with_published_rules
from samovar.service.topology.stages import placing_of
from samovar.service.topology.stores import MAIN_NAME, StateLocation
from samovar.service.topology.topics import (
    PlannedTopic,
    RepartitionMarker,
    TopicRole,
    bootstrap_of,
    counted_topics,
    marker_of,
    marker_topic,
    switch_topic,
)
from samovar.service.topology.topics import plan as planned_topics
from samovar.state.digest import digest
from samovar.state.rocks import RocksStore
from samovar.state.store import Readable
from samovar.state.store_lock import holding
from samovar.tasks.model.plan import Plan
from samovar.tasks.model.user_task import RepartitionableTask
from samovar.tasks.replay.repair import refuse_members
from samovar.tasks.replay.repartition import (
    EVERYWHERE,
    NewTasks,
    OldTask,
    RowPlaces,
    first_entry,
    merged,
    old_task,
    same_everywhere,
    unsettled,
)
from samovar.tasks.runtime.stream_task import name_of

REMADE = (TopicRole.CHANGELOG, TopicRole.JOURNAL, TopicRole.REPARTITION)
JOURNAL_ROW = b"z"  # in a copy, behind all rows: what the new task's journal begins with
KEYED = (WAITING, ROW, USER)
GONE_S = 60.0  # until a topic that was deleted is gone
OnProgress = Callable[[str, int], None]


@dataclass(frozen=True, kw_only=True)
class RepartitionPlan:
    """What will happen. `site` has the old number of partitions; `left` says why nothing will."""

    site: StateLocation
    to: int
    plans: tuple[Plan, ...]  # of the new tasks
    topics: Sequence[PlannedTopic]  # that are made again
    grows: Mapping[str, int]  # inputs that get more partitions, and how many they have
    cut: Mapping[str, Any] = field(default_factory=dict)
    positions: Mapping[tuple[str, int], Position] = field(default_factory=dict)
    marker: RepartitionMarker | None = None
    is_switching: bool = False
    left: str | None = None

    @property
    def records(self) -> int:
        """At most, of the changelogs."""
        return sum(end for _, end in self.cut.values())

    def data(self) -> dict[str, Any]:
        times = [each.watermark for each in self.positions.values() if each.watermark is not None]
        return {
            "service": self.site.settings.service,
            "from": self.site.partitions,
            "to": self.to,
            "tasks": len(self.positions),
            "changelog_records": self.records,
            "remade": [spec.name for spec in self.topics],
            "grown": dict(self.grows),
            "event_time": [min(times), max(times)] if times else None,
            "switching": self.is_switching,
            "left": self.left,
        }


@dataclass(frozen=True, kw_only=True)
class RepartitionResult:
    """What it ended with; the digests are over the rows of all keys of a stage, before and after."""

    rows: int
    size: int  # of these, in bytes
    waiting: int
    digests: Mapping[str, str]
    seconds: float

    def data(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "bytes": self.size,
            "waiting": self.waiting,
            "digests": dict(self.digests),
            "seconds": round(self.seconds, 3),
        }


# ---------------------------------------------------------------- what will happen


def plan_repartition(settings: ServiceFile, log: Log, to: int) -> RepartitionPlan:
    """Nothing is changed."""
    settings = with_published_rules(settings, log)
    marker, is_switching = marker_of(settings, log), has_switched(settings, log)
    if marker is not None and marker.to != to:
        raise Refused(
            "repartition-unfinished",
            f"a repartition of {settings.service} to {marker.to} partitions was begun, and this is to {to}",
            f"Go on with it: `samovar repartition CONFIG --partitions {marker.to}`"
            + ("." if is_switching else ", or give it up: `samovar repartition CONFIG --abort`."),
        )
    existing = log.topics(counted_topics(settings))
    journal = existing.get(settings.journal.topic)
    if journal is None and not is_switching:
        hint = "There is no state yet: set `partitions` in the service file, and run it."
        raise Refused("nothing-processed", f"the service {settings.service} never ran", hint)
    _refuse_file(settings, to)
    old = marker.old if marker is not None and is_switching else journal.partitions if journal is not None else to
    refuse_members(log, settings.service)
    plans = tuple(plans_of(settings, to))
    wanted = Topic(name=settings.journal.topic, partitions=to, settings={}, id="")
    specs = planned_topics(settings, {**existing, wanted.name: wanted})
    old_plans = tuple(plans_of(settings, old))
    site = StateLocation(
        settings=settings, log=log, plan=old_plans[0], partitions=old, state=settings.state, plans=old_plans
    )
    found = RepartitionPlan(
        site=site,
        to=to,
        plans=plans,
        topics=[spec for spec in specs if spec.role in REMADE],
        grows=_grows(settings, log, existing, to),
        marker=marker,
        is_switching=is_switching,
        left=f"it has {to} partitions already" if old == to else None,
    )
    if found.left is not None or is_switching:
        return found
    _refuse_stages(old_plans, plans, old, to)
    positions = _positions(site)
    return replace(found, cut=_cut(site), positions=positions)


def _refuse_file(settings: ServiceFile, to: int) -> None:
    given = {name: stream.partitions for name, stream in settings.streams.items() if stream.partitions}
    wrong = [name for name, count in given.items() if count != to]
    if wrong:
        raise Refused(
            "repartition-file",
            f"the service file says `partitions: {given[wrong[0]]}` for the stream {wrong[0]}, and this is to {to}",
            f"Write `partitions: {to}` for all streams, or leave it out, in the file of every container; then run this"
            " again.",
        )


def _grows(settings: ServiceFile, log: Log, existing: Mapping[str, Topic], to: int) -> dict[str, int]:
    """Inputs with fewer partitions. Those of the embedded log are grown here, those of Kafka are others'."""
    found = {}
    for name, stream in settings.streams.items():
        topic = existing.get(stream.topic)
        if topic is None:
            raise Refused(
                "topic-missing", f"the topic {stream.topic} of the stream `{name}` does not exist", "Put it back."
            )
        if topic.partitions < to:
            found[topic.name] = topic.partitions
    if found and not isinstance(log, EmbeddedLog):
        commands = [
            f"kafka-topics.sh --bootstrap-server {bootstrap_of(settings)} --alter --topic {name} --partitions {to}"
            for name in found
        ]
        raise Refused(
            "repartition-inputs",
            f"{', '.join(found)} has fewer than {to} partitions, and a task reads one of each input",
            "While the service and its producers stand still, give it as many, and run this again.",
            "\n  ".join(commands),
        )
    return found


def _refuse_stages(old: Sequence[Plan], new: Sequence[Plan], before: int, to: int) -> None:
    if [plan.stage for plan in old] != [plan.stage for plan in new]:
        raise Refused(
            "repartition-stages",
            f"with {before} partitions the service has the stages {_names(old)}, and with {to} {_names(new)}",
            "With one partition all rules run in the main stage; otherwise those that are keyed by another field than"
            " their topic have a stage of their own. Their state cannot be moved between stages: choose more than one"
            " partition, or take these rules out first.",
        )
    for plan in old:
        if plan.task is not None and not issubclass(plan.task.make, RepartitionableTask):  # type: ignore[arg-type]
            raise Refused(
                "repartition-task",
                f"the task {plan.stage} ({plan.task.source}) does not say whose its rows are",
                "Give its class the method `key_of(self, store, name)`: the key of the events that a row of a store, or"
                " a timer, belongs to. See docs/tasks.md.",
            )


def _names(plans: Sequence[Plan]) -> str:
    return ", ".join(plan.stage or MAIN_NAME for plan in plans)


def _positions(site: StateLocation) -> dict[tuple[str, int], Position]:
    """Where all tasks stand; refused where one of them has something to read."""
    found = {}
    for here in site.stages():
        for partition in range(site.partitions):
            position = last_position(site.log, here.changelog(partition))
            for spec in here.plan.inputs:
                stored = None if position is None else position.inputs.get(spec.stream)
                at = TopicPartition(spec.topic, partition)
                begin, end = site.log.bounds([at])[at]
                start = begin if stored is None else max(begin, stored.next)
                with closing(PartitionCursor(site.log, at, start)) as cursor:
                    unread = start < end and cursor.next_records(end) is not None
                if unread:
                    what = f"{at} was read up to {start:,} by {name_of(here.stage, partition)}, and ends at {end:,}"
                    raise Refused(
                        "repartition-behind",
                        what,
                        "Records that are there must be processed first: stop the producers, let `samovar run CONFIG"
                        " --until-caught-up` end, and run this again.",
                    )
            if position is not None:
                found[here.stage, partition] = position
        if not any(stage == here.stage for stage, _ in found):
            raise unsettled(f"the stage {here.stage or MAIN_NAME} never ran")
    return found


def _cut(site: StateLocation) -> dict[str, tuple[str, int]]:
    """By which a copy is known to be of the state as it is."""
    tasks = [here.changelog(partition) for here in site.stages() for partition in range(site.partitions)]
    return {str(each.at): (each.topic.id, each.bounds.end) for each in tasks}


def plan_lines(plan: RepartitionPlan) -> list[str]:
    service, old = plan.site.settings.service, plan.site.partitions
    if plan.left is not None:
        return [f"{service}: nothing to do; {plan.left}"]
    if plan.is_switching:
        return [f"{service}: the switch from {old} to {plan.to} partitions was begun, and is ended now"]
    lines = [
        f"{service}: from {old} to {plan.to} partitions; {len(plan.positions)} tasks, up to {plan.records:,} records of"
        " changelogs",
        f"  made again: {', '.join(spec.name for spec in plan.topics)}",
    ]
    if plan.grows:
        lines.append(f"  gets more partitions: {', '.join(plan.grows)}")
    times = [each.watermark for each in plan.positions.values() if each.watermark is not None]
    if times:
        lines.append(
            f"  event time: {iso_time(min(times))} to {iso_time(max(times))}; afterwards lateness is by the greatest of"
            " all partitions"
        )
    lines.append("  producers and containers must stand still until it is done")
    lines.append("  what came before cannot be folded from the input any more: verify, rewind and --from source refuse")
    if plan.to < max(old, *(plan.grows.values() or [0])):
        lines.append(f"  producers must then place keys among {plan.to} partitions: records in others are not read")
    return lines


# ---------------------------------------------------------------- doing it


def repartition(plan: RepartitionPlan, on_progress: OnProgress = lambda *_: None) -> RepartitionResult:
    """Copy, compare, switch. Goes on where an earlier run was ended."""
    begun, site, log = time.monotonic(), plan.site, plan.site.log
    scratch = _scratch(site.settings)
    make_private(site.state)
    with ExitStack() as stack:
        stack.enter_context(alone(site.state))
        for here in site.stages():
            for partition in range(site.partitions):
                if here.folder(partition).exists():
                    stack.enter_context(holding(here.store(partition)))
        marker = plan.marker
        if not plan.is_switching:
            if marker is None or dict(marker.cut) != {name: list(each) for name, each in plan.cut.items()}:
                marker = _begin(plan)
            marker = _copy(plan, marker, scratch, on_progress)
            hit("repartition.copied")
            refuse_members(log, site.settings.service)
            _positions(site)
            if _cut(site) != dict(plan.cut):
                raise unsettled("the service ran while its state was copied")
            _write_marker(site, marker)
            _make(log, [TopicSpec(switch_topic(site.settings.service), plan.to, {}, site.settings.replication)])
        hit("repartition.ready")
        assert marker is not None
        _switch(plan, on_progress)
        hit("repartition.filled")
        _prove(plan, marker, scratch, "the new changelogs")
    for here in site.stages():
        for partition in range(max(site.partitions, plan.to)):
            remove(here.folder(partition))
    _clear(site.settings, log, plan.plans)
    hit("repartition.done")
    return RepartitionResult(
        rows=marker.rows,
        size=marker.size,
        waiting=marker.waiting,
        digests=marker.digests,
        seconds=time.monotonic() - begun,
    )


def abort(settings: ServiceFile, log: Log) -> bool:
    """Give up what was begun; whether there was anything. The switch is never taken back."""
    settings = with_published_rules(settings, log)
    marker = marker_of(settings, log)
    if marker is None:
        return False
    if has_switched(settings, log):
        raise Refused(
            "repartition-unfinished",
            f"the switch of {settings.service} to {marker.to} partitions was begun, and cannot be taken back",
            f"Go on with it: `samovar repartition CONFIG --partitions {marker.to}`.",
        )
    _clear(settings, log, plans_of(settings, marker.to))
    return True


def has_switched(settings: ServiceFile, log: Log) -> bool:
    name = switch_topic(settings.service)
    return name in log.topics([name])


def copy_topic(settings: ServiceFile, plan: Plan) -> str:
    return f"{marker_topic(settings.service)}.of.{plan.stage or MAIN_NAME}"


def _write_marker(site: StateLocation, marker: RepartitionMarker) -> None:
    topic = marker_topic(site.settings.service)
    site.log.append([Append(topic=topic, records=[(b"marker", marker.packed())], partition=0)])


def _begin(plan: RepartitionPlan) -> RepartitionMarker:
    """From nothing: a copy of another cut is of no use."""
    settings, replication = plan.site.settings, plan.site.settings.replication
    _clear(settings, plan.site.log, plan.plans)
    more = {"min.insync.replicas": "2"} if replication >= 3 else {}
    kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", **more}
    marker = RepartitionMarker(old=plan.site.partitions, to=plan.to, at_ms=int(time.time() * 1000), cut=plan.cut)
    copies = [TopicSpec(copy_topic(settings, each), plan.to, kept, replication) for each in plan.plans]
    _make(plan.site.log, [*copies, TopicSpec(marker_topic(settings.service), 1, kept, replication)])
    _write_marker(plan.site, marker)
    return marker


def _clear(settings: ServiceFile, log: Log, plans: Sequence[Plan]) -> None:
    _delete(log, [switch_topic(settings.service)])
    hit("repartition.switched")  # from here on the service may start
    _delete(log, [*(copy_topic(settings, each) for each in plans), marker_topic(settings.service)])
    shutil.rmtree(_scratch(settings), ignore_errors=True)


def _scratch(settings: ServiceFile) -> Path:
    return settings.state / f"repartition{PART}"


# ---------------------------------------------------------------- the copy


def _copy(
    plan: RepartitionPlan, marker: RepartitionMarker, scratch: Path, on_progress: OnProgress
) -> RepartitionMarker:
    """All rows, then what each new task begins with; compared with the old. What an earlier run has copied stays."""
    site, streams = plan.site, plan.site.settings.streams
    moved = {stage: RepartitionCut(marker.at_ms, site.partitions, _replaced(plan), {}) for stage in _stages(plan)}
    nexts = _nexts(plan)
    for here, new in zip(site.stages(), plan.plans, strict=True):
        with ExitStack() as stack:
            tasks = [
                old_task(site.log, here.plan, partition, position, store)
                for partition in range(site.partitions)
                if (position := plan.positions.get((here.stage, partition))) is not None
                for store in [stack.enter_context(closing(_image(here.log, here.changelog(partition), scratch)))]
            ]
            everywhere: dict[bytes, bytes] = {}
            for task in tasks:
                name = f"{here.stage or MAIN_NAME}/{task.partition}"
                places = RowPlaces(task, site.partitions, plan.to, lambda rule: placing_of(rule, streams))
                marker = _copy_rows(plan, new, marker, name, places, everywhere, on_progress)
                if name not in marker.done:
                    marker = replace(marker, done=(*marker.done, name), waiting=marker.waiting + len(task.waiting))
                    _write_marker(site, marker)
            found = digest(_once(merge(*(_keyed(task) for task in tasks), key=itemgetter(0))))
            _copy_heads(plan, new, merged(tasks, new, nexts, moved[here.stage]), everywhere)
        marker = replace(marker, digests={**marker.digests, here.stage or MAIN_NAME: found})
    _prove(plan, marker, scratch, "the copies", copies=True)
    return marker


def _stages(plan: RepartitionPlan) -> list[str]:
    return [each.stage for each in plan.plans]


def _replaced(plan: RepartitionPlan) -> tuple[str, ...]:
    """The changelogs whose stores are of no use afterwards, also those of earlier repartitions."""
    before = [each.repartitioned.changelogs for each in plan.positions.values() if each.repartitioned is not None]
    names = [each.topics.changelog for each in plan.site.plans]
    topics = plan.site.log.topics(names)
    return tuple(dict.fromkeys([*(name for each in before for name in each), *(topics[name].id for name in names)]))


def _nexts(plan: RepartitionPlan) -> list[dict[str, int]]:
    """By new partition, where each stream is read on: where it was, and a partition that is new from its begin. One
    that the service read before it had fewer is read on from where it was then.
    """
    site, found = plan.site, []
    specs = site.plans[0].inputs
    for partition in range(plan.to):
        own = plan.positions.get(("", partition)) if partition < site.partitions else None
        nexts = {}
        for spec in specs:
            if own is not None and spec.stream in own.inputs:
                nexts[spec.stream] = own.inputs[spec.stream].next
                continue
            at, offset = TopicPartition(spec.topic, partition), 0
            if partition < site.log.topics([spec.topic])[spec.topic].partitions:
                known = site.log.committed(site.settings.service, [at])[at]
                offset = max(site.log.bounds([at])[at].begin, known or 0)
            nexts[spec.stream] = offset
        found.append(nexts)
    return found


def _image(log: Log, changelog: ChangelogPartition, scratch: Path) -> RocksStore:
    """A changelog as rows on disk, from where an earlier run has come."""
    folder = scratch / changelog.topic.id / str(changelog.at.partition)
    make_private(folder.parent)
    store = RocksStore(folder)
    checkpoint = checkpoint_of(store)
    start = changelog.bounds.begin if checkpoint is None else checkpoint.next
    with closing(Restore(store, log, changelog, start)) as restore:
        while not restore.advance():
            pass
    return store


def _copy_rows(
    plan: RepartitionPlan,
    new: Plan,
    marker: RepartitionMarker,
    name: str,
    places: RowPlaces,
    everywhere: dict[bytes, bytes],
    on_progress: OnProgress,
) -> RepartitionMarker:
    """The rows of one old task go to their new partitions; a row twice, after a kill, is one row."""
    log, topic = plan.site.log, copy_topic(plan.site.settings, new)
    batches: dict[int, list[Pair]] = {}
    rows = size = 0
    for partition, row, value in places.rows():
        if partition == EVERYWHERE:
            same_everywhere(everywhere, row, value, new.stage)
            continue
        rows, size = rows + 1, size + len(row) + len(value)
        batch = batches.setdefault(partition, [])
        batch.append((row, value))
        if name not in marker.done and len(batch) >= log.tunables.append_rows:
            log.append([Append(topic=topic, records=batches.pop(partition), partition=partition)])
            on_progress(name, rows)
    if name in marker.done:
        return marker
    appends = [Append(topic=topic, records=batch, partition=partition) for partition, batch in batches.items()]
    if appends:
        log.append(appends)
    return replace(marker, rows=marker.rows + rows, size=marker.size + size)


def _copy_heads(plan: RepartitionPlan, new: Plan, tasks: NewTasks, everywhere: Mapping[bytes, bytes]) -> None:
    """What a new task has of its own; its position is the last row, as in every commit."""
    appends = []
    for partition, position in enumerate(tasks.positions):
        entry = pack_entry(first_entry(position, tasks.facts, plan.to))
        own: list[Pair] = [*tasks.rows, *everywhere.items(), (JOURNAL_ROW, entry), (POSITION, pack_position(position))]
        appends.append(Append(topic=copy_topic(plan.site.settings, new), records=own, partition=partition))
    plan.site.log.append(appends)


# ---------------------------------------------------------------- the proof


def _keyed(task: OldTask) -> Iterator[tuple[bytes, bytes]]:
    """All that belongs to keys, in order: what waits is rows afterwards."""
    waiting = sorted((event.row(stream), event.packed()) for stream, _, event in task.waiting)
    known = task.plan.program.stores
    yield from waiting
    for row, value in task.store.range(ROW, bytes([ROW[0] + 1])):
        if row_parts(row)[1] in known:
            yield row, value
    yield from task.store.range(USER, bytes([USER[0] + 1]))


def _rows_of(store: Readable) -> Iterator[tuple[bytes, bytes]]:
    for kind in KEYED:
        yield from store.range(kind, bytes([kind[0] + 1]))


def _once(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Rows in order, each once: some are in every partition."""
    return (next(same) for _, same in groupby(rows, key=itemgetter(0)))


def _prove(plan: RepartitionPlan, marker: RepartitionMarker, scratch: Path, what: str, *, copies: bool = False) -> None:
    """The rows of all keys, read again, must be what they were, byte by byte."""
    log, settings = plan.site.log, plan.site.settings
    for new in plan.plans:
        name, stage = copy_topic(settings, new) if copies else new.topics.changelog, new.stage or MAIN_NAME
        with ExitStack() as stack:
            stores = []
            for partition in range(plan.to):
                changelog = ChangelogPartition.load(log, TopicPartition(name, partition), 0)
                stores.append(stack.enter_context(closing(_image(log, changelog, scratch))))
            found = digest(_once(merge(*map(_rows_of, stores), key=itemgetter(0))))
        if found != marker.digests[stage]:
            raise Refused(
                "repartition-differs",
                f"{what} of the stage {stage} do not hold the rows that the old changelogs had",
                "Nothing was lost: run it again, or with --abort give it up, and tell the makers of Samovar."
                if copies
                else "Run it again: the copy has all of it.",
                f"digest {found}, and it was {marker.digests[stage]}",
            )


# ---------------------------------------------------------------- the switch


def _switch(plan: RepartitionPlan, on_progress: OnProgress) -> None:
    """Make the topics again and fill them. It may be ended at any point, and then begins again."""
    site, log = plan.site, plan.site.log
    for name in plan.grows:
        assert isinstance(log, EmbeddedLog), name
        log.grow(name, plan.to)
    names = {spec.name for spec in plan.topics}
    for old in site.plans:
        names |= {old.topics.changelog, old.topics.journal, *(each.topic for each in old.forwards)}
    _delete(log, sorted(names))
    hit("repartition.deleted")
    _make(log, plan.topics)
    hit("repartition.made")
    ids = {name: topic.id for name, topic in log.topics(sorted(names)).items()}
    for new in plan.plans:
        for partition in range(plan.to):
            at = TopicPartition(copy_topic(site.settings, new), partition)
            for records in read_all(log, at):
                _fill(log, new, partition, records.pairs(), ids)
                on_progress(str(at), records.next)


def _fill(log: Log, new: Plan, partition: int, pairs: Sequence[Pair], ids: Mapping[str, str]) -> None:
    rows: list[Pair] = []
    entries: list[Pair] = []
    for key, value in pairs:
        assert key is not None
        assert value is not None
        if key == JOURNAL_ROW:
            entries.append((str(partition).encode(), value))
        elif key == POSITION:
            rows.append((POSITION, pack_position(_placed(unpack_position(value), new, ids))))
        else:
            rows.append((key, value))
    topics = ((new.topics.changelog, rows), (new.topics.journal, entries))
    log.append([Append(topic=name, records=found, partition=partition) for name, found in topics if found])


def _placed(position: Position, new: Plan, ids: Mapping[str, str]) -> Position:
    """A position with the ids of the topics that were made for it."""
    inputs = {
        stream: replace(each, topic_id=ids.get(each.topic, each.topic_id)) for stream, each in position.inputs.items()
    }
    return replace(position, inputs=inputs, changelog=ids[new.topics.changelog], journal_id=ids[new.topics.journal])


def _delete(log: Log, names: Sequence[str]) -> None:
    """Delete topics, and wait until they are gone."""
    there = list(log.topics(names))
    if there:
        log.delete(there)
    deadline = time.monotonic() + GONE_S
    while log.topics(names):
        if time.monotonic() > deadline:
            raise _slow(f"{', '.join(names)} are still there {GONE_S:.0f} s after they were deleted")
        time.sleep(0.1)


def _make(log: Log, specs: Sequence[TopicSpec]) -> None:
    """Make topics. A broker may still be at work on deleting one of the same name."""
    deadline = time.monotonic() + GONE_S
    while len(log.topics([spec.name for spec in specs])) < len(specs):
        with suppress(Refused) if time.monotonic() < deadline else ExitStack():
            log.create(specs)
        if time.monotonic() > deadline:
            raise _slow(f"{', '.join(spec.name for spec in specs)} could not be made")
        if len(log.topics([spec.name for spec in specs])) < len(specs):
            time.sleep(0.1)


def _slow(what: str) -> Refused:
    hint = "Look at the brokers, then run it again: it goes on from here."
    return Refused("repartition-slow", what, hint)
