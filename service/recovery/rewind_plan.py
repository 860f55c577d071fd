"""What `samovar rewind` will do to each task of a service, and which alerts it must know of. Nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samovar.changelog.cursors import read_all
from samovar.changelog.formats.journal import REWIND
from samovar.changelog.formats.record import Position
from samovar.changelog.log import TopicPartition
from samovar.changelog.restore.point_in_time import last_position
from samovar.common.errors import Refused
from samovar.patterns.explain.key_trace import iso_time
from samovar.service.topology.stores import StateLocation
from samovar.tasks.model.plan import MAIN
from samovar.tasks.replay.rebuild import Until, journal_of
from samovar.tasks.replay.repair import refuse_members, source_until
from samovar.tasks.runtime.stream_task import name_of

SKIP_ALERTS, ALERTS_AGAIN = "skip", "again"


@dataclass(frozen=True)
class TaskRewind:
    """What will happen to one task. `left` says why nothing will."""

    stage: str
    partition: int
    watermark: int | None
    until: Until
    position: Position | None
    left: str | None = None

    @property
    def name(self) -> str:
        return name_of(self.stage, self.partition)

    def data(self) -> dict[str, Any]:
        return {
            **placed(self.stage, self.partition),
            "watermark": self.watermark,
            "inputs": dict(self.until.inputs),
            "left": self.left,
        }


def placed(stage: str, partition: int) -> dict[str, Any]:
    """Where something is, for programs: the main stage goes without saying."""
    return {"partition": partition} | ({} if stage == MAIN else {"stage": stage})


# ---------------------------------------------------------------- what will happen


def plan_rewind(site: StateLocation, moment_ms: int) -> list[TaskRewind]:
    """Nothing is changed."""
    refuse_members(site.log, site.settings.service)
    plans = [_planned(each, partition, moment_ms) for each in site.stages() for partition in range(site.partitions)]
    known = [each for each in plans if each.left != "it never ran"]
    if not known:
        hint = "There is nothing to set back: `samovar run` begins at the beginning."
        raise Refused("nothing-processed", f"the service {site.settings.service} never ran", hint)
    if all(each.left is not None and each.watermark is not None and each.watermark < moment_ms for each in known):
        raise Refused(
            "as-of-future",
            f"no partition's event time has reached {iso_time(moment_ms)}",
            "A rewind goes back: name an event time before that.",
            "; ".join(f"{each.name}: {moment_text(each.watermark)}" for each in known),
        )
    return plans


def _planned(site: StateLocation, partition: int, moment_ms: int) -> TaskRewind:
    log, settings, stage = site.log, site.settings, site.stage
    position = last_position(log, site.changelog(partition))
    try:
        until = source_until(
            log, site.plan, partition, settings.service, position, settings.delivery, site.shared_topics()
        )
    except Refused as refused:
        if refused.code != "nothing-processed":
            raise
        return TaskRewind(stage, partition, None, Until({}), None, "it never ran")
    if position is None and not journal_of(log, site.plan, partition):
        # Of an input that stages share, the group knows; that this one took it nobody says.
        return TaskRewind(stage, partition, None, Until({}), None, "it never ran")
    watermark = None if position is None else position.watermark
    left = None
    if position is not None and (watermark is None or watermark < moment_ms):
        left = f"its event time is {moment_text(watermark)}, which is before that"
    elif position is not None and not position.rewinding and _is_there(site, partition, position, moment_ms):
        left = "it is there already"
    return TaskRewind(stage, partition, watermark, until, position, left)


def _is_there(site: StateLocation, partition: int, position: Position, moment_ms: int) -> bool:
    """Whether a rewind to this moment is the last thing that happened."""
    entries = journal_of(site.log, site.plan, partition)
    rewinds = [entry for entry in entries if entry.kind == REWIND]
    if not rewinds or rewinds[-1].facts["to"] != moment_ms or position.journal != entries[-1].number:
        return False
    after = [entry for entry in entries if entry.number > rewinds[-1].number]
    same_place = {name: each.next for name, each in position.inputs.items()} == dict(rewinds[-1].inputs)
    return same_place and all(entry.kind == "advance" for entry in after)


def moment_text(watermark: int | None) -> str:
    return "none yet" if watermark is None else iso_time(watermark)


def plan_lines(plans: Sequence[TaskRewind], moment_ms: int, alerts: str) -> list[str]:
    again = "are not published again" if alerts == SKIP_ALERTS else "are published again"
    lines = [f"back to event time {iso_time(moment_ms)}; alerts after it that were published {again}"]
    for each in plans:
        if each.left is not None:
            lines.append(f"{each.name}: stays; {each.left}")
            continue
        places = ", ".join(f"{name} {offset:,}" for name, offset in each.until.inputs.items())
        lines.append(f"{each.name}: back from event time {moment_text(each.watermark)} ({places})")
    return lines


# ---------------------------------------------------------------- alerts that were published


@dataclass(frozen=True)
class PublishedAlert:
    """An alert that was published: its id, its rule, and the partition of its events where it names any."""

    id: bytes
    rule: str
    partition: int | None

    def may_come_from(self, planned: TaskRewind) -> bool:
        """Whether a task may have found it. In a later stage, events of all partitions come together."""
        rules = {} if planned.position is None else planned.position.rules
        if planned.stage != MAIN:
            return self.rule in rules
        return self.partition is None or self.partition == planned.partition


def published_after(site: StateLocation, moment_ms: int) -> list[PublishedAlert]:
    """The alerts at or after the moment."""
    topic = site.plan.topics.alerts
    found: list[PublishedAlert] = []
    known = site.log.topics([topic]).get(topic)
    for partition in range(known.partitions if known is not None else 0):
        for records in read_all(site.log, TopicPartition(topic, partition)):
            for _, value in records.pairs():
                alert = _alert(value)
                if alert is not None and alert["at"] >= moment_ms:
                    found.append(PublishedAlert(alert["id"].encode(), str(alert.get("rule")), _partition(alert)))
    return found


def _alert(value: bytes | None) -> dict[str, Any] | None:
    """An alert of ours; others may write to the topic, too."""
    try:
        raw = json.loads(value or b"null")
    except ValueError:
        return None
    return raw if isinstance(raw, dict) and isinstance(raw.get("id"), str) and isinstance(raw.get("at"), int) else None


def _partition(alert: Mapping[str, Any]) -> int | None:
    places = [place for places in alert.get("steps", {}).values() for place in places]
    return int(places[0][1]) if places and len(places[0]) == 3 else None
