"""How a container is doing, in numbers. Nothing here is on the way of a batch.

    the container's thread  --looks, once a second-->  Look  --taken by another thread-->  topic, /metrics

`MetricsSampler` looks; it is called between two cycles, and is the only one who touches tasks. What would have to walk
over all states is asked for only so often that it takes a hundredth of the time. `samovar.tasks.runtime.heartbeat`
tells.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from samovar.changelog.formats.heartbeat import ActiveRule, InputReport, RestoreReport, RuleReport, TaskReport
from samovar.changelog.log import TopicPartition
from samovar.changelog.restore.restore import Restore
from samovar.tasks.input.source import known_time
from samovar.tasks.model.clock import Clock
from samovar.tasks.model.plan import PublishedRule
from samovar.tasks.model.results import Counts
from samovar.tasks.rules.processor import RuleProcessor
from samovar.tasks.runtime.container import Container
from samovar.tasks.runtime.stream_task import StreamTask, TaskState

LOOK_EVERY_S = 1.0
WALK_EVERY_S = 5.0
WALK_SHARE = 0.01  # of the time, at most, to count what only a walk over all states can tell


@dataclass(frozen=True, kw_only=True)
class MetricsSnapshot:
    """A container at one moment."""

    slot: int
    time_ms: int
    tasks: tuple[TaskReport, ...]
    taken_ms: Mapping[TopicPartition, int]  # log time of the last record taken of an input
    counts: Counts
    caught_up: bool
    rules: tuple[RuleReport, ...] = ()
    memory_bytes: int = 0  # of states in memory
    restored: int = 0  # changelog records, since the container began
    active_rules: tuple[ActiveRule, ...] = ()
    changes: Mapping[tuple[str, int], int] = field(default_factory=dict)  # task to the change of rules it took last
    rules_refused: str | None = None
    unread: Mapping[str, int] = field(default_factory=dict)  # by stream that has grown: records that are not read

    @property
    def shape(self) -> object:
        """What is told at once when it changes."""
        return [(each.stage, each.partition, each.life) for each in self.tasks]


class MetricsSampler:
    """Looks at a container between its cycles. `latest` may be read by any thread."""

    def __init__(self, container: Container, clock: Clock) -> None:
        self._container = container
        self.watch = container.watch
        self._clock = clock
        self.on_change: Callable[[], None] = lambda: None
        self._next_s = 0.0
        self._rules = RuleTotals()
        self._live_partials: dict[str, int] = {}  # as the last walk over all states found it, and how long that took
        self._memory_bytes = 0
        self._walked_at_s = self._walk_took_s = 0.0
        self._restores: dict[tuple[str, int], tuple[float, int]] = {}  # when first seen, and what was done then
        self._records: dict[Restore, int] = {}
        self._restored = 0
        self.latest: MetricsSnapshot | None = None

    def __call__(self, *, now: bool = False) -> None:
        """Look, if it is time; on every change of tasks at once."""
        now_s, before = time.monotonic(), self.latest
        if not now and before is not None and now_s < self._next_s:
            states = [task.state.value for task in self._container.tasks.values()]
            if states == [each.life for each in before.tasks]:
                return
        self._next_s = now_s + LOOK_EVERY_S
        self.latest = self._sample(now_s)
        if before is None or before.shape != self.latest.shape:
            self.on_change()

    def _sample(self, now_s: float) -> MetricsSnapshot:
        container = self._container
        tasks = list(container.tasks.values())
        running = [task for task in tasks if task.state is TaskState.RUNNING]
        status = container.status()
        self._rules.take(running)
        if now_s - self._walked_at_s >= max(WALK_EVERY_S, self._walk_took_s / WALK_SHARE):
            self._walk(running)
        begun = [task.restore for task in tasks if task.state in (TaskState.RESTORING, TaskState.RUNNING)]
        self._restored += sum(restore.records - self._records.get(restore, 0) for restore in begun)
        self._records = {restore: restore.records for restore in begun}
        changes = {(task.plan.stage, task.partition): task.processor.plan.ruleset_change for task in running}
        return MetricsSnapshot(
            slot=container.slot,
            time_ms=self._clock.wall_ms(),
            tasks=tuple(self._report(task, now_s) for task in tasks),
            taken_ms={
                TopicPartition(each.spec.topic, task.partition): each.taken_ms
                for task in running
                for each in task.processor.source.sources.values()
                if each.taken_ms is not None
            },
            counts=status.counts,
            caught_up=status.caught_up,
            rules=self._rules.looks(self._live_partials),
            memory_bytes=self._memory_bytes,
            restored=self._restored,
            active_rules=active_rules(running),
            changes={
                place: ruleset_change.change
                for place, ruleset_change in changes.items()
                if ruleset_change is not None and ruleset_change.change
            },
            rules_refused=container.rule_source.trouble,
            unread=container.watch.unread,
        )

    def _report(self, task: StreamTask, now_s: float) -> TaskReport:
        place = task.plan.stage, task.partition
        if task.state is not TaskState.RUNNING:
            report = None
            if task.state is TaskState.RESTORING:
                restore = task.restore
                done, todo = restore.next - restore.start, restore.end - restore.start
                since_s, before = self._restores.setdefault(place, (now_s, done))
                per_s = (done - before) / (now_s - since_s) if now_s > since_s and done > before else None
                report = RestoreReport(done, todo, per_s)
            return TaskReport(stage=place[0], partition=place[1], life=task.state.value, restore=report)
        self._restores.pop(place, None)
        source = task.processor.source
        return TaskReport(
            stage=place[0],
            partition=place[1],
            life=task.state.value,
            watermark=known_time(source.watermark),
            blocked_by=source.blocked_by(),
            inputs=tuple(
                InputReport(stream=each.spec.stream, topic=each.spec.topic, partition=task.partition, next=each.next)
                for each in source.sources.values()
            ),
            state_bytes=task.store.size_bytes(),
            waiting=len(source.buffer.pending),
        )

    def _walk(self, running: Iterable[StreamTask]) -> None:
        self._walked_at_s, self._memory_bytes, live = time.monotonic(), 0, Counter[str]()
        for states in [processor.state_cache.states for processor in rule_processors(running)]:
            self._memory_bytes += states.memory_bytes()
            for number, rule in enumerate(states.program.rules):
                live[rule.rule.id] += states.counters(number).live_partials
        self._live_partials, self._walk_took_s = live, time.monotonic() - self._walked_at_s


class RuleTotals:
    """What rules did, summed over tasks that come and go: a state in memory that is let go of begins again at 0."""

    def __init__(self) -> None:
        self._totals: dict[str, list[float]] = {}
        self._seen: dict[tuple[int, str], tuple[float, ...]] = {}
        self._kept: dict[str, list[int]] = {}
        self._kept_seen: dict[tuple[int, str], tuple[int, int]] = {}

    def take(self, running: Sequence[StreamTask]) -> None:
        seen: dict[tuple[int, str], tuple[float, ...]] = {}
        kept_seen: dict[tuple[int, str], tuple[int, int]] = {}
        for processor in rule_processors(running):
            states = processor.state_cache.states
            for number, rule in enumerate(states.program.rules):
                told = states.tallies(number)
                dropped = told.dropped_partials, told.dropped_events, told.dropped_matches
                now = *map(float, (told.matches, told.suppressed, *dropped, told.no_key)), told.ns / 1e9
                place = states.serial, f"{rule.rule.id}@{rule.version}"
                before = self._seen.get(place, (0.0,) * len(now))
                totals = self._totals.setdefault(rule.rule.id, [0.0] * len(now))
                for at, (each, other) in enumerate(zip(now, before, strict=True)):
                    totals[at] += each - other
                seen[place] = now
            # Matches that raised no alert; rules that begin again in a task count from 0 there.
            shadow, limiter = processor.shadow_filter, processor.rate_limiter
            for name in {*shadow.muted, *limiter.throttled}:
                kept = shadow.muted[name], limiter.throttled[name]
                muted_before, throttled_before = self._kept_seen.get((shadow.serial, name), (0, 0))
                sums = self._kept.setdefault(name, [0, 0])
                sums[0] += kept[0] - muted_before
                sums[1] += kept[1] - throttled_before
                kept_seen[shadow.serial, name] = kept
        self._seen, self._kept_seen = seen, kept_seen

    def looks(self, live: Mapping[str, int]) -> tuple[RuleReport, ...]:
        found = []
        for rule, totals in sorted(self._totals.items()):
            matches, suppressed, partials, events, dropped, no_key = map(int, totals[:-1])
            muted, throttled = self._kept.get(rule, (0, 0))
            found.append(
                RuleReport(
                    id=rule,
                    matches=matches,
                    suppressed=suppressed,
                    dropped_partials=partials,
                    dropped_events=events,
                    dropped_matches=dropped,
                    no_key=no_key,
                    seconds=totals[-1],
                    live_partials=live.get(rule, 0),
                    muted=muted,
                    throttled=throttled,
                )
            )
        return tuple(found)


def rule_processors(running: Iterable[StreamTask]) -> list[RuleProcessor]:
    """Those of tasks that run rules, and no code of the user's."""
    return [task.processor for task in running if isinstance(task.processor, RuleProcessor)]


def active_rules(running: Iterable[StreamTask]) -> tuple[ActiveRule, ...]:
    """All rules of a container, also quarantined ones: the status of each, and how many alerts a storm keeps back."""
    found: dict[tuple[str, str, str], int] = {}
    numbers: dict[tuple[str, str, str], int] = {}
    for processor in rule_processors(running):
        for rule in processor.plan.rules:
            place = rule.id, rule.version, status_of(rule, processor.source.watermark)
            storm = 0 if rule.drains else processor.rate_limiter.standing.get(rule.id, 0)
            found[place], numbers[place] = found.get(place, 0) + storm, rule.number
    return tuple(
        ActiveRule(rule=rule, version=version, number=numbers[place], status=status, kept_back=found[place])
        for place in sorted(found)
        for rule, version, status in [place]
    )


def status_of(rule: PublishedRule, watermark: int) -> str:
    if rule.quarantined is not None:
        return "quarantined"
    if rule.drains:
        return "draining"
    if rule.shadow:
        return "shadow"
    return "cold" if rule.alerts_from_ms is not None and watermark < rule.alerts_from_ms else "live"
