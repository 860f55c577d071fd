"""The archive that a service file names: which topics are copied, and the log that goes on into it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from samovar.changelog.archive.archive import Archive
from samovar.changelog.archive.archived_log import archived_log, history_log
from samovar.changelog.archive.copy import CopySource, EventTimes
from samovar.changelog.archive.file import NO_EVENT
from samovar.changelog.archive.folder import open_folder
from samovar.changelog.batches import RecordBlock
from samovar.changelog.log import Int64s, Log
from samovar.changelog.spark.connector_log import SparkFeed, fed_log
from samovar.common.arrow import require_arrow
from samovar.common.errors import LogUnavailable, Refused
from samovar.service.config.models import ServiceFile, Stream
from samovar.service.topology.encoding import decoding_of
from samovar.service.topology.logs import opened
from samovar.service.topology.topics import TopicRole, counted_topics, partitions_of, plan_here

# What a replay needs, and the alerts that a backtest compares with.
ARCHIVED = (TopicRole.INPUT, TopicRole.REPARTITION, TopicRole.JOURNAL, TopicRole.CHANGELOG, TopicRole.ALERTS)


def archive_of(settings: ServiceFile) -> Archive | None:
    """The service's archive, if it has one."""
    if settings.archive is None:
        return None
    require_arrow("archives")
    return Archive(open_folder(settings.archive.to, settings.archive.options()), settings.service)


def needed_archive(settings: ServiceFile) -> Archive:
    archive = archive_of(settings)
    if archive is None:
        what = f"the service {settings.service} has no archive"
        raise Refused("no-archive", what, "Write `archive: FOLDER` or `archive: s3://BUCKET/PREFIX` in its file.")
    return archive


def with_archive(settings: ServiceFile, log: Log, *, prefers_archive: bool = False) -> Log:
    """The log for one who reads the past: it goes on into the archive, where there is one."""
    archive = archive_of(settings)
    return log if archive is None else archived_log(log, archive, prefers_archive=prefers_archive)


def history_of(settings: ServiceFile, log: Log) -> tuple[Archive, Log] | None:
    """The archive and a log that has what the archive saw of compacted topics; None where there is no archive."""
    archive = archive_of(settings)
    return None if archive is None else (archive, history_log(log, archive))


@contextmanager
def opened_with_archive(
    settings: ServiceFile, *, prefers_archive: bool = False, feed: SparkFeed | None = None
) -> Iterator[Log]:
    """The log as `with_archive` has it, closed at the end; on an executor with what Spark's connector brings of it."""
    with opened(settings) as own:
        log = own if feed is None else fed_log(own, feed)
        yield with_archive(settings, log, prefers_archive=prefers_archive)


def sources_of(settings: ServiceFile, log: Log) -> list[CopySource]:
    """All partitions that are copied, of topics that exist."""
    archive = settings.archive
    assert archive is not None
    off = {stream.topic for stream in settings.streams.values() if not stream.archive}
    plans = [each for each in plan_here(log, settings) if each.role in ARCHIVED and each.name not in off]
    plans = [each for each in plans if archive.changelog or each.role is not TopicRole.CHANGELOG]
    topics = log.topics([each.name for each in plans])
    partitions = partitions_of(settings, log.topics(counted_topics(settings)))
    times = {stream.topic: (event_times(name, stream), stream.time) for name, stream in settings.streams.items()}
    found = []
    for each in plans:
        if (topic := topics.get(each.name)) is not None:
            own, field = times.get(each.name, (None, ""))
            found += [
                CopySource(topic=topic, partition=number, event_times=own, field=field)
                for number in range(min(partitions, topic.partitions))
            ]
    return found


def roles_of(settings: ServiceFile, log: Log) -> Mapping[str, TopicRole]:
    return {each.name: each.role for each in plan_here(log, settings)}


def event_times(name: str, stream: Stream) -> EventTimes:
    """What a stream's records say of their times. The copy does not depend on it: who has no schema knows none."""
    decoder: Any = None

    def found(records: RecordBlock) -> Int64s:
        nonlocal decoder
        times = np.full(len(records), NO_EVENT)
        try:
            decoder = decoder or decoding_of(stream)([], stream.time, stream.type, name)
            batch = decoder.batch()
            verdicts = decoder.decode(batch, records.values)
        except (LogUnavailable, Refused):  # a schema registry that does not answer
            return times
        times[np.flatnonzero(verdicts["code"] == 0)] = batch.time
        return times

    return found
