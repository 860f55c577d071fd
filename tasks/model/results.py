"""What a processor gives for one commit, and what is counted on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from samovar.changelog.formats.dead_letters import truncate_to_limit
from samovar.changelog.log import Append, Headers, Pair, TopicPartition
from samovar.state.store import Change


@dataclass(kw_only=True)
class Counts:
    """What a task did since it began. Nothing is skipped without being counted."""

    events: int = 0
    dead: int = 0
    misplaced: int = 0  # of these, records that are not in the partition of their key
    late: int = 0
    matches: int = 0
    commits: int = 0
    rows: int = 0  # changed rows, as logged
    dropped: int = 0  # partial matches, events and matches that max_partials, max_events and max_matches let go of
    emitted: int = 0  # records, by tasks of the user's
    failed: int = 0  # calls of their code that raised; counted as dead too
    forwarded: int = 0  # events, to stages that are keyed otherwise
    unkeyed: int = 0  # events that were not: what they would be keyed by is null or missing
    missed: int = 0  # records of the source that nobody forwarded while the stage was not there
    skipped: int = 0  # alerts found, and records emitted, again after a rewind, and not written twice
    muted: int = 0  # matches of rules in shadow, or of versions that drain
    throttled: int = 0  # alerts that the storm guard kept back


def added(left: Counts, right: Counts) -> Counts:
    return Counts(**{name: getattr(left, name) + getattr(right, name) for name in Counts.__dataclass_fields__})


@dataclass
class DeadLetterBuffer:
    """Records for one topic with headers."""

    pairs: list[Pair] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)

    def put(self, pair: Pair, headers: Headers) -> None:
        pair, headers = truncate_to_limit(pair, headers)
        self.pairs.append(pair)
        self.headers.append(headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one commit writes: to the log in a transaction, and then to the store."""

    appends: Sequence[Append]
    offsets: dict[TopicPartition, int]
    changes: list[Change]
    counts: Counts
    forwarded_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SettledRecords:
    """Records of one input that an earlier stage judged: all before an offset, and some that it put aside."""

    before: int = 0
    offsets: frozenset[int] = frozenset()

    def has(self, offset: int) -> bool:
        return offset < self.before or offset in self.offsets


NOTHING_SETTLED = SettledRecords()
