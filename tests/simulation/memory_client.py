"""One process as the simulated cluster sees it: its calls, what befalls them, and what it reads by positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType

from samovar.changelog.log import Records, TopicPartition
from samovar.common.errors import LogUnavailable, Refused
from tests.simulation.broker import Broker
from tests.simulation.faults import Fault, Faults, Killed
from tests.simulation.memory_records import MemoryRecords

SLOW_MS = 500


class Client:
    """A process that talks to the cluster, until it is killed."""

    def __init__(self, broker: Broker, faults: Faults | None = None, slow_ms: int = SLOW_MS) -> None:
        self.broker = broker
        self.faults = faults
        self.slow_ms = slow_ms
        self.is_dead = False
        self.heartbeats: list[Callable[[], None]] = []  # of its members, which go on while it waits for something else

    def kill(self) -> None:
        """The process is gone. What it had open stays open, and its group misses it when its session is over."""
        self.is_dead = True

    def killed(self, where: str) -> Killed:
        self.kill()
        return Killed(where)

    def call(self, name: str) -> Call:
        return Call(self, name)

    def wait(self, seconds: float) -> None:
        self.broker.wait(seconds)
        for heartbeat in self.heartbeats:
            heartbeat()


class Call:
    """One call of a client, around which a fault may happen."""

    __slots__ = ("_client", "_fault", "_name")

    def __init__(self, client: Client, name: str) -> None:
        self._client, self._name = client, name
        self._fault: Fault | None = None

    def __enter__(self) -> Fault | None:
        client = self._client
        if client.is_dead:
            raise Killed(self._name)
        if client.faults is not None:
            self._fault = client.faults(self._name)
            if self._fault is not None:
                self._begin(self._fault)
        client.broker.expire()
        return self._fault

    def _begin(self, fault: Fault) -> None:
        if fault is Fault.CRASH_BEFORE:
            raise self._client.killed(self._name)
        if fault is Fault.TIMEOUT_BEFORE:
            raise LogUnavailable(f"{self._name}: no answer")
        if fault is Fault.SLOW:
            self._client.broker.clock.pass_ms(self._client.slow_ms)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None or self._fault is None:
            return
        if self._fault in (Fault.CRASH_AFTER, Fault.CRASH_MIDDLE):
            raise self._client.killed(self._name)
        if self._fault is Fault.TIMEOUT_AFTER:
            raise LogUnavailable(f"{self._name}: no answer")


class Places:
    """Partitions that are read by positions: the source of truth for where each is read next."""

    __slots__ = ("_turn", "broker", "ended", "paused", "positions")

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.positions: dict[TopicPartition, int] = {}
        self.ended: set[TopicPartition] = set()  # given out to the end, at the last look
        self.paused: set[TopicPartition] = set()
        self._turn = 0

    def seek(self, at: TopicPartition, offset: int) -> None:
        self.positions[at] = offset
        self.ended.discard(at)

    def forget(self) -> None:
        self.positions.clear()
        self.ended.clear()
        self.paused.clear()

    def ends(self) -> list[tuple[TopicPartition, int]]:
        """Partitions that were read to their ends, and where those are; in the same order in every process."""
        return [(at, position) for at, position in self.positions.items() if at in self.ended]

    def position(self, at: TopicPartition) -> int:
        found = self.positions.get(at)
        if found is None:
            raise ValueError(f"{at} is not read here, or was never sought")
        return found

    def fetch(self, most: int) -> list[Records]:
        """What is there, of all partitions in turn. What is wrong with one of them is raised once it comes first."""
        found: list[Records] = []
        asked = [at for at in self.positions if at not in self.paused] if self.paused else list(self.positions)
        self._turn += 1
        turn = self._turn % len(asked) if asked else 0
        for at in asked[turn:] + asked[:turn]:
            if most <= 0:
                break
            try:
                records = self._fetch(at, most)
            except Refused:
                if found:
                    break
                raise
            if records is not None:
                found.append(records)
                most -= len(records)
        return found

    def _fetch(self, at: TopicPartition, most: int) -> Records | None:
        position, log = self.positions[at], self.broker.log(at)
        if not log.begin <= position <= log.end:
            raise _outside(at, position, log.begin, log.end)
        rows, checkpoint, is_all = log.fetch(position, most)
        (self.ended.add if is_all else self.ended.discard)(at)
        if not rows and checkpoint == position:
            return None
        self.positions[at] = checkpoint
        return MemoryRecords(at.topic, at.partition, rows, checkpoint)


def _outside(at: TopicPartition, position: int, begin: int, end: int) -> Refused:
    return Refused(
        "log-truncated",
        f"{at} does not hold offset {position}, which is to be read next",
        "Its records were deleted, or it is another topic under the same name; nothing was guessed.",
        f"it begins at {begin} and ends at {end}",
    )


class MemoryReader:
    """Reads committed records from given positions."""

    def __init__(self, client: Client, positions: Mapping[TopicPartition, int]) -> None:
        self._client = client
        self._places = Places(client.broker)
        for at, offset in positions.items():
            self._places.seek(at, offset)

    def poll(self, max_records: int, timeout_s: float) -> list[Records]:
        with self._client.call("read") as fault:
            found = [] if fault is Fault.NOTHING else self._places.fetch(max_records)
        if not found and timeout_s > 0:
            self._client.wait(timeout_s)
        return found

    def position(self, at: TopicPartition) -> int:
        return self._places.position(at)

    def seek(self, at: TopicPartition, offset: int) -> None:
        self._places.seek(at, offset)

    def close(self) -> None:
        """Nothing to free."""
