"""Tests for rules and tasks with no log and no server: a driver with a clock one sets, and crashes. docs/testing.md.

    driver = Driver.of_rules("rules/", {"purchase": {"key": "card"}})
    driver.send("purchase", {"card": "c1", "amount": 5, "ts": 1_000})
    assert [alert["rule"] for alert in driver.alerts] == [...]

What runs is what a service runs: the same decoding, order, rules, calls, commits and rows, over the store in memory.
Left out are the log, several partitions, and what one stage writes for another: send that yourself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from samovar.changelog.formats.journal import JournalEntry, unpack_entry
from samovar.changelog.partitioner import key_text
from samovar.patterns.engine.decode import RefusedError, lookup, time_of
from samovar.patterns.engine.order import NO_TIME
from samovar.service.offline.trial import (
    BadTestError,
    EmittedRecord,
    Streams,
    Time,
    TrialLetter,
    emitted_of,
    letter_of,
    ms_of,
    plan_of_rules,
    plan_of_service,
    plan_of_task,
)
from samovar.service.query.state.view import find_key, resolve_key
from samovar.service.topology.stores import digest_of
from samovar.state.store import Readable
from samovar.tasks.model.clock import SetClock
from samovar.tasks.model.plan import Plan
from samovar.tasks.model.user_task import Task
from samovar.tasks.replay.harness import Crash, TaskTestHarness, WrittenRecord
from samovar.tasks.user.inspect import StoreView, timers_of

__all__ = ["Advance", "BadTestError", "Crash", "Driver", "EmittedRecord", "Part", "TrialLetter", "same_after_crashes"]

Message: TypeAlias = Mapping[str, Any] | bytes | None  # an event; or a record's value as it is, good or bad


@dataclass(frozen=True)
class Advance:
    """A mark inside the input: event time goes on up to here, in ms, with no event."""

    to: int


Part: TypeAlias = tuple[str, Message] | Advance | Crash  # of an input: a stream's message, or a mark


class Driver:
    """One task, of rules or of a class, that a test feeds and crashes. What is read off it was committed."""

    def __init__(self, plan: Plan, *, commit_every: int = 1) -> None:
        self.plan = plan
        self.commit_every = commit_every
        self._harness = TaskTestHarness(plan=plan)
        self._uncommitted = 0

    @classmethod
    def of_rules(
        cls,
        rules: str | Path | Sequence[str | Path],
        streams: Streams,
        *,
        params: Mapping[str, Any] | None = None,
        lists: Mapping[str, Any] | None = None,
        commit_every: int = 1,
    ) -> Driver:
        """Rules: texts of rules, rule files, folders of them. A text has more than one line."""
        return cls(plan_of_rules(rules, streams, params or {}, lists or {}), commit_every=commit_every)

    @classmethod
    def of_task(
        cls,
        task: Callable[[], Task],
        streams: Streams,
        *,
        emits: Iterable[str] = (),
        stores: Mapping[str, Time | None] | Iterable[str] = (),
        window: Time | None = None,
        params: Mapping[str, Any] | None = None,
        commit_every: int = 1,
    ) -> Driver:
        """A class, or what makes an object. `stores` are names, or names with their time to live."""
        plan = plan_of_task(task, streams, emits, stores, window, params or {})
        return cls(plan, commit_every=commit_every)

    @classmethod
    def of_service(cls, config: str | Path, task: str | None = None, *, commit_every: int = 1) -> Driver:
        """The rules of a service file, or one of its tasks, as the file has them."""
        return cls(plan_of_service(config, task), commit_every=commit_every)

    def send(self, stream: str, *messages: Message, log_time: int | None = None) -> None:
        """Write records to a stream and process them. The log's time of a record is its event's, or `log_time`."""
        spec = next((spec for spec in self.plan.inputs if spec.stream == stream), None)
        if spec is None:
            known = ", ".join(each.stream for each in self.plan.inputs)
            raise BadTestError(f"there is no stream `{stream}`; there are: {known}")
        for message in messages:
            event = message if isinstance(message, Mapping) else {}
            value = json.dumps(message).encode() if isinstance(message, Mapping) else message
            taken = log_time
            if taken is None:
                try:
                    taken = time_of(lookup(dict(event), spec.time_field.split(".")))
                except RefusedError:
                    taken = self.clock.wall_ms()
            self._harness.add(stream, key_text(lookup(dict(event), spec.key.split("."))), value, taken)
            self._take()

    def run(self, *inputs: Part) -> Driver:
        """Events as (stream, message), and marks between them: crashes, and event time that goes on."""
        for each in inputs:
            if isinstance(each, Crash):
                self.crash(each)
            elif isinstance(each, Advance):
                self.advance(each.to)
            else:
                self.send(*each)
        return self

    def _take(self) -> None:
        while self._harness.take():
            self._uncommitted += 1
            if self._uncommitted >= self.commit_every:
                self.commit()

    def commit(self) -> None:
        """Commit now what is not yet."""
        self._harness.commit()
        self._uncommitted = 0

    @property
    def clock(self) -> SetClock:
        """The clock on the wall. It stands still until it is moved."""
        return self._harness.clock

    @property
    def event_time(self) -> int | None:
        """In ms; None before the first event."""
        watermark = self._harness.processor.source.watermark
        return None if watermark == NO_TIME else watermark

    def pass_time(self, time: Time) -> None:
        """Let the clock go on with no event: after a stream's `idle` its event time goes on too. Commits."""
        self._harness.pass_ms(ms_of(time))
        self.commit()

    def advance(self, to: int) -> None:
        """Let the clock go on, with no event, for as long as event time needs to get there. Commits."""
        if self.event_time is None:
            raise BadTestError("event time begins with the first event: send one before")
        self._harness.pass_ms(max(self._harness.idle_ms_until(to), 0))
        self.commit()

    def crash(self, crash: Crash = Crash.KEPT) -> None:
        """End as after a kill, and begin again: what was not committed is processed once more."""
        self._harness.crash(crash)
        self._uncommitted = 0
        self._take()

    @property
    def alerts(self) -> list[dict[str, Any]]:
        return [json.loads(each.value or b"") for each in self._written(self.plan.topics.alerts)]

    def emitted(self, name: str) -> list[EmittedRecord]:
        """What the task emitted to a stream or topic, in order."""
        task = self.plan.task
        if task is None or name not in task.emits:
            raise BadTestError(f"nothing emits to `{name}`")
        return [emitted_of(each) for each in self._written(task.emits[name].topic)]

    @property
    def dead(self) -> list[TrialLetter]:
        return [letter_of(each) for each in self._written(self.plan.topics.dead_letters)]

    @property
    def late(self) -> list[TrialLetter]:
        return [letter_of(each) for each in self._written(self.plan.topics.late)]

    @property
    def journal(self) -> list[JournalEntry]:
        return [unpack_entry(each.value or b"") for each in self._written(self.plan.topics.journal)]

    def _written(self, topic: str) -> list[WrittenRecord]:
        return self._harness.topics.get(topic, [])

    @property
    def rows(self) -> Readable:
        """The store itself, committed rows and all."""
        return self._harness.store

    def store(self, name: str) -> StoreView:
        """A task's store as it is committed, to read."""
        if self.plan.task is None or name not in self.plan.task.stores:
            raise BadTestError(f"there is no store `{name}`")
        return StoreView(self._harness.store, name, self.event_time or 0)

    @property
    def timers(self) -> dict[str, int]:
        """Timers that are set, and for when."""
        return timers_of(self._harness.store)

    def state(self, key: str) -> list[dict[str, Any]]:
        """What rules hold of a key, as `samovar state get --json` tells it."""
        keys = resolve_key(self.plan, key, None)
        found = [find_key(self.plan, self._harness.store, each) for each in keys]
        return [state.data() for state in found if not state.is_empty]

    def digest(self) -> str:
        """One text for all state: equal where the state is."""
        return digest_of(self.plan, self._harness.store)

    def outcome(self) -> dict[str, Any]:
        """All that came out, and the digest: what two runs are compared by."""
        emits = self.plan.task.emits if self.plan.task is not None else {}
        return {
            "alerts": self.alerts,
            "emitted": {name: self.emitted(name) for name in emits},
            "dead": self.dead,
            "late": self.late,
            "state": self.digest(),
        }


def same_after_crashes(make: Callable[[], Driver], *inputs: tuple[str, Message] | Advance) -> None:
    """Run the input straight through, and again with a crash after each part of it, in every way that a store can come
    out of one: what comes out must be the same. It is not where a task keeps in itself what belongs in a store.
    """
    straight = make().run(*inputs).outcome()
    for crash in Crash:
        for commit_every in (1, 3):
            driver = make()
            driver.commit_every = commit_every
            for each in inputs:
                driver.run(each, crash)
            driver.commit()
            for what, found in driver.outcome().items():
                assert found == straight[what], (
                    f"{what} differ after crashes with the store {crash.value}, {commit_every} records per commit:\n"
                    f"  straight: {straight[what]}\n  crashed:  {found}"
                )
