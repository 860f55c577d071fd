"""A service that is killed again and again while input comes in, and what must hold after that."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from samovar.changelog.log import Pair
from samovar.common.errors import LogUnavailable
from samovar.common.failpoints import POINTS
from tests.faults import child, world
from tests.faults.comparing import same_alerts, told_by_oracle
from tests.faults.ending import left_nothing, processed
from tests.faults.harness import Service, wait_until
from tests.support.kafka_cluster import NODES, Cluster

BATCH = 12  # records of a poll, so that a little input is many commits
INPUT = 90  # records before each start
SNAPSHOTS = {"every": "20ms", "keep": 2}
Before = Literal["kept", "store lost", "all lost"]
LOST: tuple[Before, ...] = ("store lost", "all lost")


@dataclass(frozen=True)
class Kill:
    """One end of the process: at a named point, or, without one, at a random moment; or one of a broker under it."""

    point: str | None
    before: Before
    of_broker: bool = False


def kills_of_round(random_: random.Random, count: int, *, brokers: bool = False) -> list[Kill]:
    """Every named point once, and as many random moments as are left; of those half are brokers', where these may be
    killed.

    >>> sorted({kill.point or "" for kill in kills_of_round(random.Random(1), 25)}) == sorted(("", *POINTS))
    True
    """
    at_points = random_.sample(POINTS, min(count, len(POINTS)))
    left = count - len(at_points)
    of_brokers = left // 2 if brokers else 0
    found = [Kill(point, _drawn(random_)) for point in at_points]
    found += [Kill(None, _drawn(random_), of_broker=number < of_brokers) for number in range(left)]
    random_.shuffle(found)
    return found


def _drawn(random_: random.Random) -> Before:
    return random_.choice(("kept", "kept", *LOST))


class KillLoop:
    """The source of truth for what a service goes through. Records of a poll are drawn, or always as many."""

    def __init__(
        self, service: Service, random_: random.Random, cluster: Cluster | None = None, *, draws_poll: bool = False
    ) -> None:
        self.service, self.random, self.cluster = service, random_, cluster
        self._draws_poll = draws_poll
        self._source: Iterator[Pair] = world.events(random_.randrange(1 << 30))

    def strike(self, kill: Kill) -> None:
        self.produce()
        if kill.before != "kept":
            self.service.wipe(snapshots=kill.before == "all lost")
        if kill.of_broker:
            self._of_a_broker()
        elif kill.point is None:
            self._at_a_moment()
        else:
            self._at_a_point(kill)

    def produce(self) -> None:
        """What the log does not take, as while it looks for new leaders, is written again; some of it then twice."""
        pairs = world.take(self._source, INPUT)

        def is_written() -> bool:
            with suppress(LogUnavailable):
                self.service.append_pairs(world.STREAM, pairs)
                return True
            return False

        wait_until(is_written, "the log takes input")

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
        running = self._start(kill=f"{point}:{count}")
        code = running.ended()
        assert code == -signal.SIGKILL, f"{point} was not hit {count} times; exit code {code}: {running.text}"

    def _at_a_moment(self) -> None:
        """After a random part of the input, or, one time in three, a random time after the start."""
        running = self._start()
        if self.random.random() < 1 / 3:
            running.ends_within(self.random.uniform(0.0, 0.8))
        else:
            self._until_in_the_middle(running)
            running.ends_within(self.random.uniform(0.0, 0.02))
        self._kill(running)

    def _of_a_broker(self) -> None:
        """Under load; the container goes on with the others, or is killed too and comes back without the broker."""
        assert self.cluster is not None
        running = self._start()
        self._until_in_the_middle(running)
        node = self.random.choice(NODES)
        self.cluster.kill(node)
        if self.random.random() < 1 / 2:
            self._kill(running)
            running = self._start()
        wait_until(lambda: self._is_processed(running), f"all is processed without broker {node}")
        self.cluster.start([node])
        self._kill(running)

    def _is_processed(self, running: child.Running) -> bool:
        assert running.process.exitcode is None, f"it ended by itself: {running.text}"
        return processed(self.service)

    def _until_in_the_middle(self, running: child.Running) -> None:
        aim = self._committed() + self.random.randint(1, INPUT - BATCH)
        wait_until(lambda: self._committed() >= aim, f"{aim} records processed; {running.text}")

    def _committed(self) -> int:
        """Asked for again where the log does not say."""
        found: list[int] = []

        def is_told() -> bool:
            with suppress(LogUnavailable):
                found.append(self.service.committed())
            return bool(found)

        wait_until(is_told, "the log says what is committed")
        return found[0]

    def _start(self, kill: str = "") -> child.Running:
        return self.service.start(kill=kill, poll=self.random.randint(1, BATCH) if self._draws_poll else BATCH)

    def _kill(self, running: child.Running) -> None:
        assert running.process.exitcode is None, f"it ended by itself: {running.text}"
        running.kill()


def strike_all(loop: KillLoop, kills: Sequence[Kill], make_twin: Callable[[Service], Service]) -> None:
    """Kill it so, one after the other, and see that it ends right."""
    loop.produce()
    loop.service.run_to_end(poll=BATCH)  # so that there is something to restore from the first
    for number, kill in enumerate(kills):
        print(f"{number}: {kill}", flush=True)  # noqa: T201 - how far a long run is
        loop.strike(kill)
    loop.produce()
    loop.service.run_to_end(poll=BATCH)  # drawn polls may be tiny, and after many kills there is much to catch up on
    ends_right_after_kills(loop.service, make_twin)


def ends_right_after_kills(service: Service, make_twin: Callable[[Service], Service]) -> None:
    """P1, P2, P3, P4, P5: as the oracle has it, as a straight run, also after all was lost, with nothing left open."""
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
    left_nothing(service)
