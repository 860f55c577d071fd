"""A container: one process, one event loop, over the tasks of the partitions it owns, of all stages.

One cycle: poll, feed the tasks, look at the clock, commit what there is in one transaction, write the stores. A batch
is what was there when it was asked for: small when little comes, which keeps latency low, and large under load. Tasks
that restore do so a little in every cycle, while the others go on.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from samovar.changelog.log import GroupConfig, Log, Member, Records, TopicPartition
from samovar.common.errors import CommitUnknown, Fenced, LogUnavailable, Refused
from samovar.common.failpoints import hit
from samovar.patterns.engine.matcher import BatchTooLarge, RuleFailure
from samovar.state.errors import StoreLocked
from samovar.tasks.model.clock import Clock
from samovar.tasks.model.log_events import LogEvent
from samovar.tasks.model.plan import MAIN, Plan
from samovar.tasks.model.results import NOTHING_SETTLED, Counts, Outcome, SettledRecords, added
from samovar.tasks.runtime.backpressure import Backpressure
from samovar.tasks.runtime.collector import collector_off
from samovar.tasks.runtime.commit_times import CommitTimes
from samovar.tasks.runtime.repartition_fence import refuse_unfinished
from samovar.tasks.runtime.slot_claim import SlotClaim
from samovar.tasks.runtime.stream_task import RulesBehind, StreamTask, TaskConfig, TaskState
from samovar.tasks.runtime.topic_watch import TopicWatch

POLL_S = 0.1
RESTORE_POLL_S = 0.05
TROUBLE_S, TROUBLES = 120.0, 5  # of starting again with nothing committed in between, after which it fails loudly
CALM_S = 60.0  # after which more trouble is new trouble, if all was done in between: a quiet service commits nothing
HELD_MS = 120_000  # how long another process may have a store before that is a failure
ASK_EVERY = 5  # cycles, each of which waits for POLL_S, a container that is done looks whether the others are
FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 5.0  # before starting again


class RuleSource:
    """Where a container's plans come from while it runs: rules may be published at any moment. These never change, as
    in a test or a service without a rules topic. Plans are made next to the loop, which only asks for newer ones.
    """

    @property
    def trouble(self) -> str | None:
        """Why the last change is not taken."""
        return None

    def poll_update(self) -> Sequence[Plan] | None:
        """Plans that were not given out yet; never waits."""
        return None

    def refresh(self) -> None:
        """Read all that was published by now."""

    def quarantine(self, failure: RuleFailure) -> None:
        """Tell all tasks that a rule was taken out; never waits."""


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """How a container is doing, for people and machines. A partition runs when its tasks of all stages do."""

    slot: int
    running: tuple[int, ...]
    restoring: dict[int, tuple[int, int]]  # partition to offsets done and to do
    counts: Counts
    caught_up: bool
    watermarks: dict[int, int] = field(default_factory=dict)  # of the main stage


class Container:
    """The source of truth for which tasks this process runs, and the only one who commits for them."""

    def __init__(
        self,
        plans: Sequence[Plan],
        log: Log,
        slot: int,
        config: TaskConfig,
        clock: Clock,
        tell: Callable[[str], None] = lambda _: None,
        rule_source: RuleSource | None = None,
        claim: SlotClaim | None = None,
    ) -> None:
        """`plans` are one per stage, the main one first. `rule_source` gives others while it runs. Without a `claim`
        nobody else is in its slot.
        """
        self.watch = TopicWatch(log, clock, tell)
        self._claim = claim
        self.rule_source = rule_source or RuleSource()
        self.log = log
        self.slot = slot
        self.config = config
        self.clock = clock
        self.tell = tell
        self.tasks: dict[tuple[str, int], StreamTask] = {}  # by stage and partition
        self._plan(plans)
        self._owned: set[TopicPartition] = set()
        self._stopped = threading.Event()
        self._leaves = False  # for good, when it ends
        self._goes_on = False  # until it is told to stop
        self._member: Member | None = None
        self._gone = Counts()  # of tasks that are closed
        self._rejoins = 0
        self._trouble_since_ms = self._trouble_at_ms = 0
        self._was_done = False  # since the last trouble there was a moment with nothing left to do
        self._commits = 0
        self._polls = self.tunables.commit_polls
        self.commit_times = CommitTimes()
        self._backpressure = Backpressure(self.tunables)
        self._ask_after = 0  # so many cycles
        self._held: dict[tuple[str, int], int] = {}  # task to when its store was first found to be another's

    def _plan(self, plans: Sequence[Plan]) -> None:
        self.plans = {plan.stage: plan for plan in plans}
        self.watch.follow(plans)
        self.plan = plans[0]
        self.tunables = self.plan.tunables
        self._readers: dict[str, list[str]] = defaultdict(list)  # stages by topic
        for plan in plans:
            for spec in plan.inputs:
                self._readers[spec.topic].append(plan.stage)

    # ------------------------------------------------------------ the loop

    def run(self, *, until_caught_up: bool = False, on_cycle: Callable[[RunStatus], None] | None = None) -> Counts:
        """Work until told to stop, or until all input has been processed. Leaves no transaction and no lock (P5)."""
        self._goes_on = not until_caught_up
        self._claim_slot()
        try:
            self.watch.check_now()
            with collector_off():
                while not self._stopped.is_set():
                    wait_s = self.step()
                    if wait_s:
                        self._wait(wait_s)
                    if on_cycle is not None:
                        on_cycle(self.status())
                    if until_caught_up and (self.caught_up() or self._has_no_task()) and self._all_caught_up():
                        break
            self.commit_last()
            if until_caught_up:
                with suppress(LogUnavailable):  # alone, nobody would have to take over from it
                    self._leaves = self._leaves or len(self.log.members(self.config.group)) <= 1
        finally:
            self.close()
            if self._claim is not None:
                self._claim.release()
        return self._gone

    def _claim_slot(self) -> None:
        """Refuse a slot that another container has. A log that does not answer is asked again, as in the loop."""
        if self._claim is None:
            return
        self._claim.wait = self._wait
        while not self._stopped.is_set():
            try:
                self._claim.acquire()
            except (Fenced, CommitUnknown, LogUnavailable) as error:
                self._wait(self._rejoin(error))
            else:
                return

    def _wait(self, seconds: float) -> bool:
        """Let time pass; whether it is to stop."""
        self.clock.wait(seconds, self._stopped)
        return self._stopped.is_set()

    def _has_no_task(self) -> bool:
        """And gets none: others have all partitions."""
        return not self.tasks and self._member is not None and self._member.has_assignment()

    def stop(self) -> None:
        """End after the cycle at hand. On Kafka the partitions wait for this slot until its session is over."""
        self._stopped.set()

    def leave(self) -> None:
        """End after the cycle at hand, for good: its partitions go to the others at once."""
        self._leaves = True
        self._stopped.set()

    def step(self) -> float:
        """One cycle; how many seconds are to pass before the next: some where the log did not let it go to its end."""
        try:
            self.cycle()
        except (Fenced, CommitUnknown, LogUnavailable) as error:
            return self._rejoin(error)
        self._was_done = self._was_done or self.caught_up() or self._has_no_task()
        return 0.0

    def _rejoin(self, error: Exception) -> float:
        """Forget what is not committed, to begin again from the log after so many seconds: another may own it now."""
        now_ms = self.clock.steady_ms()
        if self._was_done and now_ms - self._trouble_at_ms > CALM_S * 1000:
            self._rejoins = 0
        if self._rejoins == 0:
            self._trouble_since_ms = now_ms
        self._rejoins += 1
        self._trouble_at_ms, self._was_done = now_ms, False
        if self._rejoins >= TROUBLES and now_ms - self._trouble_since_ms > TROUBLE_S * 1000:
            raise Refused(
                "log-unusable",
                f"container {self.slot} had to start again {self._rejoins} times in {TROUBLE_S:.0f} s and committed"
                " nothing in between",
                "Look at the log's own messages and at other containers of this slot; nothing was lost.",
                str(error),
            ) from error
        text = f"container {self.slot} starts again: {type(error).__name__}: {error}"
        self.tell(LogEvent(text, "restart", "warning", error=type(error).__name__, times=self._rejoins))
        with suppress(LogUnavailable):
            self.close()
        if isinstance(error, Fenced) and self._claim is not None:
            with suppress(LogUnavailable):
                self._claim.keep()
        return min(FIRST_WAIT_S * 2.0 ** (self._rejoins - 1), LONGEST_WAIT_S)

    def cycle(self) -> None:
        """Poll, feed, tick, commit, and restore a little. Rules change between two cycles."""
        self.watch.check()
        self._renew()
        member = self._join_group()
        due = [task for task in self._running() if task.migration_due and self._can_commit(task)]
        if any(task.dirty for task in due):
            self._commit(member)
        for task in due:
            self._migrate(member, task)
        busy = any(task.state is TaskState.RESTORING for task in self.tasks.values()) or self._indexing() is not None
        self._recover(member)
        taken = whole = self._take(member, 0.0 if busy else POLL_S)
        for _ in range(self._polls - 1):
            if taken < max(1, self.tunables.poll_records // 2):
                break
            taken = self._take(member, 0.0)
            whole += taken
        self._recover(member)
        now_ms, standing = self.clock.steady_ms(), member.standing()
        for task in self._running():
            ended = [at for at in task.inputs if member.at_end(at) and at not in self._backpressure.paused]
            self._attempt(task, partial(task.tick, {at: standing.get(at) for at in ended}, now_ms))
        self._recover(member)
        self._commit(member, whole)
        self._backpressure.update_paused(member, self.plans.values(), self.tasks.values(), now_ms)
        indexing = self._indexing()
        if indexing is not None:  # a little of one task's timer index: events go first
            self._attempt(indexing, indexing.processor.index_some)
        for task in [task for task in self.tasks.values() if task.state is not TaskState.RUNNING]:
            self._restore_some(member, task)

    def _indexing(self) -> StreamTask | None:
        """The first task whose timer index is being built."""
        for task in self._running():
            if task.processor.indexing:
                return task
        return None

    # ------------------------------------------------------------ rules change

    def _renew(self) -> None:
        """Take plans that were made meanwhile. Where they read other topics, all tasks begin again in a new group."""
        plans = self.rule_source.poll_update()
        if plans is None:
            return
        is_other = topics_read(plans) != topics_read(list(self.plans.values()))
        self._plan(plans)
        if is_other:
            self.tell(LogEvent(f"container {self.slot} begins to read other topics: the rules need them", "replanned"))
            if self._member is not None:
                self._commit(self._member)
            self.close()
        for (stage, _), task in self.tasks.items():
            task.plan = self.plans[stage]

    def _migrate(self, member: Member, task: StreamTask) -> None:
        """A change is a transaction of its own: afterwards there are only its rules, before it only the old ones."""
        hit("switch.before")
        outcome = task.begin_migration()
        last = self._transact(member, [outcome])
        hit("switch.sent")
        task.committed(outcome, last[task.changelog.at], self.clock.wall_ms())
        task.end_migration()
        hit("switch.after")
        self._tell_notes(task)
        while task.backfill_failures:
            self.rule_source.quarantine(task.backfill_failures.pop(0))

    def _catch_up_with(self, behind: RulesBehind) -> None:
        """Another container was there first: read what it had read."""
        self.rule_source.refresh()
        self._renew()
        known = max(
            (plan.ruleset_change.change for plan in self.plans.values() if plan.ruleset_change is not None), default=0
        )
        if known < behind.change:
            raise Refused(
                "rules-topic-lost",
                f"{behind}, and the rules topic of the service ends at change {known}",
                "Put the rules topic back. Without it, `samovar rewind` to before the first change, or give the service"
                " another name.",
            )

    def _take(self, member: Member, timeout_s: float) -> int:
        """Feed what one poll gives; how many records that was."""
        taken = 0
        for records in member.poll(self.tunables.poll_records, timeout_s):
            readers = self._reading(TopicPartition(records.topic, records.partition))
            settled = NOTHING_SETTLED
            for task in [task for task in readers if task.state is TaskState.RUNNING]:
                if any(each.is_abandoned for each in readers):
                    break  # all of them read on from where that task stands
                # A stage that came later reads again what the main one judged long ago.
                before = settled.before
                if task.plan.stage == MAIN:
                    before = task.processor.source.by_topic[records.topic].next
                count, aside = self._feed(member, task, records, settled)
                if len(readers) > 1:
                    settled = SettledRecords(before, settled.offsets | aside)
                taken += count
        return taken

    def _feed(
        self, member: Member, task: StreamTask, records: Records, settled: SettledRecords
    ) -> tuple[int, frozenset[int]]:
        """Feed one task, committing before finds take much memory; how many records it took, and which it put aside."""
        taken, aside = 0, set[int]()

        def feed(piece: Records) -> None:
            aside.update(task.feed(piece, settled))

        for piece in [records] if task.piece_rows is None else task.pieces(records):
            rows = len(piece.offsets)
            if not self._attempt(task, partial(feed, piece), rows):
                break
            taken += rows
            found = sum(each.processor.found_bytes for each in self._running())
            if found > task.config.budget.step_bytes or (task.piece_rows is not None and found):
                self._commit(member)
        return taken, frozenset(aside)

    # ------------------------------------------------------------ steps that were abandoned

    def _attempt(self, task: StreamTask, act: Callable[[], None], rows: int = 0) -> bool:
        """Whether a step went to its end; else the task stands where it last committed."""
        try:
            act()
        except RuleFailure as failure:
            task.abandon(failure, rows)
        except BatchTooLarge:
            task.abandon(None, rows)
        return not task.is_abandoned

    def _recover(self, member: Member) -> None:
        """Tasks whose step was abandoned go on: without the rule that was at fault, and from their own positions."""
        for task in [task for task in self._running() if task.is_abandoned]:
            self._quarantine(member, task)
            task.is_abandoned = False
            self._seek(member, task, resume=False)

    def _quarantine(self, member: Member, task: StreamTask) -> None:
        """As a change of rules: a transaction of its own, at the position before the batch. Then all are told."""
        failure = task.failure
        outcome = None if failure is None else task.begin_quarantine()
        if failure is None or outcome is None:
            return
        last = self._transact(member, [outcome])
        task.committed(outcome, last[task.changelog.at], self.clock.wall_ms())
        task.end_migration()
        self._tell_notes(task)
        self.rule_source.quarantine(failure)

    def _seek(self, member: Member, task: StreamTask, *, resume: bool) -> None:
        """Read its inputs on from where all are that take them."""
        for at in task.inputs:
            readers = self._reading(at)
            if all(each.state is TaskState.RUNNING for each in readers):
                member.seek(at, min(each.positions()[at] for each in readers))
                if resume:
                    member.resume([at])

    def _reading(self, at: TopicPartition) -> list[StreamTask]:
        """The tasks that take records of a partition."""
        found = (self.tasks.get((stage, at.partition)) for stage in self._readers[at.topic])
        return [task for task in found if task is not None]

    def _join_group(self) -> Member:
        if self._member is None:
            config = GroupConfig(
                group=self.config.group,
                slot=self.slot,
                topics=list(self._readers),
                delivery=self.config.delivery,
                on_assigned=self._on_assigned,
                on_revoked=self._drop,
                on_lost=self._drop,
                lead=self.plan.topics.journal,
            )
            self._member = self.log.join(config)
        return self._member

    def _commit(self, member: Member, taken: int = 0) -> None:
        """Everything that the tasks have, as one transaction; then each store (P3)."""
        running = self._running()
        dirty = [task for task in running if task.processor.dirty and self._can_commit(task)]
        if not dirty:
            now_ms = self.clock.steady_ms()
            for task in running:
                task.snapshot_if_due(now_ms)
            return
        outcomes = [task.outcome() for task in dirty]
        began_s = time.monotonic()
        last = self._transact(member, outcomes)
        self.commit_times.add(time.monotonic() - began_s)
        self._backpressure.in_flight.sent(sum(outcome.forwarded_bytes for outcome in outcomes), last)
        now_ms, wall_ms = self.clock.steady_ms(), self.clock.wall_ms()
        for task, outcome in zip(dirty, outcomes, strict=True):
            task.committed(outcome, last[task.changelog.at], wall_ms)
            task.snapshot_if_due(now_ms)
        self._rejoins = 0
        self._commits += 1
        rows = sum(len(each.changes) for each in outcomes)
        is_time = self._commits % self.tunables.memory_commits == 0
        if is_time or rows > self.tunables.memory_rows:  # hold no more in memory than the cache may; the stores have it
            sizes = {task: task.processor.memory_bytes() for task in running}
            for task in sorted(sizes, key=lambda each: -sizes[each]):
                if sum(sizes.values()) <= self.tunables.cache_bytes:
                    break
                task.processor.evict()
                sizes[task] = 0
        if taken >= self.tunables.poll_records:
            # A row that changes often is written less often by large commits; others only fill memory.
            self._polls = self.tunables.commit_polls if rows * 2 < taken else 1
        if is_time:
            gc.collect(1)

    def _transact(self, member: Member, outcomes: Sequence[Outcome]) -> Mapping[TopicPartition, int]:
        """Write what tasks have, with offsets: it is they that are refused where the group went on without us (P6)."""
        offsets = self._offsets(outcomes)
        assert offsets, "a transaction without offsets is not fenced"
        return member.transact([each for outcome in outcomes for each in outcome.appends], offsets)

    def _can_commit(self, task: StreamTask) -> bool:
        """Not while all of its inputs are shared with stages that still restore: there would be no offset to send."""
        return any(all(each.state is TaskState.RUNNING for each in self._reading(at)) for at in task.inputs)

    def _offsets(self, outcomes: Sequence[Outcome]) -> dict[TopicPartition, int]:
        """The group's offsets: of a shared input that of the stage furthest behind; none while one still restores."""
        found = {at: offset for outcome in outcomes for at, offset in outcome.offsets.items()}
        for at in [at for at in found if len(self._readers[at.topic]) > 1]:
            readers = self._reading(at)
            if all(task.state is TaskState.RUNNING for task in readers):
                found[at] = min(task.positions()[at] for task in readers)
            else:
                del found[at]
        return found

    def _restore_some(self, member: Member, task: StreamTask) -> None:
        try:
            if task.state is TaskState.CLOSED or (task.state is TaskState.CREATED and not self._open(task)):
                return
            try:
                is_running = task.restore_some(RESTORE_POLL_S)
            except RulesBehind as behind:
                self._catch_up_with(behind)
                return
            if is_running:
                # Also others, which could commit nothing until now.
                for each in [each for each in self._running() if each.partition == task.partition]:
                    if self._can_commit(each):
                        if each.migration_due and not each.dirty:  # else the next cycle does it, after a commit
                            self._migrate(member, each)
                        self._quarantine(member, each)
                self._seek(member, task, resume=True)
                self._tell_notes(task)
        except Refused as refused:
            if refused.code != "format-newer" or not self._suspend(task.partition, refused):
                raise

    def _suspend(self, partition: int, refused: Refused) -> bool:
        """In a rolling upgrade a newer container wrote this partition and left: only its like can go on with it. It is
        held, so that it does not go round and end one container after another, while the other partitions are worked
        on. False where there are none: then this container is of no use.
        """
        if not self._goes_on or all(place[1] == partition for place in self.tasks):
            return False
        for place in [place for place in self.tasks if place[1] == partition]:
            self._close_task(self.tasks.pop(place))
        text = f"partition {partition} is left for a newer container: {refused}"
        self.tell(LogEvent(text, "set-aside", "warning", partition=partition))
        return True

    def _tell_notes(self, task: StreamTask) -> None:
        for note in task.notes:
            self.tell(note)
        task.notes.clear()

    def _open(self, task: StreamTask) -> bool:
        """Whether it can run at once: not while another process has its store, nor while it is to be restored."""
        now_ms = self.clock.steady_ms()
        refuse_unfinished(self.plan.service, self.log)  # now that it is a member
        try:
            task.open()
        except StoreLocked as held:
            since_ms = self._held.setdefault((task.plan.stage, task.partition), now_ms)
            if since_ms == now_ms:
                self.tell(LogEvent(f"{task.name} waits for its store: {held}", "store-held", "warning", task=task.name))
            if now_ms - since_ms > HELD_MS:
                raise
            return False
        self._held.pop((task.plan.stage, task.partition), None)
        return task.restore.done

    # ------------------------------------------------------------ partitions come and go, inside poll and close

    def _on_assigned(self, partitions: Collection[TopicPartition]) -> None:
        shared = [topic for topic, stages in self._readers.items() if len(stages) > 1]
        self._owned |= set(partitions)
        for number in sorted({at.partition for at in partitions}):
            for stage, plan in self.plans.items():
                # While rules change, another container may not read the topics of a stage yet.
                is_whole = all(TopicPartition(spec.topic, number) in self._owned for spec in plan.inputs)
                if is_whole and (stage, number) not in self.tasks:
                    self.tasks[stage, number] = StreamTask(plan, number, self.log, self.config, self.clock, shared)

    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        """They were revoked, or lost: what is not committed is forgotten, and done again by the next owner."""
        gone = {at.partition for at in partitions}
        self._owned -= set(partitions)
        for place in [place for place in self.tasks if place[1] in gone]:
            self._close_task(self.tasks.pop(place))
        self._backpressure.gone(gone)

    def _close_task(self, task: StreamTask) -> None:
        if task.state is TaskState.RUNNING:
            self._gone = added(self._gone, task.counts)
        task.close()
        self._tell_notes(task)

    # ------------------------------------------------------------ how it is doing

    def _running(self) -> list[StreamTask]:
        return [task for task in self.tasks.values() if task.state is TaskState.RUNNING]

    def caught_up(self) -> bool:
        """Whether all that was in its partitions of the inputs has been processed and committed."""
        member = self._member
        if member is None or not self.tasks:
            return False
        return all(
            task.state is TaskState.RUNNING and not task.dirty and all(member.at_end(at) for at in task.inputs)
            for task in self.tasks.values()
        )

    def _all_caught_up(self) -> bool:
        """Whether the whole group has read all: partitions may belong to others, or to one not yet missed."""
        self._ask_after -= 1
        if self._member is None or self._ask_after > 0:
            return False
        self._ask_after = ASK_EVERY
        lead = self.plan.topics.journal
        partitions = self.log.topics([lead])[lead].partitions  # as many as the state was made with
        places = [TopicPartition(topic, number) for topic in self._readers for number in range(partitions)]
        committed = self.log.committed(self.config.group, places)
        ends = self.log.bounds(places)  # after the offsets: what a stage forwarded with them is there by now
        return all(ends[at].begin == ends[at].end or committed[at] == ends[at].end for at in places)

    def status(self) -> RunStatus:
        counts = self._gone
        for task in self._running():
            counts = added(counts, task.counts)
        restoring: dict[int, tuple[int, int]] = {}
        for task in self.tasks.values():
            if task.state is TaskState.RESTORING:
                done, todo = restoring.get(task.partition, (0, 0))
                step = task.restore
                restoring[task.partition] = (done + step.next - step.start, todo + step.end - step.start)
        others = {task.partition for task in self.tasks.values() if task.state is not TaskState.RUNNING}
        running = tuple(sorted({task.partition for task in self._running()} - others))
        watermarks = {
            task.partition: task.processor.source.watermark for task in self._running() if task.plan.stage == MAIN
        }
        return RunStatus(
            slot=self.slot,
            running=running,
            restoring=restoring,
            counts=counts,
            caught_up=self.caught_up(),
            watermarks=watermarks,
        )

    # ------------------------------------------------------------ the end

    def commit_last(self) -> None:
        """Commit what there is, before the end. Where that cannot be, nothing is lost: the next owner does it again."""
        try:
            if self._member is not None:
                self._commit(self._member)
        except (Fenced, CommitUnknown, LogUnavailable) as error:
            text = f"container {self.slot} ends without a last commit: {type(error).__name__}: {error}"
            self.tell(LogEvent(text, "last-commit", "warning", error=type(error).__name__))

    def close(self) -> None:
        """Leave the group and let go of every store."""
        member, self._member = self._member, None
        try:
            for place in list(self.tasks):
                self._close_task(self.tasks.pop(place))
        finally:
            self._backpressure.clear()
            self._owned.clear()
            if member is not None:
                (member.leave if self._leaves else member.close)()


def topics_read(plans: Sequence[Plan]) -> object:
    """What decides whether tasks can go on under other plans as they are: their stages, and the topics of each."""
    return [(plan.stage, [(spec.stream, spec.topic, spec.key) for spec in plan.inputs]) for plan in plans]
