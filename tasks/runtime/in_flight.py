"""What a container's main stage has forwarded and its own later stages have not taken yet.

A stage that gets far more than it has room for cannot put it back: in a repartition topic, events of source partitions
that are ahead stand before those that it waits for. So the ones who read the sources wait in time, while it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from samovar.changelog.log import TopicPartition


@dataclass
class InFlight:
    """The source of truth for how much of it there is, since all of it was last taken."""

    bytes: int = 0
    _ends: dict[TopicPartition, int] = field(default_factory=dict)  # of repartition topics: the last record written

    def sent(self, count: int, ends: Mapping[TopicPartition, int]) -> None:
        """So many bytes were forwarded by a commit, which ended partitions so. Marks are written to every one."""
        if count:
            self.bytes += count
            self._ends.update(ends)

    def is_taken(self, positions: Mapping[TopicPartition, int | None]) -> bool:
        """Whether the stages here stand behind all of it. `positions` are those of their inputs, None where a stage
        still restores; what nobody reads here is none of this container's business.
        """
        if all(at not in positions or (positions[at] or 0) > end for at, end in self._ends.items()):
            self.clear()
        return not self.bytes

    def clear(self) -> None:
        self.bytes = 0
        self._ends.clear()
