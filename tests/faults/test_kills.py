"""Killed at any moment, started again: nothing lost, nothing twice, and the state of a run that was never disturbed.

P1 outputs equal the oracle's over the same input; P2 store == a straight run's, by digest; P3 and P4 a store that was
kept goes on from where it is. SAMOVAR_KILLS=500 is the long form (`make chaos KILLS=500`); SAMOVAR_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from samovar.changelog.log import Pair
from samovar.state.points import POINTS
from tests.faults import world
from tests.faults.comparing import same_alerts, told_by_oracle
from tests.faults.conftest import Making
from tests.faults.harness import Service, wait_until

KILLS = int(os.environ.get("SAMOVAR_KILLS", "20"))
SEED = int(os.environ.get("SAMOVAR_SEED", "0")) or time.time_ns() % 1_000_000
BATCH = 12  # records of a poll, so that a little input is many commits
INPUT = 90  # records before each start
Before = Literal["kept", "store lost", "all lost"]


@dataclass(frozen=True)
class Kill:
    """One end of the process: at a named point, or, without one, at a random moment."""

    point: str | None
    before: Before


def kills(random_: random.Random) -> list[Kill]:
    """Every named point with the store kept and with it lost, and moments of no name, in any order."""
    lost: tuple[Before, ...] = ("store lost", "all lost")
    rounds = 1 + KILLS // 100
    found = [
        Kill(point, before) for _ in range(rounds) for point in POINTS for before in ("kept", random_.choice(lost))
    ]
    found += [Kill(None, random_.choice(("kept", *lost))) for _ in range(KILLS)]
    random_.shuffle(found)
    return found


class Loop:
    """A service that is killed again and again while input comes in."""

    def __init__(self, service: Service, random_: random.Random) -> None:
        self.service = service
        self.random = random_
        self.source: Iterator[Pair] = world.events(random_.randrange(1 << 30))

    def produce(self) -> None:
        self.service.append_pairs(world.STREAM, world.take(self.source, INPUT))

    def strike(self, kill: Kill) -> None:
        self.produce()
        if kill.before != "kept":
            self.service.wipe(snapshots=kill.before == "all lost")
        if kill.point is None:
            self._at_a_moment()
        else:
            self._at_a_point(kill)

    def _at_a_point(self, kill: Kill) -> None:
        assert kill.point is not None
        most = world.PARTITIONS if kill.point.startswith("restore") else 4
        if kill.point == "restore.after" and kill.before != "all lost":
            # A store, or a snapshot, that has all of its changelog is not restored: leave one behind.
            self._hit("write.before", most)
            most = 1
            if kill.before == "store lost":
                self.service.wipe(snapshots=False)
        self._hit(kill.point, self.random.randint(1, most))

    def _hit(self, point: str, count: int) -> None:
        running = self.service.start(kill=f"{point}:{count}", poll=BATCH)
        code = running.ended()
        assert code == -signal.SIGKILL, f"{point} was not hit {count} times; exit code {code}: {running.text}"

    def _at_a_moment(self) -> None:
        """After a random part of the input, or, one time in three, a random time after the start."""
        running = self.service.start(poll=BATCH)
        if self.random.random() < 1 / 3:
            running.ends_within(self.random.uniform(0.0, 0.8))
        else:
            before = self.service.committed()
            aim = before + self.random.randint(1, INPUT - BATCH)
            wait_until(lambda: self.service.committed() >= aim, f"{aim} records processed; {running.text}")
            running.ends_within(self.random.uniform(0.0, 0.02))
        assert running.process.exitcode is None, f"it ended by itself: {running.text}"
        running.kill()


def test_killed_at_every_point_and_any_moment(make: Making, make_twin: Callable[[Service], Service]) -> None:
    """P1, P2, P3, P4."""
    print(f"SAMOVAR_SEED={SEED}")  # noqa: T201 - the line that repeats a failure
    random_ = random.Random(SEED)
    service = make(world.RULES, world.STREAMS, snapshots={"every": "20ms", "keep": 2})
    loop = Loop(service, random_)
    loop.produce()
    service.run_to_end(poll=BATCH)  # so that there is something to restore from the first
    for number, kill in enumerate(kills(random_)):
        print(f"{number}: {kill}", flush=True)  # noqa: T201 - how far a long run is
        loop.strike(kill)
    loop.produce()
    service.run_to_end()  # in large batches: after the long form there is much to catch up on
    straight = make_twin(service)
    straight.run_to_end()
    assert service.digests() == straight.digests()
    told_before_the_end = {alert["id"] for alert in straight.alerts()}
    assert {alert["id"] for alert in service.alerts()} == told_before_the_end

    world.end(service)
    service.run_to_end()
    same_alerts(service, told_by_oracle(service, world.STREAM))
    dead = {(row.headers, row.value) for row in service.dead()}
    bad = [row for row in service.read(service.settings.streams[world.STREAM].topic) if row.value in world.BAD]
    assert len(service.dead()) == len(dead) == len(bad)
    service.wipe()
    service.run_to_end()
    assert len(service.alerts()) == len(told_by_oracle(service, world.STREAM).matches)
