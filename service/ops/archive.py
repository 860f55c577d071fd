"""How far a service's archive is behind its log, and how long until retention takes what is not copied yet."""

from __future__ import annotations

from dataclasses import dataclass

from samovar.changelog.archive.archive import Archive
from samovar.changelog.archive.archived_log import is_compacted
from samovar.changelog.archive.copy import CopySource, position_of, stable_ends
from samovar.changelog.log import Bounds, Log, Topic
from samovar.changelog.restore.point_in_time import first_time
from samovar.service.config.models import ServiceFile
from samovar.service.topology.archives import needed_archive, roles_of, sources_of

NEAR = 4  # a follower copies what is older than a fourth of its topic's retention; what is older than half is late


@dataclass(frozen=True, kw_only=True)
class ArchivedPartition:
    """How far one partition is. Times are in ms; None where they are not known or there is no such time."""

    topic: str
    partition: int
    role: str
    first: int  # offset with which the archive begins
    next: int  # the first that it does not have
    end: int  # of what could be copied
    lag: int
    files: int
    age_ms: int | None  # of the oldest record that is not copied
    left_ms: int | None  # until retention takes it
    lost: tuple[int, int] | None  # offsets that neither log nor archive has

    @property
    def is_late(self) -> bool:
        return self.left_ms is not None and self.age_ms is not None and self.left_ms < self.age_ms


def retention_of(topic: Topic) -> int | None:
    """After how many ms records of a topic go; None: they stay."""
    retention_ms = int(topic.settings.get("retention.ms", -1))
    return None if is_compacted(topic) or retention_ms < 0 else retention_ms


def archive_status(settings: ServiceFile, log: Log, now_ms: int) -> list[ArchivedPartition]:
    archive, sources, roles = needed_archive(settings), sources_of(settings, log), roles_of(settings, log)
    places = [source.at for source in sources]
    bounds, ends = log.bounds(places), stable_ends(log, places)
    return [
        _status(log, archive, source, bounds[source.at], ends[source.at], roles[source.topic.name], now_ms)
        for source in sources
    ]


def _status(
    log: Log, archive: Archive, source: CopySource, bounds: Bounds, end: int, role: str, now_ms: int
) -> ArchivedPartition:
    chain = archive.chain(source.topic, source.partition)
    where = position_of(chain, bounds, end)
    oldest_ms = first_time(log, source.at, where.next, end) if where.lag else None
    retention_ms = retention_of(source.topic)
    age_ms = None if oldest_ms is None else max(0, now_ms - oldest_ms)
    return ArchivedPartition(
        topic=source.topic.name,
        partition=source.partition,
        role=str(role),
        first=chain.spans[0].first if chain.spans else where.next,
        next=where.next,
        end=end,
        lag=where.lag,
        files=len(chain.spans),
        age_ms=age_ms,
        left_ms=None if age_ms is None or retention_ms is None else retention_ms - age_ms,
        lost=where.lost,
    )


def plural(count: int, noun: str) -> str:
    """
    >>> plural(1, "file"), plural(1200, "file")
    ('1 file', '1,200 files')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def duration(ms: int) -> str:
    """About how long, for people.

    >>> duration(90_000), duration(5 * 3_600_000), duration(3 * 86_400_000)
    ('90 s', '5 h', '3 d')
    """
    units = ((86_400_000, 2, "d"), (3_600_000, 2, "h"), (60_000, 2, "min"), (1000, 0, "s"))
    size, _, name = next(unit for unit in units if ms >= unit[0] * unit[1])
    return f"{ms // size:,} {name}"


def status_lines(found: list[ArchivedPartition]) -> list[str]:
    """For people: a line per partition, and what is wrong."""
    lines = []
    for each in found:
        lag = "all of it" if not each.lag else f"{each.lag:,} offsets behind"
        if each.age_ms is not None:
            lag += f", the oldest {duration(each.age_ms)} old"
        if each.left_ms is not None:
            lag += f", {duration(max(0, each.left_ms))} until retention takes it"
        files = plural(each.files, "file")
        lines.append(f"{each.topic}/{each.partition}: offsets {each.first:,} to {each.next:,} in {files}, {lag}")
        if each.lost is not None:
            lines.append(
                f"  lost: neither the log nor the archive has offsets {each.lost[0]:,} to {each.lost[1] - 1:,}"
            )
    return lines
