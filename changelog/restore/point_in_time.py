"""A changelog as it was at some offset or time: what may be asked of it, and the image that answers.

Compaction keeps the newest record of a key only, but touches none that is younger than min.compaction.lag.ms. So an
image at an offset is exact where all records from there on are younger; otherwise it is refused (as-of-compacted).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from samovar.changelog.cursors import PartitionCursor
from samovar.changelog.formats.record import POSITION, ChangelogCheckpoint, Position, unpack_position
from samovar.changelog.log import Log, TopicPartition
from samovar.changelog.restore.restore import ChangelogPartition, Restore
from samovar.common.errors import Refused
from samovar.state.memory import MemoryStore
from samovar.state.store import TaskStore


def materialize_at(
    log: Log, changelog: ChangelogPartition, to: int, on_progress: Callable[[int], None] = lambda _: None
) -> MemoryStore:
    """The rows that a changelog stands for up to an offset."""
    store = MemoryStore()
    fill(store, log, changelog, to, on_progress)
    return store


def fill(
    store: TaskStore,
    log: Log,
    changelog: ChangelogPartition,
    to: int,
    on_progress: Callable[[int], None] = lambda _: None,
) -> None:
    """The same into any empty store: of a large state, one on disk."""
    with closing(Restore(store, log, changelog, min(changelog.bounds.begin, to), to=to)) as restore:
        while not restore.advance():
            on_progress(restore.records)


def is_exact(log: Log, changelog: ChangelogPartition, offset: int, lag_ms: int, now_ms: int) -> bool:
    """Whether compaction cannot have removed anything that counted at an offset."""
    if offset >= changelog.bounds.end:
        return True
    following = first_time(log, changelog.at, offset, changelog.bounds.end)
    return following is None or following > now_ms - lag_ms


def refuse_compacted(log: Log, changelog: ChangelogPartition, offset: int, lag_ms: int, now_ms: int) -> None:
    if not is_exact(log, changelog, offset, lag_ms, now_ms):
        raise Refused(
            "as-of-compacted",
            f"the changelog {changelog.at} may have been compacted behind offset {offset:,}: it is exact only for the"
            f" last {lag_ms / 3_600_000:g} h (its min.compaction.lag)",
            "Fold the input again instead: `samovar restore --from source --to-time T --out DIR`, with T in event"
            " time. With `archive` in the service file changelogs are kept as they were from now on.",
        )


def commit_before(log: Log, changelog: ChangelogPartition, offset: int) -> int:
    """The end of the last whole commit before an offset. The position row ends each of them."""
    begin = changelog.bounds.begin
    back = log.tunables.look_back_records
    while True:
        start = max(begin, offset - back)
        found = _last_position(log, changelog.at, start, offset)
        if found is not None:
            return found[0] + 1
        if start == begin:
            return begin
        back *= 10


def last_position(log: Log, changelog: ChangelogPartition) -> Position | None:
    """The newest position row of a changelog: what its image stands for."""
    end = commit_before(log, changelog, changelog.bounds.end)
    found = _last_position(log, changelog.at, max(end - 1, changelog.bounds.begin), changelog.bounds.end)
    return None if found is None or found[1] is None else unpack_position(found[1])


def follows_replaced(checkpoint: ChangelogCheckpoint, log: Log, changelog: ChangelogPartition) -> bool:
    """Whether a store follows a changelog that a repartition has put this one in the place of."""
    if checkpoint.topic_id == changelog.topic.id:
        return False
    position = last_position(log, changelog)
    return (
        position is not None
        and position.repartitioned is not None
        and position.changelog == changelog.topic.id
        and checkpoint.topic_id in position.repartitioned.changelogs
    )


def _last_position(log: Log, at: TopicPartition, start: int, end: int) -> tuple[int, bytes | None] | None:
    found = None
    for records in PartitionCursor(log, at, start).read_to(end):
        rows = [(row, value) for row, (key, value) in enumerate(records.pairs()) if key == POSITION]
        found = (int(records.offsets[rows[-1][0]]), rows[-1][1]) if rows else found
    return found


def first_time(log: Log, at: TopicPartition, start: int, end: int) -> int | None:
    """Log time of the first record of an offset range; None where there is none."""
    with closing(PartitionCursor(log, at, start, available=True)) as cursor:
        records = cursor.next_records(end)
    return None if records is None else int(records.times[0])
