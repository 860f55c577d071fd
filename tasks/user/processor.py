"""Runs a user-defined task: records in, calls of the user's code, and out comes what one commit has to write.

An event on which the user's code raises becomes a dead letter with the reason, and the next one is taken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from samovar.changelog.formats.dead_letters import SourceCoordinates, failure
from samovar.changelog.formats.record import POSITION, Position
from samovar.changelog.log import Append
from samovar.common.errors import Refused
from samovar.patterns.engine.order import NO_TIME, OrderedEvents, due_at
from samovar.state.stack import INDEX, reindexed
from samovar.state.store import Change, TaskStore
from samovar.tasks.input.processor import Processor
from samovar.tasks.input.user_source import UserRepartitionSource, UserStreamSource
from samovar.tasks.model.plan import InputSpec, Plan
from samovar.tasks.model.results import Outcome, added
from samovar.tasks.rules.replay_dedup import ReplayDedupFilter
from samovar.tasks.user.calls import Calls, UserOutput
from samovar.tasks.user.context import Phase
from samovar.tasks.user.timers import reindexed_timers

TASK_FAILED = "TASK_FAILED"
FITS = INDEX  # the key of a local row: the position that the local indexes fit


class UserTaskProcessor(Processor):
    """One task of the user's at work on its inputs, from a position on."""

    source: UserStreamSource

    def __init__(
        self, plan: Plan, partition: int, store: TaskStore, inputs: Sequence[InputSpec], position: Position | None
    ) -> None:
        assert plan.task is not None, plan.stage
        self.spec = plan.task
        make = UserRepartitionSource if any(spec.is_forwarded for spec in inputs) else UserStreamSource
        source = make(inputs, plan.fields, partition, plan.tunables)
        self._dedup = ReplayDedupFilter.of(store)
        super().__init__(plan, partition, store, source, position, self._dedup.written_up_to)
        self._fit_indexes()
        self.calls = Calls(self.spec, partition, store, plan.tunables.cache_bytes)
        if self._dedup.topics:
            self.calls.has_emitted = self._has_emitted
        self.calls.begin(source.watermark)

    def _fit_indexes(self) -> None:
        """Make indexes again that are not of the rows' commit: after a restore, or a crash before the last write."""
        store, rows_at_once = self.store, self.plan.tunables.rebuilt_rows
        position = store.get(POSITION)
        if position is None or store.get(FITS) == _fit(position):
            return
        reindexed_timers(store, rows_at_once)
        for name in self.spec.stores:
            reindexed(store, name, rows_at_once)
        store.put(FITS, _fit(position))

    def _run(self, ordered: OrderedEvents) -> None:
        self.dirty = True
        self.calls.run(self.source.events(ordered.released), ordered.watermark)

    def is_due(self, watermark: int) -> bool:
        return self.calls.is_due(watermark)

    def _has_emitted(self, phase: Phase, now: int) -> bool:
        """Whether a call was made before the task was set back. What it emitted then is in its topics, for good."""
        until = NO_TIME if self._dedup.watermark is None else self._dedup.watermark
        if phase is Phase.PROCESS:
            return bool(due_at(np.array([now]), self.source.buffer, until)[0])
        return now <= until if phase is Phase.WINDOW else now < until

    def _facts(self) -> dict[str, object]:
        """Which code is at work. Its text is not in the journal, only its version."""
        task = {"id": self.spec.name, "class": self.spec.source, "version": self.spec.version}
        return {"rules": [], "task": task}

    def _results(self, position: Position, packed: bytes) -> tuple[list[Append], list[Change], list[Change]]:
        stack, since = self.calls.stack, self._since
        if self.source.watermark > NO_TIME:
            stack.expire(self.source.watermark)
        done, self.calls.done = self.calls.done, UserOutput()
        stage = ("samovar.stage", self.plan.stage.encode())
        for failed in done.failures:
            message, trace, event = failed.fault.message, failed.fault.trace, failed.event
            headers = failure(TASK_FAILED, message, trace)
            if event is not None:
                where = SourceCoordinates.of(event.topic, event.partition, event.stream)
                headers = where.dead(event.offset, TASK_FAILED, message, trace)
            self._dead.put(failed.record, (*headers, stage, *failed.headers))
        since.emitted = sum(map(len, done.emitted.values()))
        since.failed, since.skipped = len(done.failures), done.skipped
        since.dead += since.failed
        among = {emit.topic: emit.among for emit in self.spec.emits.values()}
        emitted = [Append(topic=topic, records=pairs, among=among.get(topic)) for topic, pairs in done.emitted.items()]
        rows, index = stack.changes()
        gone = [] if self._dedup.is_idle else self._dedup.changes(position)
        return emitted, [*rows, *gone], [*index, (FITS, _fit(packed))]

    def committed(self, outcome: Outcome) -> None:
        self.counts = added(self.counts, outcome.counts)
        self.calls.stack.committed()

    def forget(self) -> None:
        """What its stores hold stays, also where it was away for a while."""

    def gone_rows(self) -> list[Change]:
        """None: a store that the service file names no more keeps its rows, for they may be wanted again."""
        return []

    def memory_bytes(self) -> int:
        return self.calls.stack.cached.bytes_used

    def evict(self) -> None:
        self.calls.stack.evict()

    def close(self) -> str | None:
        """What is committed is committed: a `close` that raises is only told."""
        try:
            self.calls.close(self.source.watermark)
        except Refused as refused:
            return f"{refused.code}: {refused.what}"
        return None


def _fit(packed_position: bytes) -> bytes:
    return hashlib.sha256(packed_position).digest()[:16]
