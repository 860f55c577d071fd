"""`samovar repartition`: a service with keyed state gets another number of partitions, and stops for the switch only.

    NAME.repartition            a topic: how far it is (`RepartitionMarker`), and which tasks Spark copied (`WholeCopy`)
    NAME.repartition.of.STAGE   rows on their way to the new changelogs, positions, and what new journals begin with
    NAME.repartition.switch     while it is there, the service does not start
    STATE/repartition.part      images of the old changelogs and of the copies, to be compared; made again where lost

Copy: rows go to their new partitions while the service runs, first all of them, then those that its changelogs still
get; what is copied is compared. Nothing of the old is touched, and a kill or `--abort` costs nothing.
Fence: when no container lives and all input is processed, the switch topic is made, and then all that is asked again.
A container looks for that topic after it has joined its group: so one of the two sees the other.
Switch: the copies get what waits and the positions; changelogs, journals and repartition topics are made again under
their names, filled from the copies and read again. Killed there, it is run again, and never goes back.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import chain, groupby, islice, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

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
    unpack_position,
)
from samovar.changelog.log import Append, Log, Member, Pair, Topic, TopicPartition, TopicSpec
from samovar.changelog.partitioner import partition_of
from samovar.changelog.restore.point_in_time import last_position
from samovar.changelog.restore.restore import ChangelogPartition, Restore, checkpoint_of
from samovar.common.errors import Refused
from samovar.common.failpoints import hit
from samovar.common.folders import PART, make_private, remove
from samovar.patterns.explain.key_trace import iso_time
from samovar.service.config.loading import load_service
from samovar.service.config.models import ServiceFile
from samovar.service.recovery.restore.run import alone
from samovar.service.topology.logs import sole_member
from samovar.service.topology.plans import plans_of
from samovar.service.topology.rule_registry import with_published_rules
from samovar.service.topology.stages import placing_of
from samovar.service.topology.stores import MAIN_NAME, StateLocation, position_of
from samovar.service.topology.topics import (
    MARKER_ROW,
    PlannedTopic,
    RepartitionMarker,
    TopicRole,
    bootstrap_of,
    counted_topics,
    marker_of,
    marker_topic,
)
from samovar.service.topology.topics import plan as planned_topics
from samovar.state.digest import SUMS, digest, row_sum
from samovar.state.rocks import RocksStore
from samovar.state.store import Readable
from samovar.state.store_lock import holding
from samovar.tasks.model.plan import Plan
from samovar.tasks.model.user_task import RepartitionableTask
from samovar.tasks.replay.repair import logged_rows, refuse_members
from samovar.tasks.replay.repartition import (
    EVERYWHERE,
    NewTasks,
    RowPlaces,
    first_entry,
    merged,
    old_task,
    plan_at_work,
    same_everywhere,
    unsettled,
)
from samovar.tasks.runtime.repartition_fence import switch_topic
from samovar.tasks.runtime.stream_task import name_of

REMADE = (TopicRole.CHANGELOG, TopicRole.JOURNAL, TopicRole.REPARTITION)
JOURNAL_ROW = b"z"  # in a copy, behind all rows: what the new task's journal begins with
KEYED = (WAITING, ROW, USER)
FOLLOW = 500_000  # offsets of a changelog that are followed at once
LOOK_S = 0.2  # from one look at what is waited for to the next
GONE_S = 60.0  # until a topic that was deleted is gone
ENDED_S = 60.0  # until a writer on this machine that was killed has ended
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
    """What it ended with; the digests are over the rows of all keys of a stage."""

    rows: int
    size: int  # of these, in bytes
    waiting: int
    digests: Mapping[str, str]
    seconds: float
    stopped_s: float  # for how long the service could not run

    def data(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "bytes": self.size,
            "waiting": self.waiting,
            "digests": dict(self.digests),
            "seconds": round(self.seconds, 3),
            "stopped_s": round(self.stopped_s, 3),
        }


# ---------------------------------------------------------------- what will happen


def plan_repartition(settings: ServiceFile, log: Log, to: int) -> RepartitionPlan:
    """Nothing is changed. What must be so at the switch only is not asked for yet."""
    settings = with_published_rules(settings, log)
    marker = marker_of(settings, log)
    is_switching = has_switched(settings, log, marker)
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
    old = marker.old if marker is not None and is_switching else journal.partitions if journal is not None else to
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
        topics=[replace(spec, partitions=to) for spec in specs if spec.role in REMADE],  # whatever the file says yet
        grows=_grows(settings, existing, to),
        marker=marker,
        is_switching=is_switching,
        left=f"it has {to} partitions already" if old == to else None,
    )
    if found.left is not None or is_switching:
        return found
    _refuse_stages(old_plans, plans, old, to)
    return replace(found, cut=_cut(site), positions=_positions(site))


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


def _grows(settings: ServiceFile, existing: Mapping[str, Topic], to: int) -> dict[str, int]:
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
    return found


def _refuse_inputs(settings: ServiceFile, log: Log, to: int) -> None:
    found = _grows(settings, log.topics([stream.topic for stream in settings.streams.values()]), to)
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
    """Where all tasks stand."""
    found = {}
    for here in site.stages():
        for partition in range(site.partitions):
            position = last_position(site.log, here.changelog(partition))
            if position is not None:
                found[here.stage, partition] = position
        if not any(stage == here.stage for stage, _ in found):
            raise unsettled(f"the stage {here.stage or MAIN_NAME} never ran")
    return found


def _refuse_unread(site: StateLocation) -> None:
    """Refuse where a task has something to read."""
    found = _positions(site)
    for here in site.stages():
        for partition in range(site.partitions):
            position = found.get((here.stage, partition))
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


def _blocked(plan: RepartitionPlan) -> Refused | None:
    """Why the switch cannot begin."""
    site = plan.site
    try:
        refuse_members(site.log, site.settings.service)
        _refuse_file(load_service(site.settings.path), plan.to)  # which may have been written meanwhile
        _refuse_inputs(site.settings, site.log, plan.to)
        _refuse_unread(site)
    except Refused as refused:
        return refused
    return None


def _cut(site: StateLocation) -> dict[str, tuple[str, int]]:
    """The changelogs' ids, and where they end."""
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
    lines.append("  the service may run while its state is copied; for the switch producers and containers stand still")
    lines.append("  what came before cannot be folded from the input any more: verify, rewind and --from source refuse")
    if plan.to < max(old, *(plan.grows.values() or [0])):
        lines.append(f"  producers must then place keys among {plan.to} partitions: records in others are not read")
    return lines


# ---------------------------------------------------------------- doing it


def repartition(
    plan: RepartitionPlan,
    on_progress: OnProgress = lambda *_: None,
    on_wait: Callable[[Refused], None] = lambda _: None,
    wait_s: float = 0.0,
    engine: Callable[[], AbstractContextManager[CopyEngine]] | None = None,
) -> RepartitionResult:
    """Copy, compare, switch. Goes on where an earlier run was ended. A service that runs is waited for, when its state
    is copied, for as long as is said: `on_wait` is told what has to be done. By an `engine` many copy, and compare, at
    once; it is let go when that is done.
    """
    begun, site, log = time.monotonic(), plan.site, plan.site.log
    blocked = None if plan.is_switching else _blocked(plan)
    if blocked is not None and (blocked.code != "group-active" or not wait_s):
        raise blocked
    make_private(site.state)
    with ExitStack() as stack:
        stack.enter_context(alone(site.state))
        by = stack.enter_context(ExitStack())
        many = None if plan.is_switching or engine is None else by.enter_context(engine())
        copy = stack.enter_context(closing(_Copy(plan, on_progress)))
        is_proved = many is not None and copy.spread(many)
        by.close()
        if plan.is_switching:
            refuse_members(log, site.settings.service)
        else:
            _copy(copy, on_wait, wait_s, is_proved=is_proved)
        stopped = time.monotonic()
        for here in site.stages():
            for partition in range(site.partitions):
                if here.folder(partition).exists():
                    stack.enter_context(holding(here.store(partition)))
        if not plan.is_switching:
            copy.settle()
        hit("repartition.ready")
        rows, size = _switch(plan, copy)
        for here in site.stages():
            for partition in range(max(site.partitions, plan.to)):
                remove(here.folder(partition))
        _delete(log, [switch_topic(site.settings.service)])
        stopped_s = time.monotonic() - stopped
        hit("repartition.switched")  # from here on the service may start
        digests = {new.stage or MAIN_NAME: copy.digest(new) for new in plan.plans}
    _clear(site.settings, log, plan.plans)
    hit("repartition.done")
    return RepartitionResult(
        rows=rows,
        size=size,
        waiting=copy.marker.waiting,
        digests=digests,
        seconds=time.monotonic() - begun,
        stopped_s=stopped_s,
    )


def _copy(copy: _Copy, on_wait: Callable[[Refused], None], wait_s: float, *, is_proved: bool) -> None:
    """Until all is copied but the last part, and nobody can add to that any more."""
    plan, site = copy.plan, copy.plan.site
    copy.follow()
    if not copy.marker.ends and not is_proved:  # else it was proved, and only what ends the copy is written again
        copy.prove()
    hit("repartition.copied")
    deadline = time.monotonic() + wait_s
    while True:
        blocked = _blocked(plan)
        if blocked is None:
            _make(site.log, [TopicSpec(switch_topic(site.settings.service), plan.to, {}, site.settings.replication)])
            hit("repartition.fenced")
            blocked = _blocked(plan)
            if blocked is None:
                return
            _delete(site.log, [switch_topic(site.settings.service)])
        if time.monotonic() > deadline:
            raise blocked
        on_wait(blocked)
        if not copy.follow():
            time.sleep(LOOK_S)


def abort(settings: ServiceFile, log: Log) -> bool:
    """Give up what was begun; whether there was anything. The switch is never taken back."""
    settings = with_published_rules(settings, log)
    marker = marker_of(settings, log)
    if marker is None:
        return False
    if has_switched(settings, log, marker):
        raise Refused(
            "repartition-unfinished",
            f"the switch of {settings.service} to {marker.to} partitions was begun, and cannot be taken back",
            f"Go on with it: `samovar repartition CONFIG --partitions {marker.to}`.",
        )
    _fence(settings, log, marker)
    _clear(settings, log, plans_of(settings, marker.to))
    return True


def has_switched(settings: ServiceFile, log: Log, marker: RepartitionMarker | None) -> bool:
    """Whether there is no way back."""
    name = switch_topic(settings.service)
    return marker is not None and marker.settled and name in log.topics([name])


def copy_topic(settings: ServiceFile, plan: Plan) -> str:
    return f"{marker_topic(settings.service)}.of.{plan.stage or MAIN_NAME}"


def _write_marker(site: StateLocation, marker: RepartitionMarker) -> None:
    topic = marker_topic(site.settings.service)
    site.log.append([Append(topic=topic, records=[(MARKER_ROW, marker.packed())], partition=0)])


def _begin(plan: RepartitionPlan) -> RepartitionMarker:
    """From nothing: a copy of another cut is of no use."""
    settings, replication = plan.site.settings, plan.site.settings.replication
    if plan.marker is not None:
        _fence(settings, plan.site.log, plan.marker)
    _clear(settings, plan.site.log, plan.plans)
    more = {"min.insync.replicas": "2"} if replication >= 3 else {}
    kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1", **more}
    marker = RepartitionMarker(old=plan.site.partitions, to=plan.to, at_ms=int(time.time() * 1000), cut={})
    copies = [TopicSpec(copy_topic(settings, each), plan.to, kept, replication) for each in plan.plans]
    _make(plan.site.log, [*copies, TopicSpec(marker_topic(settings.service), 1, kept, replication)])
    _write_marker(plan.site, marker)
    return marker


def _clear(settings: ServiceFile, log: Log, plans: Sequence[Plan]) -> None:
    _delete(log, [switch_topic(settings.service)])
    _delete(log, [*(copy_topic(settings, each) for each in plans), marker_topic(settings.service)])
    shutil.rmtree(_scratch(settings), ignore_errors=True)


def _scratch(settings: ServiceFile) -> Path:
    return settings.state / f"repartition{PART}"


# ---------------------------------------------------------------- by many at once


@dataclass(frozen=True, kw_only=True)
class CopyPart:
    """One old task, whose rows up to an offset of its changelog are to be copied."""

    name: str
    stage: str
    partition: int
    to: int  # how many partitions there will be
    start: int
    end: int
    rules: Any  # that made the rows


@dataclass(frozen=True, kw_only=True)
class WholeCopy:
    """All rows of an old task are in the copies. It is written with the last of them; the sums are by new partition."""

    sums: Mapping[int, int]

    def packed(self) -> bytes:
        return json.dumps({"v": 1, "sums": {to: f"{each:x}" for to, each in self.sums.items()}}).encode()


class CopyEngine(Protocol):
    """Copies by many processes at once."""

    def copy(self, site: StateLocation, parts: Sequence[CopyPart]) -> None:
        """All are whole afterwards."""

    def sums(self, site: StateLocation, copies: Sequence[TopicPartition]) -> list[int]:
        """Of the rows of keys that partitions of copies have."""


@contextmanager
def sole_copier(settings: ServiceFile, log: Log, name: str) -> Iterator[Member]:
    """The only one that copies an old task, from now on: anyone who did, and may still live, can write nothing more."""
    topic, deadline = marker_topic(settings.service), time.monotonic() + ENDED_S
    with ExitStack() as stack:
        member: Member | None = None
        while member is None:
            try:
                member = stack.enter_context(sole_member(log, f"{topic}.{name.replace('/', '.')}", topic))
            except Refused as refused:  # on one machine, a process that was killed is waited for
                if refused.code != "slot-taken" or time.monotonic() > deadline:
                    raise
                time.sleep(LOOK_S)
        yield member


def _fence(settings: ServiceFile, log: Log, marker: RepartitionMarker) -> None:
    """Nobody writes to the copies any more but this process."""
    for name in set(marker.cut) - set(marker.done) if marker.spread else ():
        with sole_copier(settings, log, name):
            pass


def whole_copy(settings: ServiceFile, log: Log, name: str) -> WholeCopy | None:
    found = None
    for records in read_all(log, TopicPartition(marker_topic(settings.service), 0)):
        for key, value in records.pairs():
            if key == name.encode() and value is not None:
                raw = json.loads(value)
                found = WholeCopy(sums={int(to): int(each, 16) for to, each in raw["sums"].items()})
    return found


def copy_part(site: StateLocation, part: CopyPart, store: RocksStore) -> None:
    """Writes the rows of an old task's image. A repeated attempt finds it whole, or writes the same rows once more."""
    position = position_of(store)
    if position is None or _rules_of(position) != part.rules:
        raise unsettled("rules were changed while state was copied; the next run copies all of it again")
    places = _places(site.log, site, part.partition, position, store, part.to)
    topic, sums = copy_topic(site.settings, site.plan), Counter[int]()

    def summed() -> Iterator[tuple[int, bytes, bytes]]:  # of what is to be written, not of what was
        for place, row, value in places.rows(store):
            if place != EVERYWHERE:
                sums[place] += row_sum([(row, value)])
                yield place, row, value

    with sole_copier(site.settings, site.log, part.name) as member:
        if whole_copy(site.settings, site.log, part.name) is not None:
            return
        for append in _appends(topic, summed(), site.log.tunables.append_rows):
            member.transact([append], {})
        whole = WholeCopy(sums={to: each % SUMS for to, each in sums.items()})
        mark = Append(
            topic=marker_topic(site.settings.service), records=[(part.name.encode(), whole.packed())], partition=0
        )
        member.transact([mark], {})


def copied_sum(store: Readable) -> int:
    """Of the image of a copy."""
    return row_sum(_rows_of(store, (ROW, USER)))


def _places(log: Log, here: StateLocation, partition: int, position: Position, store: RocksStore, to: int) -> RowPlaces:
    plan, _ = plan_at_work(log, here.plan, partition, position, store)
    streams = here.settings.streams
    return RowPlaces(plan, partition, here.partitions, to, lambda rule: placing_of(rule, streams))


def _appends(topic: str, rows: Iterator[tuple[int, bytes, bytes]], most: int) -> Iterator[Append]:
    """Rows of keys, by their new partitions."""
    batches: dict[int, list[Pair]] = {}
    for partition, row, value in rows:
        if partition != EVERYWHERE:
            batches.setdefault(partition, []).append((row, value))
            if len(batches[partition]) >= most:
                yield Append(topic=topic, records=batches.pop(partition), partition=partition)
    for partition, batch in batches.items():
        yield Append(topic=topic, records=batch, partition=partition)


# ---------------------------------------------------------------- the copy


@dataclass(kw_only=True)
class _Source:
    """One old task whose rows are copied, and its image."""

    name: str
    here: StateLocation
    new: Plan
    partition: int
    store: RocksStore
    places: RowPlaces | None = None  # known when there is a state


class _Copy:
    """The source of truth for which rows of the old tasks are in the copies, and that they are the same there."""

    def __init__(self, plan: RepartitionPlan, on_progress: OnProgress) -> None:
        self.plan, self.log, self.on_progress = plan, plan.site.log, on_progress
        self.scratch = _scratch(plan.site.settings)
        self._open = ExitStack()
        self._copies: dict[tuple[str, int], RocksStore] = {}
        marker = plan.marker
        self.sources: list[_Source] = []
        if not plan.is_switching:
            if marker is None or not self._is_of_this_state(marker):
                marker = _begin(plan)
            for here, new in zip(plan.site.stages(), plan.plans, strict=True):
                for partition in range(plan.site.partitions):
                    store = self._image(here.changelog(partition))
                    self.sources.append(
                        _Source(
                            name=f"{here.stage or MAIN_NAME}/{partition}",
                            here=here,
                            new=new,
                            partition=partition,
                            store=store,
                        )
                    )
        assert marker is not None
        self.marker = marker

    def close(self) -> None:
        self._open.close()

    def _is_of_this_state(self, marker: RepartitionMarker) -> bool:
        """Whether what was copied is of these changelogs and rules, none of their tombstones can be gone since, and
        nothing was processed after the copy was ended.
        """
        now_ms, age = int(time.time() * 1000), self.plan.site.settings.changelog.delete_retention_ms // 2
        for here in self.plan.site.stages():
            for partition in range(self.plan.site.partitions):
                name, changelog = f"{here.stage or MAIN_NAME}/{partition}", here.changelog(partition)
                position = self.plan.positions.get((here.stage, partition))
                known = marker.cut.get(name)
                if known is not None and (
                    known[0] != changelog.topic.id or position is None or marker.rules.get(name) != _rules_of(position)
                ):
                    return False
                if marker.ends and marker.ends.get(name) != changelog.bounds.end:
                    return False
        return now_ms - marker.at_ms < age

    def _image(self, changelog: ChangelogPartition) -> RocksStore:
        folder = self.scratch / changelog.topic.id / str(changelog.at.partition)
        make_private(folder.parent)
        return self._open.enter_context(closing(RocksStore(folder)))

    def copies(self, new: Plan) -> list[RocksStore]:
        """Images of the copies of a stage, as they are now."""
        found = []
        for partition in range(self.plan.to):
            at = TopicPartition(copy_topic(self.plan.site.settings, new), partition)
            changelog = ChangelogPartition.load(self.log, at, 0)
            if (new.stage, partition) not in self._copies:
                self._copies[new.stage, partition] = self._image(changelog)
            _advance(self._copies[new.stage, partition], self.log, changelog, changelog.bounds.end)
            found.append(self._copies[new.stage, partition])
        return found

    def digest(self, new: Plan) -> str:
        return digest(_once(merge(*map(_rows_of, self.copies(new)), key=itemgetter(0))))

    def _mark(self, **changes: Any) -> None:
        self.marker = replace(self.marker, **changes)
        _write_marker(self.plan.site, self.marker)

    # ------------------------------------------------------------ rows

    def spread(self, engine: CopyEngine) -> bool:
        """Let others copy what is not copied yet; whether all of it was compared. Else that is done afterwards."""
        site, cut, rules, parts = self.plan.site, dict(self.marker.cut), dict(self.marker.rules), []
        for source in self.sources:
            name, changelog = source.name, source.here.changelog(source.partition)
            if name not in cut:
                position = last_position(self.log, changelog)
                if position is None:
                    continue
                cut[name], rules[name] = [changelog.topic.id, changelog.bounds.end], _rules_of(position)
            if name not in self.marker.done:
                parts.append(
                    CopyPart(
                        name=name,
                        stage=source.here.stage,
                        partition=source.partition,
                        to=self.plan.to,
                        start=changelog.bounds.begin,
                        end=cut[name][1],
                        rules=rules[name],
                    )
                )
        if parts:
            self._mark(cut=cut, rules=rules, spread=True)
            engine.copy(site, parts)
            hit("repartition.spread")
        found: dict[str, Counter[int]] = {new.stage: Counter() for new in self.plan.plans}
        is_whole = True
        for source in self.sources:
            if source.name in cut:
                whole = self._whole(source.name)
                is_whole &= (
                    whole is not None
                    and self.marker.followed.get(source.name, cut[source.name][1]) == cut[source.name][1]
                )
                found[source.new.stage].update({} if whole is None else whole.sums)
                if whole is not None and source.name not in self.marker.done:
                    self._done(source.name)
        if not is_whole or self.marker.ends:
            return False
        copies = [(new, to) for new in self.plan.plans for to in range(self.plan.to)]
        sums = engine.sums(site, [TopicPartition(copy_topic(site.settings, new), to) for new, to in copies])
        return sums == [found[new.stage][to] % SUMS for new, to in copies]

    def _whole(self, name: str) -> WholeCopy | None:
        """What others copied. Nobody of them writes any more."""
        if not self.marker.spread:
            return None
        settings = self.plan.site.settings
        if name in self.marker.done:
            return whole_copy(settings, self.log, name)
        with sole_copier(settings, self.log, name):
            return whole_copy(settings, self.log, name)

    def _done(self, name: str) -> None:
        followed = {**self.marker.followed, name: self.marker.cut[name][1]}
        self._mark(done=(*self.marker.done, name), followed=followed)

    def follow(self) -> int:
        """Bring the copies to where the changelogs are; how many records these had."""
        return sum(self._follow(source, source.here.changelog(source.partition)) for source in self.sources)

    def _follow(self, source: _Source, changelog: ChangelogPartition) -> int:
        name, end, store = source.name, changelog.bounds.end, source.store
        checkpoint = checkpoint_of(store)
        if name not in self.marker.cut or name not in self.marker.done:
            _advance(store, self.log, changelog, end)
        elif checkpoint is None:  # of a copy by others, or lost
            _advance(store, self.log, changelog, self.marker.followed[name])
        position = position_of(store)
        if position is None:
            return 0
        if source.places is None:
            source.places = _places(self.log, source.here, source.partition, position, store, self.plan.to)
        if name not in self.marker.cut:
            self._mark(
                cut={**self.marker.cut, name: [changelog.topic.id, end]},
                rules={**self.marker.rules, name: _rules_of(position)},
            )
        if self.marker.cut[name][0] != changelog.topic.id:
            raise unsettled(f"the changelog {changelog.at} was made again while it was copied")
        if name not in self.marker.done:
            if self._whole(name) is None:
                self._copy_rows(source, source.places)
            self._done(name)
        start = at = self.marker.followed[name]
        changed: dict[bytes, int] = {}
        while at < end:
            to = min(at + FOLLOW, end)
            _advance(store, self.log, changelog, to)
            self._refuse_other_rules(source)
            changed |= self._forward(source, changelog, at, to)
            self._mark(followed={**self.marker.followed, name: to})
            checkpoint = checkpoint_of(store)
            if checkpoint is None or checkpoint.next <= to:  # else an earlier run has come further: compared there
                self._compare(source, changed)
                changed = {}
            at = to
        return end - start

    def _refuse_other_rules(self, source: _Source) -> None:
        position = position_of(source.store)
        if position is None or _rules_of(position) != self.marker.rules[source.name]:
            raise unsettled("rules were changed while state was copied; the next run copies all of it again")

    def _copy_rows(self, source: _Source, places: RowPlaces) -> None:
        """All rows of an image; a row twice, after a kill, is one row."""
        topic, rows = copy_topic(self.plan.site.settings, source.new), 0
        for append in _appends(topic, places.rows(source.store), self.log.tunables.append_rows):
            assert append.partition is not None
            self._append(topic, {append.partition: append.records})
            rows += len(append.records)
            self.on_progress(source.name, rows)

    def _append(self, topic: str, batches: Mapping[int, Sequence[Pair]]) -> None:
        appends = [Append(topic=topic, records=batch, partition=partition) for partition, batch in batches.items()]
        if appends:
            self.log.append(appends)

    def _forward(self, source: _Source, changelog: ChangelogPartition, start: int, end: int) -> dict[bytes, int]:
        """What a stretch of a changelog has, deletions too; which rows these are, and where they went."""
        assert source.places is not None
        batches: dict[int, dict[bytes, bytes | None]] = {}
        moved: dict[bytes, int] = {}
        with closing(PartitionCursor(self.log, changelog.at, start, available=True)) as cursor:
            for records in cursor.read_to(end):
                for row, value in records.pairs():
                    place = None if row is None else source.places.place(row)
                    if row is not None and place is not None and place != EVERYWHERE:
                        moved[row] = place
                        batches.setdefault(place, {})[row] = value
                self.on_progress(source.name, records.next)
        topic = copy_topic(self.plan.site.settings, source.new)
        self._append(topic, {place: list(rows.items()) for place, rows in batches.items()})
        return moved

    # ------------------------------------------------------------ what ends it

    def settle(self) -> None:
        """What waits for event time, what tasks hold of their own, and positions. Nobody writes any more."""
        plan, log = self.plan, self.log
        self.follow()
        ends = {source.name: source.here.changelog(source.partition).bounds.end for source in self.sources}
        self._mark(ends=ends, at_ms=int(time.time() * 1000))
        positions = {
            (source.here.stage, source.partition): position
            for source in self.sources
            if (position := position_of(source.store)) is not None
        }
        plan = replace(plan, positions=positions)
        moved = {
            stage: RepartitionCut(self.marker.at_ms, plan.site.partitions, _replaced(plan), {})
            for stage in _stages(plan)
        }
        nexts, waiting = _nexts(plan), 0
        for new in plan.plans:
            tasks, everywhere = [], dict[bytes, bytes]()
            rows: dict[int, list[Pair]] = {}
            for source in self.sources:
                position = positions.get((source.here.stage, source.partition))
                if source.new is not new or position is None:
                    continue
                task = old_task(log, source.here.plan, source.partition, position, source.store)
                tasks.append(task)
                assert source.places is not None
                for place, row, value in source.places.rows(source.store, (USER,)):
                    if place == EVERYWHERE:
                        same_everywhere(everywhere, row, value, new.stage)
                for stream, text, event in task.waiting:
                    rows.setdefault(partition_of(text, plan.to), []).append((event.row(stream), event.packed()))
            waiting += sum(map(len, rows.values()))
            self._append(copy_topic(plan.site.settings, new), rows)
            _copy_heads(plan, new, merged(tasks, new, nexts, moved[new.stage]), everywhere)
            copies = self.copies(new)
            for place, some in rows.items():
                for key, packed in some:
                    if key is None or copies[place].get(key) != packed:
                        raise _differs(f"the copy of the stage {new.stage or MAIN_NAME}", key)
        self._mark(settled=True, waiting=waiting)

    # ------------------------------------------------------------ the proof

    def prove(self) -> None:
        """All rows of keys, read again, must be what they were, byte by byte. Then only what changes is."""
        for new in self.plan.plans:
            sources = [each for each in self.sources if each.new is new and each.places is not None]
            rows = [
                ((row, value) for place, row, value in each.places.rows(each.store) if place != EVERYWHERE)
                for each in sources
                if each.places is not None
            ]
            before = digest(merge(*rows, key=itemgetter(0)))
            copies = (_rows_of(store, (ROW, USER)) for store in self.copies(new))
            if digest(merge(*copies, key=itemgetter(0))) != before:
                raise _differs(f"the copy of the stage {new.stage or MAIN_NAME}", None)

    def _compare(self, source: _Source, changed: Mapping[bytes, int]) -> None:
        if not changed:
            return
        copies = self.copies(source.new)
        for row, place in changed.items():
            if copies[place].get(row) != source.store.get(row):
                raise _differs(f"the copy of the stage {source.new.stage or MAIN_NAME}", row)


def _rules_of(position: Position) -> list[Any]:
    return [dict(position.rules), list(position.streams)]


def _advance(store: RocksStore, log: Log, changelog: ChangelogPartition, to: int) -> None:
    """An image on disk, from where it is."""
    checkpoint = checkpoint_of(store)
    start = changelog.bounds.begin if checkpoint is None else checkpoint.next
    if start < to:
        with closing(Restore(store, log, changelog, start, to=to)) as restore:
            while not restore.advance():
                pass


def _differs(what: str, row: bytes | None) -> Refused:
    return Refused(
        "repartition-differs",
        f"{what} does not hold the rows that the old changelogs had",
        "Nothing was lost: run it again, or before the switch give it up with --abort; and tell the makers of Samovar.",
        "" if row is None else f"the first: {row!r}",
    )


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


def _copy_heads(plan: RepartitionPlan, new: Plan, tasks: NewTasks, everywhere: Mapping[bytes, bytes]) -> None:
    """What a new task has of its own; its position is the last row, as in every commit."""
    appends = []
    for partition, position in enumerate(tasks.positions):
        entry = pack_entry(first_entry(position, tasks.facts, plan.to))
        own: list[Pair] = [*tasks.rows, *everywhere.items(), (JOURNAL_ROW, entry), (POSITION, pack_position(position))]
        appends.append(Append(topic=copy_topic(plan.site.settings, new), records=own, partition=partition))
    plan.site.log.append(appends)


def _rows_of(store: Readable, kinds: Sequence[bytes] = KEYED) -> Iterator[tuple[bytes, bytes]]:
    for kind in kinds:
        yield from store.range(kind, bytes([kind[0] + 1]))


def _once(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Rows in order, each once: some are in every partition."""
    return (next(same) for _, same in groupby(rows, key=itemgetter(0)))


# ---------------------------------------------------------------- the switch


def _switch(plan: RepartitionPlan, copy: _Copy) -> tuple[int, int]:
    """Make the topics again, fill them and read them again; how many rows that is, and bytes. It may be ended at any
    point, and then begins again. A container that came all the same ends it: what that wrote is then made again.
    """
    site, log = plan.site, plan.site.log
    for name in plan.grows:
        if isinstance(log, EmbeddedLog):
            log.grow(name, plan.to)
    names = {spec.name for spec in plan.topics}
    for old in site.plans:
        names |= {old.topics.changelog, old.topics.journal, *(each.topic for each in old.forwards)}
    _delete(log, sorted(names))
    hit("repartition.deleted")
    _make(log, plan.topics)
    hit("repartition.made")
    ids = {name: topic.id for name, topic in log.topics(sorted(names)).items()}
    rows = size = 0
    for new in plan.plans:
        for partition, store in enumerate(copy.copies(new)):
            count, bytes_ = _fill(log, new, partition, store, ids, copy.on_progress)
            rows, size = rows + count, size + bytes_
    hit("repartition.filled")
    for new in plan.plans:
        for partition, store in enumerate(copy.copies(new)):
            _prove_filled(log, new, partition, store)
    refuse_members(log, site.settings.service)
    return rows, size


def _logged(store: Readable) -> Iterator[tuple[bytes, bytes]]:
    """What a new changelog holds, but for its position."""
    return ((row, value) for row, value in logged_rows(store) if row != POSITION)


def _batches(rows: Iterator[tuple[bytes, bytes]], size: int) -> Iterator[list[tuple[bytes, bytes]]]:
    while batch := list(islice(rows, size)):
        yield batch


def _fill(
    log: Log, new: Plan, partition: int, store: Readable, ids: Mapping[str, str], on_progress: OnProgress
) -> tuple[int, int]:
    rows = size = 0
    for batch in _batches(_logged(store), log.tunables.append_rows):
        log.append([Append(topic=new.topics.changelog, records=batch, partition=partition)])
        rows, size = rows + len(batch), size + sum(len(row) + len(value) for row, value in batch)
        on_progress(name_of(new.stage, partition), rows)
    entry, head = store.get(JOURNAL_ROW), store.get(POSITION)
    assert entry is not None
    assert head is not None
    position = pack_position(_placed(unpack_position(head), new, ids))
    log.append(
        [
            Append(topic=new.topics.changelog, records=[(POSITION, position)], partition=partition),
            Append(topic=new.topics.journal, records=[(str(partition).encode(), entry)], partition=partition),
        ]
    )
    return rows, size


def _prove_filled(log: Log, new: Plan, partition: int, store: Readable) -> None:
    """What a new changelog has must be what its copy has, row after row."""
    at = TopicPartition(new.topics.changelog, partition)
    begin, end = log.bounds([at])[at]
    with closing(PartitionCursor(log, at, begin, available=True)) as cursor:
        written = chain.from_iterable(records.pairs() for records in cursor.read_to(end))
        for there, wanted in zip_longest((each for each in written if each[0] != POSITION), _logged(store)):
            if there != wanted:
                raise _differs(f"the new changelog {at}", (wanted or there)[0])


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
