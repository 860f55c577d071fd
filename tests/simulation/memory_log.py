"""The log of the simulator: a client of `tests.simulation.broker.Broker`, as samovar.changelog.log.Log says.

    broker = Broker(clock)
    log = MemoryLog(broker, tunables, faults)     one per process
    log.kill()                                    the process dies where it stands

Nothing waits: a poll gives what is there. Who reads on and on without a group (`Reader.poll`) lets the clock run by the
time it would have waited for, so that a loop around it comes to an end; a member does not, for its container's cycles
are the scheduler's own steps. What would have to wait for somebody else is LogUnavailable.

A fault may befall every call: see `Fault`. After Killed the client is dead: all that it is asked raises Killed, so that
no clean-up on the way out reaches the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from samovar.changelog.log import (
    Append,
    Bounds,
    GroupConfig,
    Member,
    Reader,
    Topic,
    TopicPartition,
    TopicSpec,
)
from samovar.common.errors import Refused
from samovar.common.tunables import DEFAULTS, Tunables
from tests.simulation.broker import Broker
from tests.simulation.faults import Fault, Faults
from tests.simulation.memory_client import SLOW_MS, Client, MemoryReader
from tests.simulation.memory_member import MemoryMember


class MemoryLog(Client):
    """One process's view of the cluster."""

    def __init__(
        self, broker: Broker, tunables: Tunables = DEFAULTS, faults: Faults | None = None, slow_ms: int = SLOW_MS
    ) -> None:
        super().__init__(broker, faults, slow_ms)
        self.tunables = tunables

    # ------------------------------------------------------------ topics

    def topics(self, names: Collection[str]) -> Mapping[str, Topic]:
        with self.call("topics"):
            found = self.broker.topics
            return {name: found[name].topic for name in names if name in found}

    def create(self, specs: Sequence[TopicSpec]) -> None:
        with self.call("create"):
            for spec in specs:
                self.broker.create(spec)

    def delete(self, names: Collection[str]) -> None:
        with self.call("delete"):
            for name in names:
                self.broker.delete(name)

    def bounds(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        with self.call("bounds"):
            return {at: self.broker.bounds(at) for at in partitions}

    def stable_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        with self.call("bounds"):
            return {at: self.broker.log(at).stable_end for at in partitions}

    def offset_at(self, at: TopicPartition, time_ms: int) -> int:
        with self.call("offset_at"):
            return self.broker.offset_at(at, time_ms)

    # ------------------------------------------------------------ groups

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int | None]:
        with self.call("committed"):
            return self.broker.committed(group, partitions)

    def set_committed(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        with self.call("set_committed"):
            found = self.broker.group(group)
            if found.members:
                raise Refused(
                    "group-active",
                    f"group {group} has members: {', '.join(sorted(found.members))}",
                    "Stop its containers first: they would go on from where they are.",
                )
            self.broker.commit_offsets(found, offsets)

    def members(self, group: str) -> Sequence[str]:
        with self.call("members"):
            found = self.broker.groups.get(group)
            return [] if found is None else sorted(found.members)

    def join(self, joining: GroupConfig) -> Member:
        with self.call("join"):
            return MemoryMember(self, joining)

    # ------------------------------------------------------------ records

    def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        return MemoryReader(self, positions)

    def point_reader(self, positions: Mapping[TopicPartition, int], records: int) -> Reader:
        return MemoryReader(self, positions)

    def tail(self, positions: Mapping[TopicPartition, int]) -> Reader:
        return MemoryReader(self, positions)

    def append(self, appends: Sequence[Append]) -> int:
        with self.call("append") as fault:
            some = len(appends) // 2 if fault is Fault.CRASH_MIDDLE else len(appends)
            for append in appends[:some]:
                self.broker.write(append, None)
            return sum(len(append.records) for append in appends)

    def close(self) -> None:
        """Nothing is left of it that could be closed."""
