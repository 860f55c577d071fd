"""`samovar verify --engine spark`: every store of this machine held against changelog and source, a Spark task each.

Replays go to a RocksDB of the executor, so that a state may be larger than memory. Stores are read where they lie, also
while containers use them: Spark must run on this machine, and each node verifies its own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from samovar.changelog.errors import Refused
from samovar.changelog.log import TopicPartition
from samovar.changelog.spark import Session
from samovar.changelog.spark_progress import OnProgress, Ticker
from samovar.changelog.spark_tasks import spread
from samovar.service.spark_jobs import Shipped, arrived, shipped
from samovar.service.stores import Site, look_at
from samovar.service.verifying import Verdict, verify
from samovar.state.rocks import RocksStore

KEYS = 10_000  # that differ are listed, of each task


@dataclass(frozen=True)
class Part:
    """One store to verify."""

    service: Shipped
    stage: str
    partition: int


def verify_all(
    session: Session, site: Site, found: Sequence[tuple[Site, int]], on_progress: OnProgress
) -> list[Verdict]:
    """The verdicts on stores, as `Site.found` lists them."""
    if not session.is_local:
        raise Refused(
            "engine-unfit",
            "stores lie on this machine, where executors elsewhere cannot read them",
            "Leave `--master` out: each node verifies its own stores, with all its cores.",
        )
    parts = [Part(shipped(site), here.stage, partition) for here, partition in found]
    total = sum(_todo(here, partition) for here, partition in found)
    return spread(session, "verify", parts, verify_one, on_progress, total)


def _todo(site: Site, partition: int) -> int:
    """Records to read, at most: offsets have gaps."""
    standing = look_at(site.store(partition))
    position = standing.position
    places = (
        {}
        if position is None
        else {TopicPartition(each.topic, partition): each.next for each in position.inputs.values()}
    )
    inputs = sum(max(places[at] - bounds.begin, 0) for at, bounds in site.log.bounds(list(places)).items())
    begin = site.changelog(partition).bounds.begin
    return inputs + (0 if standing.following is None else max(standing.following.next - begin, 0))


def verify_one(part: Part, tick: Ticker) -> Verdict:
    """On an executor."""
    with ExitStack() as stack:
        site = stack.enter_context(arrived(part.service, part.stage))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="samovar-verify-")))
        numbers = count()

        def scratch() -> RocksStore:
            store = RocksStore(folder / str(next(numbers)))
            stack.callback(store.close)
            return store

        now_ms = int(time.time() * 1000)
        return verify(site, part.partition, now_ms, _adding(tick), scratch=scratch, keys=KEYS)


def _adding(tick: Ticker) -> Callable[[str, int], None]:
    """Progress of one thing after the other, as one."""
    done: dict[str, int] = {}

    def told(what: str, records: int) -> None:
        done[what] = records
        tick(sum(done.values()))

    return told
