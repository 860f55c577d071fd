"""Runs a scenario: real containers over a log, a clock and disks in memory, one step after the other.

Nothing here is concurrent: a container does something only while a step gives it a cycle. So one scenario is one
history, and a container that gets no cycle for long is a zombie.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from threading import Event
from typing import Any
from unittest.mock import patch

from samovar import __version__
from samovar.changelog.formats.heartbeat import MemberMetadata, send_heartbeat
from samovar.changelog.formats.journal import JournalEntry
from samovar.changelog.formats.record import POSITION, ROW, row_parts
from samovar.changelog.formats.rules_topic import topic_of
from samovar.changelog.log import Append, TopicPartition, TopicSpec
from samovar.changelog.restore.point_in_time import last_position
from samovar.changelog.schema_registry import Registry
from samovar.common import failpoints
from samovar.common.errors import LogUnavailable, Refused
from samovar.patterns.engine.order import NO_TIME
from samovar.patterns.rulefile.rule_file import load_text
from samovar.patterns.syntax.tree import Rule
from samovar.service.config.models import ServiceFile
from samovar.service.recovery.restore.plan import RestoreRequest, plan_restore
from samovar.service.recovery.restore.run import restore_all
from samovar.service.recovery.rewind import SKIP_ALERTS, plan_rewind, rewind_all
from samovar.service.rules import lists, publishing
from samovar.service.runtime.running import container_of
from samovar.service.topology import encoding
from samovar.service.topology.plans import plans_of
from samovar.service.topology.rule_registry import with_published_rules
from samovar.service.topology.stores import StateLocation, site_of
from samovar.service.topology.topics import ensure
from samovar.state.task_storage import TaskStorage
from samovar.tasks.model.clock import SetClock
from samovar.tasks.model.plan import MAIN, Plan
from samovar.tasks.runtime.container import Container
from samovar.tasks.runtime.heartbeat import TELL_EVERY_S
from samovar.tasks.runtime.slot_claim import STALE_S
from samovar.tasks.runtime.stream_task import StreamTask, TaskState
from tests.simulation.avro_events import MemoryRegistry
from tests.simulation.broker import Broker, VisibleRecord
from tests.simulation.checks import (
    Broken,
    InputRecord,
    Letter,
    Observed,
    check_alerts,
    check_counts,
    check_crashes,
    check_idleness,
    check_journals,
    check_migrations,
    check_put_aside,
    check_rewinds,
    check_rules_taken,
    check_schemas,
    check_states,
    entries,
    expected_dead,
    require,
)
from tests.simulation.counting import TOPIC
from tests.simulation.faults import Fault, Killed
from tests.simulation.memory_log import MemoryLog
from tests.simulation.memory_storage import Disk
from tests.simulation.scenario import (
    START_MS,
    ChangeList,
    ChangeParam,
    Cycle,
    FailCall,
    Failure,
    Grow,
    Kill,
    Loss,
    Maintain,
    Pass,
    Produce,
    Publish,
    Recover,
    Recreate,
    Register,
    Scenario,
    Settle,
    Step,
    Stop,
)
from tests.simulation.topology import SERVICE, write_service, write_service_file

# Cycles of every container within which a service at rest must have done its work. Mostly few are enough; where little
# is polled at once and later stages wait to be told that time passes, it takes many.
ROUNDS = 1_200
QUIET_MS = 400  # that pass between two of them
# At the end the clock passes every deadline, in large steps, until nothing is written any more.
PASS_MS, QUIET_PASSES, MOST_PASSES = 100_000, 4, 30
LONG_MS = 600_000  # within which a history is over
LONG_UNREAD_MS = 4_000  # a record that is there for so long was there when its input was last looked at
AUTHOR = "simulation"
NO_PROCESS = 5_000_000  # and from there on: more than a machine gives
LIMITS = ("max_events", "max_partials", "max_matches")
# Nothing was ever processed, or a compaction or retention took what would be needed.
MAY_REFUSE = frozenset({"nothing-processed", "journal-empty", "as-of-future", "input-expired"})
RECREATED = frozenset({"changelog-recreated", "topic-recreated", "input-replaced", "log-truncated", "state-lost"})
FAULTS = {
    Failure.TIMEOUT_BEFORE: Fault.TIMEOUT_BEFORE,
    Failure.TIMEOUT_AFTER: Fault.TIMEOUT_AFTER,
    Failure.SLOW: Fault.SLOW,
    Failure.LATE_MARKERS: Fault.LATE_MARKERS,
    Failure.NOTHING: Fault.NOTHING,
}


@dataclass
class Node:
    """One container's place: its process, if it runs, and its disk, which outlives it."""

    number: int
    log: MemoryLog | None = None
    container: Container | None = None
    kill: Kill | None = None
    passed: int = 0  # calls and failpoints since that was said
    fails: list[FailCall] = field(default_factory=list)
    called: Counter[str] = field(default_factory=Counter)  # since the first of them was said
    disk: Disk = field(default_factory=Disk)
    has_given_up: bool = False  # since faults stopped
    slot: int = 0
    machines: int = 1  # on which it ran
    told_ms: int = 0  # its last heartbeat, where it claims its slot
    has_given_way: bool = False  # to another in its slot
    settings: ServiceFile | None = None  # that it was started with

    @property
    def holds_slot(self) -> bool:
        """Whether it lives, and has claimed its slot."""
        claim = None if self.container is None else self.container._claim
        return claim is not None and claim._is_claimed


@dataclass
class WatchedClock(SetClock):
    """While one waits, the threads of the others go on."""

    on_wait: Callable[[], None] = lambda: None

    def wait(self, seconds: float, stop: Event) -> None:
        super().wait(seconds, stop)
        self.on_wait()


class World:
    """The source of truth for one history: the log, the clock, the containers and their disks."""

    def __init__(self, scenario: Scenario, folder: Path, trace: Callable[[str], None] | None = None) -> None:
        self.scenario = scenario
        self.trace = trace
        self.clock = WatchedClock(START_MS, self.tell_all)
        self.broker = Broker(self.clock, transaction_ms=scenario.transaction_ms)
        self.client = MemoryLog(self.broker)  # of producers, rule authors and checks: never fails
        self.settings = write_service(scenario, folder)
        self.folder = folder
        slots = scenario.slots or range(scenario.containers)
        self.nodes = [Node(number, slot=slot) for number, slot in enumerate(slots)]
        self.active: Node | None = None  # the one whose cycle it is
        self.paused: Node | None = None
        self.registry = MemoryRegistry(lambda: self.active is None or self.fault(self.active, "schema") is None)
        self.registered_ms: dict[int, int] = {1: START_MS}  # schema to when
        self.pids = count(NO_PROCESS)
        self.ended: Counter[str] = Counter()  # processes, while an event of a rule took much and was not committed
        self.steady: dict[str, Rule] = {}
        self.drained: dict[str, Rule] = {}
        for name, text in scenario.rules.items():
            rule = load_text(text).rule
            assert rule is not None, text
            self.steady[name] = rule
        self.was_rewound = self.has_changed = self.is_calm = self.is_over = False
        self.watermarks: dict[tuple[str, int], int] = {}
        self._planned: tuple[int, list[Plan]] | None = None
        ensure(self.client, self.settings)

    # ------------------------------------------------------------ steps

    def run(self) -> None:
        with watched_points(self):
            try:
                for number, step in enumerate(self.scenario.steps):
                    self.say(f"{number:3} {step}")
                    self.take(step)
                if not self.is_over:
                    self.finish()
            except Refused as refused:
                if refused.code != "key-misplaced" or not self.is_mostly_misplaced():
                    raise

    def is_mostly_misplaced(self) -> bool:
        """Whether most records of an input are in the wrong partitions: then nobody starts (P8)."""
        seen = self.observed()
        bad, misplaced = expected_dead(seen)
        good = [each for each in seen.inputs if each.place not in bad]
        streams = {each.stream for each in good}
        return any(
            2 * sum(each.place in misplaced for each in good if each.stream == stream)
            > sum(each.stream == stream for each in good)
            for stream in streams
        )

    def take(self, step: Step) -> None:
        match step:
            case Produce(stream, partition, records):
                topic = self.settings.streams[stream].topic
                self.client.append([Append(topic=topic, records=list(records), partition=partition)])
            case Cycle(container):
                self.cycle(self.nodes[container])
            case Pass(ms):
                self.clock.pass_ms(ms)
                self.broker.expire()
            case FailCall(container, name, count, _):
                node = self.nodes[container]
                node.fails.append(replace(step, count=node.called[name] + count))
            case Kill(container):
                node = self.nodes[container]
                node.kill, node.passed = step, 0
                if step.count == 0 and node.container is not None:
                    self.end(node)
            case Stop(container, leaves):
                self.stop(self.nodes[container], leaves=leaves)
            case Maintain("compact", seed):
                self.broker.compact(Random(seed))
            case Maintain(_, _):
                self.broker.retain()
            case Publish() | ChangeList() | ChangeParam() | Register():
                self.change(step)
            case Grow(stream, partitions):
                self.broker.add_partitions(self.settings.streams[stream].topic, partitions)
            case Recreate():
                self.recreate(step)
            case Recover():
                self.recover(step)
            case Settle():
                self.settle()
                self.check(is_end=False)

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.clock.now_ms - START_MS:>7} ms  {text}")

    # ------------------------------------------------------------ containers

    def cycle(self, node: Node) -> None:
        """One cycle; a container that is down begins again. What a process would end with is a failure of the service,
        unless it was killed.
        """
        if node.has_given_way and any(each.holds_slot and each is not self.paused for each in self.rivals(node)):
            return
        node.has_given_way = False
        self.active = node
        try:
            if node.container is None:
                self.start(node)
            assert node.container is not None
            self.look_around(node)
            node.container.step()
        except Killed:
            self.end(node)
        except (LogUnavailable, Refused) as error:
            if isinstance(error, Refused) and error.code == "slot-taken" and self.scenario.slots:
                self.give_way(node, error)
                return
            is_usual = isinstance(error, LogUnavailable) or error.code == "log-unusable"
            is_fought_over = self.is_calm and any(each.holds_slot for each in self.rivals(node))
            if not is_usual or (self.is_calm and node.has_given_up) or is_fought_over:
                raise
            self.say(f"container {node.number} ends: {error}")  # a supervisor starts it again
            self.end(node)
            node.has_given_up = self.is_calm  # for troubles of before; once
        finally:
            self.active = None

    def look_around(self, node: Node) -> None:
        """As the threads next to a container do."""
        assert node.container is not None
        try:
            if self.scenario.slots:
                self.tell(node)
            node.container.rule_source.refresh()
            node.container.watch.check_if_due()
        except (LogUnavailable, Refused) as error:
            self.say(f"container {node.number} cannot look at rules and topics: {error}")

    def start(self, node: Node) -> None:
        node.log = MemoryLog(self.broker, self.settings.tunables, lambda call: self.fault(node, call))
        say = self.say if self.trace is not None else (lambda _: None)
        node.settings = self.settings
        settings = self.settings.model_copy(update={"state": self.folder_of(node)})
        node.container = container_of(settings, node.log, node.slot, say, self.clock)
        storage = None if self.scenario.on_rocksdb else self.storage_of(node, node.log)
        config = node.container.config
        work = config.budget.event_work if self.scenario.event_work is None else self.scenario.event_work
        budget = replace(config.budget, event_work=work)
        node.container.config = replace(config, has_threads=False, storage=storage, budget=budget)
        if self.scenario.slots:
            self.claim(node, node.container)

    def storage_of(self, node: Node, log: MemoryLog) -> Callable[[Path], TaskStorage]:
        """In memory; but crash marks are files, which the kernel writes itself."""
        made = node.disk.storage_of(log)

        def with_folder(folder: Path) -> TaskStorage:
            folder.mkdir(parents=True, exist_ok=True)
            return made(folder)

        return with_folder if self.scenario.crashes is not None else made

    # ------------------------------------------------------------ slots

    def claim(self, node: Node, container: Container) -> None:
        """As `run` does before its first cycle; each start is another process, and a lost disk another machine."""
        claim = container._claim
        assert claim is not None
        claim.host, claim.pid = f"host-{node.number}-{node.machines}", next(self.pids)
        before_ms = node.told_ms
        container._claim_slot()
        node.told_ms = self.clock.now_ms
        lives = [each for each in self.rivals(node) if each.holds_slot and each is not self.paused]
        taken = [each.number for each in lives if each.told_ms > before_ms]
        require(not taken, "a slot is not claimed while another container lives in it", node.number, taken)

    def rivals(self, node: Node) -> list[Node]:
        return [each for each in self.nodes if each is not node and each.slot == node.slot]

    def tell(self, node: Node) -> None:
        """What the thread of the heartbeats sends."""
        claim = None if node.container is None else node.container._claim
        now_ms = self.clock.now_ms
        if node.log is None or claim is None or not claim._is_claimed or now_ms - node.told_ms < TELL_EVERY_S * 1000:
            return
        told = MemberMetadata(
            slot=node.slot,
            host=claim.host,
            pid=claim.pid,
            since_ms=claim.since_ms,
            version=__version__,
            time_ms=now_ms,
        )
        send_heartbeat(node.log, SERVICE, told)
        node.told_ms = now_ms

    def tell_all(self) -> None:
        """Somebody waits: the others, but for one that stands still, tell of themselves and stay in the group."""
        for node in self.nodes:
            if node.log is not None and node is not self.paused and node is not self.active:
                self.tell(node)
                for heartbeat in node.log.heartbeats:
                    heartbeat()
        self.broker.expire()

    def give_way(self, node: Node, refused: Refused) -> None:
        """A process ends because its slot is taken: by one that lives, or did so until just now."""
        self.say(f"container {node.number} gives way: {refused}")
        now_ms = self.clock.now_ms
        lives = [each.container is not None or now_ms - each.told_ms <= STALE_S * 1000 for each in self.rivals(node)]
        require(any(lives), "a container gives way to one that lives", node.number, refused)
        self.end(node)
        node.has_given_way = True

    # ------------------------------------------------------------ faults

    def folder_of(self, node: Node) -> Path:
        """Each container has a state folder of its own."""
        return self.folder / f"disk-{node.number}"

    def fault(self, node: Node, call: str) -> Fault | None:
        """What becomes of a call to the log, or to the schema registry."""
        self.crash(node)
        if self.is_calm or self.active is not node:
            return None
        self.count(node, call)
        node.called.update((call, ""))
        due = (each for each in node.fails if each.name in (call, "") and node.called[each.name] == each.count)
        found = next(due, None)
        if found is None:
            return None
        node.fails.remove(found)
        self.say(f"container {node.number}: {call}: {found.failure.value}")
        if found.failure is Failure.PAUSE:
            self.pause(node)
        return FAULTS.get(found.failure)

    def pause(self, node: Node) -> None:
        """The others work on, until the session of this one is over."""
        if self.paused is not None:
            return
        self.paused = node
        try:
            for _ in range(3):
                self.clock.pass_ms(2_500)
                self.broker.expire()
                for other in self.nodes:
                    if other is not node:
                        self.cycle(other)
        finally:
            self.paused = None
            self.active = node

    def crash(self, node: Node) -> None:
        """The process is gone before it can commit an event that took much, of the rule that is known for it."""
        if self.scenario.crashes is not None and self.active is node and self.scenario.crashes in self.marked(node):
            self.say(f"container {node.number} crashes in {self.scenario.crashes}")
            raise Killed

    def marked(self, node: Node) -> list[str]:
        """The rules that a process has left marks of."""
        tasks = [] if node.container is None else node.container.tasks.values()
        paths = [task._mark.path for task in tasks if task.state is TaskState.RUNNING]
        return [path.read_bytes().split(b"\n")[0].decode() for path in paths if path.exists()]

    def count(self, node: Node, where: str) -> None:
        """One call or failpoint more; it may be the last."""
        kill = node.kill
        if kill is not None and kill.name in (where, ""):
            node.passed += 1
            if node.passed >= kill.count:
                self.say(f"container {node.number} is killed at {where}")
                raise Killed

    def pass_point(self, name: str) -> None:
        """A failpoint was passed by the container whose cycle it is."""
        if self.active is not None:
            self.crash(self.active)
            if not self.is_calm:
                self.count(self.active, name)

    def end(self, node: Node) -> None:
        """As kill -9 does: nothing is committed, closed or said any more."""
        if self.scenario.event_work is not None:
            self.ended.update(self.marked(node))
        if node.log is not None:
            node.log.kill()
        if node.container is not None and self.scenario.on_rocksdb:
            for task in node.container.tasks.values():
                if hasattr(task, "store"):
                    task.store.close()  # all that was written is there; the lock goes with the process
        node.container = node.log = None
        loss = Loss.NOTHING if node.kill is None else node.kill.loss
        node.kill = None
        match loss:
            case Loss.DISK:
                node.machines += 1
                node.disk.lose()
                shutil.rmtree(self.folder_of(node), ignore_errors=True)
            case Loss.STORES:
                node.disk.keep_snapshots_only()
                for store in [*self.folder_of(node).rglob("store")]:
                    shutil.rmtree(store)
            case Loss.LAST_WRITES:
                node.disk.undo(2)

    def stop(self, node: Node, *, leaves: bool) -> None:
        """In good order: a last commit, and no lock or transaction is left (P5)."""
        if node.container is None:
            return
        self.active = node
        try:
            node.container._leaves = leaves
            node.container.commit_last()
            node.container.close()
            if self.scenario.slots and node.container._claim is not None:
                node.container._claim.release()
            node.container = node.log = None
        except Killed:
            self.end(node)
        except LogUnavailable:
            self.end(node)
        finally:
            self.active = None

    # ------------------------------------------------------------ rules change, states are made again

    def change(self, step: Publish | ChangeList | ChangeParam | Register) -> None:
        match step:
            case Publish():
                self.publish(step)
            case ChangeList():
                self.change_list(step)
            case ChangeParam():
                self.change_param(step)
            case Register(schema):
                self.registry.known.add(schema)
                self.registered_ms.setdefault(schema, self.clock.now_ms)

    def publish(self, step: Publish) -> None:
        """As an author does, through the rules topic. What the service refuses is refused before anything happens."""
        settings = self.settings
        warm_from_ms = None if step.warm_ms is None else self.clock.now_ms - step.warm_ms
        try:
            if step.act == "disable":
                plan = publishing.plan_disable(settings, self.client, step.name, drain=step.drain)
            elif step.act == "enable":
                plan = publishing.plan_enable(
                    settings, self.client, step.name, shadow=step.shadow, warm_from_ms=warm_from_ms
                )
            else:
                how = {"drain": step.drain, "shadow": step.shadow}
                plan = publishing.plan_publish(settings, self.client, step.text, **how, warm_from_ms=warm_from_ms)
            publishing.commit(settings, self.client, plan, AUTHOR, "")
        except Refused as refused:
            self.say(f"not published: {refused.code}")
            return
        self.has_changed = True
        before = self.steady.pop(step.name, None)
        self.drained.pop(step.name, None)
        if before is not None and step.drain:
            self.drained[step.name] = before

    def change_list(self, step: ChangeList) -> None:
        change = {"remove" if step.goes else "add": step.items}
        try:
            plan = lists.plan_lists(self.settings, self.client, step.name, **change)
            publishing.commit(self.settings, self.client, plan, AUTHOR, "")
        except Refused as refused:
            self.say(f"list not changed: {refused.code}")
            return
        self.has_changed = True
        for name in [name for name, rule in self.steady.items() if step.name in rule.lists]:
            del self.steady[name]
        for name in [name for name, rule in self.drained.items() if step.name in rule.lists]:
            del self.drained[name]

    def change_param(self, step: ChangeParam) -> None:
        """As a deployment does: another service file, with which one container after the other is started again."""
        self.settings = write_service_file(self.scenario, self.folder, params={"least": step.least})
        self._planned, self.has_changed = None, True
        self.steady = {name: rule for name, rule in self.steady.items() if "least" not in rule.params}
        self.drained.clear()  # what came in their places may drain now, too
        for node in self.nodes:
            if node.number in step.restarted:
                self.stop(node, leaves=False)

    def recreate(self, step: Recreate) -> None:
        """Every container that runs ends with a refusal within a few looks, and so does one that is started then; from
        then on nothing is written (P4).
        """
        self.settle()
        plans = self.plans()
        plan = plans[step.stage % len(plans)]
        inputs = [spec.topic for each in plans for spec in each.inputs]
        names = {"changelog": plan.topics.changelog, "journal": plan.topics.journal}
        name = names.get(step.what) or inputs[step.stage % len(inputs)]
        topic = self.broker.topic(name).topic
        self.say(f"{name} is deleted and made again")
        self.broker.delete(name)
        self.broker.create(TopicSpec(name, topic.partitions, topic.settings, topic.replication))
        self.is_calm = self.is_over = True
        for node in self.nodes:
            require(self.refuses(node), f"{step.what} made again: container {node.number} refuses while it runs")
        written = self.broker.written()
        for node in self.nodes:
            require(self.refuses(node), f"{step.what} made again: container {node.number} refuses at a start")
        require(self.broker.written() == written, "after a refusal nothing is written")

    def refuses(self, node: Node) -> bool:
        """Whether a container ends, for a reason that a person can act on, within a bounded number of cycles."""
        for _ in range(ROUNDS):
            try:
                self.cycle(node)
            except Refused as refused:
                self.end(node)
                require(refused.code in RECREATED, "a topic made again is told by its name", refused)
                return True
            self.clock.pass_ms(QUIET_MS)
            self.broker.expire()
        return False

    def recover(self, step: Recover) -> None:
        """As an operator does: all containers leave, then the command runs on the only one's disk."""
        (node,) = self.nodes
        self.is_calm = True
        try:
            self.stop(node, leaves=True)
            self.clock.pass_ms(self.broker.transaction_ms + 1)  # of one that was killed nothing is left by then
            self.broker.expire()
            ensure(self.client, with_published_rules(self.settings, self.client))
            site = site_of(self.settings, self.client, self.folder_of(node))
            if step.what == "rewind":
                self.rewind(site, step)
            else:
                plans = plan_restore(site, RestoreRequest(source=step.what), self.clock.wall_ms())
                if step.damage is not None:
                    self.damage(Random(step.damage))
                    plans = plan_restore(site, RestoreRequest(source=step.what), self.clock.wall_ms())
                list(restore_all(site, RestoreRequest(source=step.what), plans, lambda *_: None))
        except Refused as refused:
            self.say(f"{step.what} is refused: {refused}")
            require(refused.code in MAY_REFUSE, f"`{step.what}` is refused for a good reason", refused)
        finally:
            self.is_calm = False

    def damage(self, random_: Random) -> None:
        """Some states in the changelogs are again what they were after an earlier commit, or not there where a
        compaction took what that was: as if writes had been lost.
        """
        is_cut = any(step == Maintain("compact", getattr(step, "seed", 0)) for step in self.scenario.steps)
        for plan in self.plans():
            records = self.broker.committed_records(plan.topics.changelog)
            states: dict[tuple[int, object], list[VisibleRecord]] = {}
            for record in records:
                if record.key is not None and record.key[:1] == ROW:
                    states.setdefault((record.partition, row_parts(record.key)[:2]), []).append(record)
            for (partition, _), mine in states.items():
                ends = [each.offset for each in records if each.partition == partition and each.key == POSITION]
                end = 0 if is_cut else random_.choice([0, *ends])
                if random_.random() < 0.5:
                    before: dict[bytes | None, bytes | None] = dict.fromkeys(each.key for each in mine)
                    before |= {each.key: each.value for each in mine if each.offset < end}
                    self.client.append(
                        [Append(topic=plan.topics.changelog, records=list(before.items()), partition=partition)]
                    )

    def rewind(self, site: StateLocation, step: Recover) -> None:
        watermarks = [mark for (stage, _), mark in self.watermarks.items() if stage == MAIN and mark > NO_TIME]
        if step.reads:
            found = (last_position(self.client, site.changelog(number)) for number in range(self.scenario.partitions))
            watermarks = [each.watermark for each in found if each is not None and each.watermark is not None]
        if not watermarks:
            return
        moment_ms = min(watermarks) - step.back_ms
        plans = plan_rewind(site, moment_ms)
        list(rewind_all(site, plans, moment_ms, SKIP_ALERTS, lambda *_: None))
        self.was_rewound = True
        self.watermarks = {place: min(mark, moment_ms) for place, mark in self.watermarks.items()}

    # ------------------------------------------------------------ rest

    def settle(self) -> None:
        """Faults stop, and within a bounded number of rounds all input is processed and committed by the group (P7)."""
        self.is_calm = True
        for node in self.nodes:
            node.kill, node.fails, node.has_given_up = None, [], False
            if node.settings is not self.settings:
                self.stop(node, leaves=False)
        try:
            for _ in range(ROUNDS):
                for node in self.nodes:
                    self.cycle(node)
                if self.is_at_rest():
                    return
                self.clock.pass_ms(QUIET_MS)
                self.broker.expire()
            raise Broken(f"all input is processed within {ROUNDS} rounds\n  {self.lag()}")
        finally:
            self.is_calm = False

    def is_at_rest(self) -> bool:
        containers = [node.container for node in self.nodes if node.container is not None]
        if any(
            each.plan.ruleset_change != self.plans()[0].ruleset_change for each in containers
        ):  # a quarantine was just written
            return False
        tasks = [task for each in containers for task in each.tasks.values()]
        places = {(task.plan.stage, task.partition) for task in tasks}
        wanted = {(plan.stage, number) for plan in self.plans() for number in range(self.scenario.partitions)}
        slots = [node.slot for node in self.nodes if node.holds_slot]  # of two in one, one has to give way
        is_done = len(tasks) == len(places) and places == wanted and len(slots) == len(set(slots))
        if not is_done or any(
            task.state is not TaskState.RUNNING or task.dirty or task.migration_due for task in tasks
        ):
            return False
        try:
            return not self.lag()
        except LogUnavailable:  # a commit is decided, and not seen by all yet
            return False

    def lag(self) -> dict[TopicPartition, int]:
        """Records that are not processed, by input of any stage."""
        topics = {spec.topic for plan in self.plans() for spec in plan.inputs}
        places = [TopicPartition(topic, number) for topic in topics for number in range(self.scenario.partitions)]
        ends, committed = self.client.bounds(places), self.client.committed(SERVICE, places)
        return {
            at: ends[at].end - (committed[at] or 0)
            for at in places
            if ends[at].end > ends[at].begin and ends[at].end != committed[at]
        }

    def finish(self) -> None:
        """Event time passes every deadline, and all that is left comes out."""
        self.settle()
        # Nobody is missed while the clock takes large steps.
        self.broker.session_ms = self.broker.break_ms = 2 * PASS_MS
        ends: list[int] = []
        while len(ends) < QUIET_PASSES or len(set(ends[-QUIET_PASSES:])) > 1 or self.has_waiting():
            require(len(ends) < MOST_PASSES, "a service without input comes to rest", ends)
            self.clock.pass_ms(PASS_MS)
            self.broker.expire()
            self.settle()
            ends.append(self.broker.written())
        self.check(is_end=True)
        for node in self.nodes:
            self.stop(node, leaves=True)
        require(self.broker.open_transactions() == 0, "after a stop no transaction is open")
        require(not self.client.members(SERVICE), "after a stop nobody is in the group")

    def has_waiting(self) -> bool:
        """Whether events wait for event time."""
        containers = [node.container for node in self.nodes if node.container is not None]
        tasks = [task for each in containers for task in each.tasks.values() if task.state is TaskState.RUNNING]
        return any(len(task.processor.source.buffer.pending) for task in tasks)

    # ------------------------------------------------------------ checks

    def plans(self) -> list[Plan]:
        """The plans of all stages, with what was published by now."""
        topic = self.broker.topics.get(topic_of(SERVICE))
        changes = 0 if topic is None else topic.logs[0].end
        if self._planned is None or self._planned[0] != changes:
            self._planned = (
                changes,
                plans_of(with_published_rules(self.settings, self.client), self.scenario.partitions),
            )
        return self._planned[1]

    def check(self, *, is_end: bool) -> None:
        seen = self.observed()
        for place in seen.positions:
            watermark = seen.watermark(*place)
            before = self.watermarks.get(place, watermark)
            is_right = watermark >= before or self.was_rewound
            require(is_right, f"event time of {place} never goes back", before, watermark)
            self.watermarks[place] = watermark
        check_journals(seen)
        check_rules_taken(seen)
        check_migrations(seen)
        check_rewinds(seen)
        check_schemas(seen)
        check_put_aside(seen)
        check_crashes(seen, self.ended)
        if not self.was_rewound:
            check_idleness(seen, LONG_UNREAD_MS)
        check_alerts(seen, is_end=is_end)
        check_counts(seen, is_end=is_end)
        check_states(seen, self.client, rebuilds=is_end)

    def observed(self) -> Observed:
        """All that the service shows of itself, read past the faults."""
        settings, broker = self.settings, self.broker
        plans = self.plans()
        inputs = [
            InputRecord(
                (stream.topic, record.partition, record.offset),
                name,
                record.value,
                record.time_ms,
                record.key,
                stream.format == "avro",
            )
            for name, stream in settings.streams.items()
            for record in sorted(broker.committed_records(stream.topic), key=lambda each: (each.partition, each.offset))
            if record.partition < self.scenario.partitions  # others are not read
        ]
        journals: dict[tuple[str, int], list[bytes | None]] = {}
        changelogs: dict[tuple[str, int], dict[bytes, bytes]] = {}
        for plan in plans:
            for partition in range(self.scenario.partitions):
                journals[plan.stage, partition] = []
                changelogs[plan.stage, partition] = {}
            for record in broker.committed_records(plan.topics.journal):
                journals[plan.stage, record.partition].append(record.value)
            for record in broker.committed_records(plan.topics.changelog):
                rows = changelogs[plan.stage, record.partition]
                if record.value is None:
                    rows.pop(record.key or b"", None)
                else:
                    rows[record.key or b""] = record.value
        advances: dict[int, list[tuple[JournalEntry, int]]] = {}
        for record in broker.committed_records(plans[0].topics.journal):
            (entry,) = entries([record.value])
            if entry.kind == "advance" and "stream" in entry.facts:
                advances.setdefault(record.partition, []).append((entry, record.time_ms))
        return Observed(
            plans,
            self.scenario.partitions,
            {name: self.scenario.settings[name] for name in LIMITS if name in self.scenario.settings},
            inputs,
            [json.loads(record.value or b"") for record in broker.committed_records(settings.alerts.topic)],
            [dict(record.headers) for record in broker.committed_records(settings.late.topic)],
            [dict(record.headers) for record in broker.committed_records(settings.dead_letters.topic)],
            {place: entries(values) for place, values in journals.items()},
            advances,
            changelogs,
            {place: task.store for place, task in self.running().items()},
            self.counts(),
            self.steady,
            self.was_rewound,
            self.has_changed,
            self.drained,
            [
                Letter(dict(record.headers), record.key, record.value)
                for topic in (settings.late.topic, settings.dead_letters.topic)
                for record in broker.committed_records(topic)
            ],
            {(at.topic, at.partition): looks for at, looks in broker.heard.items()},
            None if settings.storm is None else (settings.storm.alerts, settings.storm.per_ms),
            self.registered_ms,
            settings.tunables.snapshot_every_ms < LONG_MS,
            {place: task.processor.plan.program.stores for place, task in self.running().items() if not task.plan.task},
        )

    def counts(self) -> list[dict[str, Any]]:
        """What the user-defined task emitted."""
        if not self.scenario.user_task:
            return []
        return [json.loads(record.value or b"") for record in self.broker.committed_records(TOPIC)]

    def running(self) -> dict[tuple[str, int], StreamTask]:
        """The tasks that run, by stage and partition."""
        containers = [node.container for node in self.nodes if node.container is not None]
        return {(task.plan.stage, task.partition): task for each in containers for task in each.tasks.values()}


@contextmanager
def watched_points(world: World) -> Iterator[None]:
    failpoints.on_pass = world.pass_point

    def registry(settings: Any) -> Registry:
        made = Registry(settings, lambda: world.clock.steady_ms() / 1000)
        made._client = world.registry
        return made

    try:
        with patch.object(encoding, "Registry", registry):
            yield
    finally:
        failpoints.on_pass = None


def simulate(scenario: Scenario, trace: Callable[[str], None] | None = None) -> None:
    """Run a history to its end; raises what went wrong."""
    folder = Path(tempfile.mkdtemp(prefix="samovar-simulation-"))
    try:
        World(scenario, folder / "service", trace).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
