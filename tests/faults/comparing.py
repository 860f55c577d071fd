"""What came out against what the oracle says about the same input."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests import oracle
from tests.contracts.log_driving import Row
from tests.faults.harness import Fields, Match, Service


def shown(matches: Sequence[Match]) -> list[str]:
    """Matches for comparing, in an order of their own; the oracle makes no ids and no versions."""
    plain = [{key: value for key, value in match.items() if key not in ("id", "version")} for match in matches]
    return sorted(json.dumps(rounded(match), sort_keys=True) for match in plain)


def rounded(value: Any) -> Any:
    """Fractions up to what the order of adding does to them; a step that took no event need not be named."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items() if each != []}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return value


@dataclass(frozen=True)
class Told:
    """What the oracle says about one stream's input."""

    matches: list[Match]
    late: list[tuple[int, int]]  # partition and offset


def told_by_oracle(service: Service, stream: str) -> Told:
    """The oracle over all records of a stream, partition by partition, with input's end as the end of time."""
    spec = service.settings.streams[stream]
    told = Told([], [])
    for partition in range(service.partitions):
        rows = [row for row in service.read(spec.topic) if row.at.partition == partition]
        events = [event_of(row.value) for row in rows]
        options: dict[str, Any] = {"time_field": spec.time, "slack_ms": spec.slack_ms}
        if spec.type is not None:
            options["type_field"] = spec.type
        else:
            events = [None if event is None else {"type": stream, **event} for event in events]
        result = oracle.run(service.parsed, events, **options)
        places = [[spec.topic, partition, row.offset] for row in rows]
        told.matches.extend(at_places(match, places) for match in result.matches)
        told.late.extend((partition, rows[line].offset) for line in result.late)
    return told


def at_places(match: Match, places: Sequence[Any]) -> Match:
    """A match of the oracle's with coordinates instead of lines."""
    steps = {name: [places[line] for line in lines] for name, lines in match["steps"].items()}
    return {**match, "steps": steps}


def event_of(value: bytes | None) -> Fields | None:
    """A record as the oracle takes it; None is what every reader must pass over."""
    try:
        event = json.loads(value or b"")
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def same_alerts(service: Service, told: Told) -> None:
    """Nothing lost, nothing twice, nothing else (P1)."""
    alerts = service.alerts()
    ids = [alert["id"] for alert in alerts]
    assert len(ids) == len(set(ids)), "an alert was written twice"
    assert shown(alerts) == shown(told.matches)
    late = sorted((header(row, "partition"), header(row, "offset")) for row in service.late())
    assert late == sorted((str(partition), str(offset)) for partition, offset in told.late)


def header(row: Row, name: str) -> str:
    return dict(row.headers)["__streams.errors." + name].decode()
