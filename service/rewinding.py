"""`samovar rewind`: a stopped service set back to a moment of event time, state and offsets together.

    STATE/<partition>/rewind.part    the state of the moment, being folded; it takes the store's place at the end

One partition after the other; each is set back by the transaction that ends it (tasks/rewinding.py), or not at all. A
kill leaves some of them done: run again with the same moment, it passes over those.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from samovar.changelog.asof import image_at, last_position
from samovar.changelog.cursors import read_all
from samovar.changelog.errors import Refused
from samovar.changelog.journal import REWIND, was_set_back
from samovar.changelog.log import TopicPartition
from samovar.changelog.record import FOLLOWING, Following, Position, pack_following
from samovar.patterns.follow import iso_time
from samovar.service.restoring import alone, put_in_place
from samovar.service.stores import Site, digest_of, plan_for, position_of, reading
from samovar.state import snapshots
from samovar.state.folders import PART
from samovar.state.hold import holding
from samovar.state.rocks import RocksStore
from samovar.state.store import Change
from samovar.tasks.rebuild import Until, journal_of
from samovar.tasks.restoring import Mender, changes_between, refuse_members, source_until
from samovar.tasks.rewinding import Rewound, fold_back, write_back
from samovar.tasks.skipping import SKIP, SKIP_END, Skips, rows_between, skip_rows

SKIP_ALERTS, ALERTS_AGAIN = "skip", "again"
OnProgress = Callable[[int], None]


@dataclass(frozen=True)
class Planned:
    """What will happen to one partition. `left` says why nothing will."""

    partition: int
    watermark: int | None
    until: Until
    position: Position | None
    left: str | None = None

    def data(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "watermark": self.watermark,
            "inputs": dict(self.until.inputs),
            "left": self.left,
        }


@dataclass(frozen=True)
class Done:
    """One partition that was set back."""

    partition: int
    position: Position
    before: Mapping[str, int]
    digest: str
    rows: int
    skips: int
    events: int

    def data(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "watermark": self.position.watermark,
            "inputs": {name: each.next for name, each in self.position.inputs.items()},
            "inputs_before": dict(self.before),
            "digest": self.digest,
            "rows": self.rows,
            "alerts_to_skip": self.skips,
            "events_folded": self.events,
        }


# ---------------------------------------------------------------- what will happen


def plan_rewind(site: Site, moment_ms: int) -> list[Planned]:
    """Nothing is changed."""
    _refuse_stages(site)
    refuse_members(site.log, site.settings.service)
    plans = [_planned(site, partition, moment_ms) for partition in range(site.partitions)]
    known = [each for each in plans if each.left != "it never ran"]
    if not known:
        hint = "There is nothing to set back: `samovar run` begins at the beginning."
        raise Refused("nothing-processed", f"the service {site.settings.service} never ran", hint)
    if all(each.left is not None and each.watermark is not None and each.watermark < moment_ms for each in known):
        raise Refused(
            "as-of-future",
            f"no partition's event time has reached {iso_time(moment_ms)}",
            "A rewind goes back: name an event time before that.",
            "; ".join(f"partition {each.partition}: {_moment(each.watermark)}" for each in known),
        )
    return plans


def _refuse_stages(site: Site) -> None:
    others = [plan.stage for plan in site.plans if plan.stage]
    if others:
        raise Refused(
            "rewind-stages",
            f"the service has further stages ({', '.join(others)}), and only a service of one stage can be set back",
            "Look at the past with `samovar restore --to-time T --out DIR`, or run the input anew under another name.",
        )


def _planned(site: Site, partition: int, moment_ms: int) -> Planned:
    log, settings = site.log, site.settings
    position = last_position(log, site.changelog(partition))
    try:
        until = source_until(log, site.plan, partition, settings.service, position, settings.delivery)
    except Refused as refused:
        if refused.code != "nothing-processed":
            raise
        return Planned(partition, None, Until({}), None, "it never ran")
    watermark = None if position is None else position.watermark
    left = None
    if position is not None and (watermark is None or watermark < moment_ms):
        left = f"its event time is {_moment(watermark)}, which is before that"
    elif position is not None and _is_there(site, partition, position, moment_ms):
        left = "it is there already"
    return Planned(partition, watermark, until, position, left)


def _is_there(site: Site, partition: int, position: Position, moment_ms: int) -> bool:
    """Whether a rewind to this moment is the last thing that happened."""
    entries = journal_of(site.log, site.plan, partition)
    rewinds = [entry for entry in entries if entry.kind == REWIND]
    if not rewinds or rewinds[-1].facts["to"] != moment_ms or position.journal != entries[-1].number:
        return False
    after = [entry for entry in entries if entry.number > rewinds[-1].number]
    same_place = {name: each.next for name, each in position.inputs.items()} == dict(rewinds[-1].inputs)
    return same_place and all(entry.kind == "advance" for entry in after)


def _moment(watermark: int | None) -> str:
    return "none yet" if watermark is None else iso_time(watermark)


def plan_lines(plans: Sequence[Planned], moment_ms: int, alerts: str) -> list[str]:
    again = "are not published again" if alerts == SKIP_ALERTS else "are published again"
    lines = [f"back to event time {iso_time(moment_ms)}; alerts after it that were published {again}"]
    for each in plans:
        if each.left is not None:
            lines.append(f"partition {each.partition}: stays; {each.left}")
            continue
        places = ", ".join(f"{name} {offset:,}" for name, offset in each.until.inputs.items())
        lines.append(f"partition {each.partition}: back from event time {_moment(each.watermark)} ({places})")
    return lines


# ---------------------------------------------------------------- doing it


def rewind_all(
    site: Site, plans: Sequence[Planned], moment_ms: int, alerts: str, on_progress: Callable[[Planned, int], None]
) -> Iterator[Done]:
    """Fold all partitions first, so that one that cannot be folded leaves all as they are; then set one back after the
    other. Those that are done stay done, whatever becomes of the next.
    """
    todo = [planned for planned in plans if planned.left is None]
    if not todo:
        return
    settings = site.settings
    with ExitStack() as stack:
        stack.enter_context(alone(site.state))
        for planned in todo:
            stack.enter_context(holding(site.store(planned.partition)))
        topics = [spec.topic for spec in site.plan.inputs]
        wanted = [planned.partition for planned in todo]
        mender = Mender(site.log, topics, settings.service, settings.delivery, wanted)
        stack.callback(mender.close)
        published = published_after(site, moment_ms) if alerts == SKIP_ALERTS else {}
        folded = [(planned, _fold(site, planned, moment_ms, alerts, partial(on_progress, planned))) for planned in todo]
        for planned, rewound in folded:
            ids = {*published.get(planned.partition, ()), *published.get(None, ())}
            yield _set_back(site, planned, mender, rewound, ids)


def _part(site: Site, planned: Planned) -> Path:
    return site.store(planned.partition).with_name(f"rewind{PART}")


def _fold(site: Site, planned: Planned, moment_ms: int, alerts: str, on_progress: OnProgress) -> Rewound:
    """The state of the moment, in a store beside the live one. Nothing else is touched."""
    part = _part(site, planned)
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    start = _open_snapshot(site, planned, moment_ms, part)
    facts = {"alerts": alerts, "time_ms": int(time.time() * 1000)}
    store = RocksStore(part)
    try:
        return fold_back(
            site.log, site.plan, planned.partition, store, planned.until, moment_ms, facts, on_progress, start
        )
    finally:
        store.close()


def _set_back(site: Site, planned: Planned, mender: Mender, rewound: Rewound, ids: set[bytes]) -> Done:
    part = _part(site, planned)
    store = RocksStore(part)
    try:
        rows = _write_back(site, planned, store, mender, rewound, ids)
        digest = digest_of(plan_for(site, planned.partition, rewound.position), store)
        store.flush()
    finally:
        store.close()
    put_in_place(part, site.store(planned.partition))
    return Done(planned.partition, rewound.position, planned.until.inputs, digest, rows, len(ids), rewound.events)


def _write_back(
    site: Site, planned: Planned, store: RocksStore, mender: Mender, rewound: Rewound, ids: set[bytes]
) -> int:
    """The changelog's difference goes out, and the store follows from there; how many rows that were."""
    changelog = site.changelog(planned.partition)  # as it is now that nobody else writes
    image = image_at(site.log, changelog, changelog.bounds.end)
    skips = skip_rows(ids, *Skips.of(image).furthest(planned.until.inputs, planned.watermark))
    changes: list[Change] = [*changes_between(store, image), *rows_between(skips, image)]
    inputs = [TopicPartition(each.topic, planned.partition) for each in rewound.position.inputs.values()]
    committed = site.log.committed(site.settings.service, inputs)
    before = {at: offset for at, offset in committed.items() if offset is not None}
    end = write_back(mender, site.plan.topics, planned.partition, changes, rewound, before)
    topic, at = changelog.topic, changelog.at
    following = Following(at.topic, topic.id, at.partition, topic.partitions, end, int(time.time() * 1000))
    stale: list[Change] = [(row, None) for row, _ in store.range(SKIP, SKIP_END)]
    store.write([*stale, *skips, (FOLLOWING, pack_following(following))])
    return len(changes)


# ---------------------------------------------------------------- where to begin


def _open_snapshot(site: Site, planned: Planned, moment_ms: int, part: Path) -> Position | None:
    """Begin with the newest snapshot from before the moment, where the input no longer goes back to the beginning or to
    spare the way from there; None: there is none.
    """
    entries = journal_of(site.log, site.plan, planned.partition)
    for snapshot in reversed([*snapshots.listed(site.folder(planned.partition) / "snapshots")]):
        known = snapshot.manifest
        if known.watermark_ms is None or known.watermark_ms > moment_ms or not _is_valid(snapshot):
            continue
        with reading(snapshot.folder) as store:
            position = position_of(store)
        if position is None or not _may_begin(site, planned, position):
            continue
        nexts = {name: each.next for name, each in position.inputs.items()}
        if was_set_back(entries, position.journal, nexts):
            continue
        snapshots.open_copy(snapshot, part)
        return position
    return None


def _is_valid(snapshot: snapshots.Snapshot) -> bool:
    try:
        snapshots.verify(snapshot)
    except snapshots.BadSnapshot:
        return False
    return True


def _may_begin(site: Site, planned: Planned, position: Position) -> bool:
    """Whether it is of this input, not ahead of what was processed, and what it waits for is still there."""
    places = {TopicPartition(each.topic, planned.partition): each for each in position.inputs.values()}
    topics = site.log.topics([at.topic for at in places])
    if any(at.topic not in topics or topics[at.topic].id != each.topic_id for at, each in places.items()):
        return False
    bounds = site.log.bounds(list(places))
    until = planned.until.inputs
    ahead = any(each.next > until.get(name, each.next) for name, each in position.inputs.items())
    return not ahead and all(bounds[at].begin <= each.safe for at, each in places.items())


# ---------------------------------------------------------------- alerts that were published


def published_after(site: Site, moment_ms: int) -> dict[int | None, set[bytes]]:
    """Ids of alerts at or after the moment, by the partition of their events; under None where none is named."""
    topic = site.plan.topics.alerts
    found: dict[int | None, set[bytes]] = defaultdict(set)
    known = site.log.topics([topic]).get(topic)
    for partition in range(known.partitions if known is not None else 0):
        for records in read_all(site.log, TopicPartition(topic, partition)):
            for _, value in records.pairs():
                alert = _alert(value)
                if alert is not None and alert["at"] >= moment_ms:
                    found[_partition(alert)].add(alert["id"].encode())
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


def done_line(done: Done) -> str:
    places = ", ".join(
        f"{name} {done.before.get(name, 0):,} to {each.next:,}" for name, each in done.position.inputs.items()
    )
    skips = f"; {done.skips:,} alerts to skip" if done.skips else ""
    return (
        f"partition {done.partition}: set back to event time {_moment(done.position.watermark)} ({places}),"
        f" {done.rows:,} rows of the changelog changed{skips}\n  digest {done.digest}"
    )
