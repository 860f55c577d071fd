"""A container in this process under a clock that the test sets. It can crash: what is not committed is gone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from samovar.service.runtime.running import container_of
from samovar.state.memory import MemoryStore
from samovar.tasks.input.repartition_source import RepartitionSource
from samovar.tasks.model.clock import SetClock
from samovar.tasks.replay.rebuild import ReplayEnd, rebuild
from samovar.tasks.runtime.container import Container
from tests import oracle
from tests.faults.comparing import at_places, event_of, header
from tests.faults.harness import Fields, Match, Service, digest_of, position_of, wait_until


@dataclass
class Stage:
    """The source of truth for the clock and the container of one test."""

    service: Service
    clock: SetClock = field(default_factory=SetClock)
    said: list[str] = field(default_factory=list)
    _container: Container | None = None

    @property
    def container(self) -> Container:
        if self._container is None:
            service = self.service
            self._container = container_of(service.settings, service.log, 0, self.said.append, self.clock)
        return self._container

    def close(self) -> None:
        """Let go of everything; nothing more is committed."""
        if self._container is not None:
            self._container.close()
            self._container = None

    def crash(self, *, wipe: bool = False) -> None:
        self.close()
        if wipe:
            self.service.wipe()

    def feed(self, stream: str, *events: Fields, partition: int = 0) -> None:
        """Write events and process them."""
        self.service.events(stream, events, partition)
        self.settle()

    def settle(self) -> None:
        """Process and commit all that is there. The clock stands still."""
        wait_until(self._is_settled, "all input is processed", self.container.cycle)

    def _is_settled(self) -> bool:
        return self.container.caught_up() and self.service.committed() == self.service.written()

    def pass_ms(self, ms: int) -> None:
        """Let the clock go on while no event comes. One look more: what happened then is committed."""
        self.settle()
        self.observe_end()
        self.clock.pass_ms(ms)
        self.observe_end()
        self.settle()

    def observe_end(self) -> None:
        """Until the log has said, at this time of the clock, that all inputs were read to their ends."""
        wait_until(self._stands, "the log says that its ends are the ends", self.container.cycle)

    def _stands(self) -> bool:
        intakes = [task.processor.source for task in self.container.tasks.values()]
        sources = [
            each
            for stream_source in intakes
            if not isinstance(stream_source, RepartitionSource)
            for each in stream_source.sources.values()
        ]
        now_ms = self.clock.steady_ms()
        return all(each.idle_since_ms is not None and each.idle_until_ms == now_ms for each in sources)

    # ------------------------------------------------------------ what must be equal

    def rebuilt(self) -> tuple[list[str], dict[int, str]]:
        """Ids of all alerts and digests of all states, folded again from input and journal."""
        plan, ids, digests = self.service.plan, list[str](), dict[int, str]()
        for partition, position in self.service.positions().items():
            store = MemoryStore()
            until = ReplayEnd({stream: each.next for stream, each in position.inputs.items()})
            rebuild(
                self.service.log, plan, partition, store, until,
                on_alerts=lambda pairs: ids.extend(json.loads(value or b"")["id"] for _, value in pairs),
            )  # fmt: skip
            digests[partition] = digest_of(plan, store)
            assert position_of(store).watermark == position.watermark
        return ids, digests


@contextmanager
def staged(service: Service) -> Iterator[Stage]:
    stage = Stage(service)
    try:
        yield stage
    finally:
        stage.close()


def told_without_late(service: Service) -> list[Match]:
    """The oracle over all streams: every event that was not put aside, in any order of arrival, to the end of time.

    Events of one time come in the order of their streams' numbers, so the oracle is given them stream by stream.
    """
    aside = {(header(row, "topic"), header(row, "partition"), header(row, "offset")) for row in service.late()}
    aside |= {(header(row, "topic"), header(row, "partition"), header(row, "offset")) for row in service.dead()}
    matches: list[Match] = []
    for partition in range(service.partitions):
        events: list[Fields | None] = []
        places: list[Any] = []
        for stream, spec in service.settings.streams.items():
            for row in [row for row in service.read(spec.topic) if row.at.partition == partition]:
                put_aside = (spec.topic, str(partition), str(row.offset)) in aside
                event = {} if put_aside else event_of(row.value) or {}
                events.append({**event, "type": event[spec.type] if spec.type else stream} if event else None)
                places.append([spec.topic, partition, row.offset])
        matches += [at_places(match, places) for match in oracle.run(service.parsed, events).matches]
    return matches


def ids(alerts: Sequence[Match]) -> list[str]:
    return sorted(alert["id"] for alert in alerts)


Staging = Callable[..., Stage]
