"""A service with stages, held against the oracle: each rule sees all events, wherever they were, but for those that
were put aside before it or in its own stage.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from samovar.changelog.formats.record import Position
from samovar.changelog.log import TopicPartition
from samovar.service.topology.plans import plans_of
from samovar.state.memory import MemoryStore
from samovar.state.rocks import RocksStore
from samovar.tasks.model.plan import Plan
from samovar.tasks.replay.rebuild import ReplayEnd, rebuild
from samovar.tasks.runtime.stream_task import task_folder
from tests import oracle
from tests.contracts.log_driving import Row
from tests.faults.comparing import at_places, event_of, header
from tests.faults.harness import Fields, Match, Service, digest_of, position_of, wait_until
from tests.faults.stage import Stage
from tests.support.matching import rules_of

Place = tuple[str, int]  # stage, partition


def plans(service: Service) -> list[Plan]:
    return plans_of(service.settings, service.partitions)


def inputs(service: Service) -> list[TopicPartition]:
    """The partitions that tasks of all stages read."""
    topics = dict.fromkeys(spec.topic for plan in plans(service) for spec in plan.inputs)
    return [TopicPartition(topic, number) for topic in topics for number in range(service.partitions)]


def is_done(service: Service) -> bool:
    """Whether all is processed that is in the inputs of all stages."""
    places = inputs(service)
    committed = service.log.committed(service.settings.service, places)
    return all(bounds.end == (committed[at] or 0) for at, bounds in service.log.bounds(places).items())


def settle(stage: Stage) -> None:
    """Process and commit all that is there, in all stages. The clock stands still."""
    stage.settle()
    wait_until(lambda: is_done(stage.service), "all stages are done", stage.container.cycle)


def pass_ms(stage: Stage, ms: int) -> None:
    """Let the clock go on while no event comes, and all stages see it."""
    settle(stage)
    stage.observe_end()
    stage.clock.pass_ms(ms)
    stage.observe_end()
    settle(stage)


# ---------------------------------------------------------------- the oracle


def told(service: Service, stage: str, rules: Sequence[str]) -> list[Match]:
    """The oracle over all partitions at once, in the order in which events of one time come."""
    aside = {place_of(row) for row in (*service.late(), *service.dead()) if stage_of(row) in ("", stage)}
    events: list[Fields | None] = []
    places: list[Any] = []
    for stream, spec in service.settings.streams.items():
        for row in sorted(service.read(spec.topic), key=lambda each: (each.at.partition, each.offset)):
            place = [spec.topic, row.at.partition, row.offset]
            event = None if tuple(place) in aside else event_of(row.value)
            events.append(None if event is None else {**event, "type": event.get(spec.type) if spec.type else stream})
            places.append(place)
    return [at_places(match, places) for match in oracle.run(rules_of(*rules), events).matches]


def place_of(row: Row) -> tuple[str, int, int]:
    return header(row, "topic"), int(header(row, "partition")), int(header(row, "offset"))


def stage_of(row: Row) -> str:
    return dict(row.headers).get("samovar.stage", b"").decode()


def of_rules(matches: Sequence[Match], *rules: str) -> list[Match]:
    """Without those of the events that end a test."""
    return [match for match in matches if match["rule"] in rules and "end" not in match["key"].values()]


# ---------------------------------------------------------------- state


def states(service: Service) -> dict[Place, tuple[str, Position]]:
    """Digest and position of every task's store."""
    found = {}
    for plan in plans(service):
        for partition in range(service.partitions):
            store = RocksStore(task_folder(service.settings.state, partition, plan.stage) / "store")
            try:
                found[plan.stage, partition] = digest_of(plan, store), position_of(store)
            finally:
                store.close()
    return found


def digests(service: Service) -> dict[Place, str]:
    return {place: digest for place, (digest, _) in states(service).items()}


def rebuilt(service: Service) -> tuple[list[str], dict[Place, str]]:
    """Ids of all alerts and digests of all states, folded again from inputs and journals."""
    ids: list[str] = []
    found = {}
    by_stage = {plan.stage: plan for plan in plans(service)}
    for (stage, partition), (_, position) in states(service).items():
        store = MemoryStore()
        until = ReplayEnd({stream: each.next for stream, each in position.inputs.items()})
        rebuild(
            service.log, by_stage[stage], partition, store, until,
            on_alerts=lambda pairs: ids.extend(json.loads(value or b"")["id"] for _, value in pairs),
        )  # fmt: skip
        found[stage, partition] = digest_of(by_stage[stage], store)
        assert position_of(store).watermark == position.watermark, (stage, partition)
    return sorted(ids), found
