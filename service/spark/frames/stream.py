"""What `spark.readStream.format("samovar")` reads: the same rows as a frame, batch after batch.

Spark keeps in its checkpoint how far each batch goes, by partition of each topic, and asks again for exactly those
offsets where a batch has to be repeated:

    {"v": 1, "topics": {"s-alerts": {"id": TOPIC ID, "offsets": {"0": 12, "1": 7}}}}

A topic that was made again has another id, and is refused. A batch ends at the last stable offset, before the first
transaction that is still open: what that brings comes with a later batch. Partitions and topics that are not in the
offsets yet are read from their beginning.

Spark 4.0 does not tell a source in Python where a batch begins, nor how it is triggered, when it asks for the newest
offsets. Where the last batch ended is known from the parts that were asked for, after a restart too: Spark asks for
those of an empty batch then. `Trigger.AvailableNow` is one batch, of all that is there or of as many as the limit says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from samovar.changelog.log import Bounds, Log, Topic, TopicPartition
from samovar.changelog.spark.records import Stable
from samovar.changelog.spark.source import Frame, Places
from samovar.common.errors import Refused
from samovar.service.config.loading import load_service
from samovar.service.config.models import ServiceFile
from samovar.service.spark.frames.frame import FrameOptions, FrameRange, frame_in, offset_in, parse_options
from samovar.service.spark.session import refuse_remote_executors
from samovar.service.topology.logs import kafka_of, open_log, opened
from samovar.service.topology.stores import site_of

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1


@dataclass(frozen=True)
class StreamOffsets:
    """How far a stream is read, and in which topics."""

    ids: Mapping[str, str]
    offsets: Mapping[TopicPartition, int]

    def to_places(self) -> Places:
        """In one order, always: Spark compares their text."""
        topics = {
            topic: {
                "id": self.ids[topic],
                "offsets": {str(at.partition): self.offsets[at] for at in sorted(self.offsets) if at.topic == topic},
            }
            for topic in sorted(self.ids)
        }
        return {"v": FORMAT, "topics": topics}

    @staticmethod
    def of(places: Places) -> StreamOffsets:
        if places.get("v") != FORMAT:
            raise Refused(
                "format-newer",
                "the checkpoint of the query was written by another version of samovar",
                "Use that version, or begin with another checkpointLocation.",
            )
        topics = places["topics"].items()
        offsets = {
            TopicPartition(topic, int(number)): offset
            for topic, each in topics
            for number, offset in each["offsets"].items()
        }
        return StreamOffsets({topic: each["id"] for topic, each in topics}, offsets)


def stream_of(options: Mapping[str, str], folder: str = ".", is_local: bool = True) -> ServiceStream:
    """Opens a stream; nothing is read yet. Its columns are those of this moment."""
    asked = parse_options(options)
    asked = replace(asked, config=(Path(folder) / asked.config).absolute(), feed=uuid4().hex)
    if asked.end is not None:
        raise Refused("frame-option", "`to` is for frames: a stream has no end", "Use `Trigger.AvailableNow`.")
    if asked.source == "changelog" and asked.mode != "changes":
        hint = 'Add `.option("mode", "changes")`, and keep the last row of each key.'
        raise Refused("frame-option", "a stream of the changelog is one of its changes", hint)
    settings = load_service(asked.config)
    refuse_remote_executors(settings, is_local=is_local)
    with opened(settings) as log:
        site = site_of(settings, log)
        frame: Any = frame_in(site, asked)
        topics = {frame.topic: ""} if asked.source != "changelog" else {
            here.plan.topics.changelog: here.stage for here in site.stages(asked.stage)
        }  # fmt: skip
    return ServiceStream(frame=replace(frame, parts=()), settings=settings, options=asked, topics=topics)


@dataclass(kw_only=True)
class ServiceStream:
    """A frame that is read on and on. The source of truth for which offsets were asked for."""

    frame: Frame
    settings: ServiceFile
    options: FrameOptions
    topics: Mapping[str, str]  # and the stage that each is of
    _log: Log | None = None  # open in the driver's process only
    _initial: StreamOffsets | None = None
    _planned: StreamOffsets | None = None
    _ids: Mapping[str, str] = field(default_factory=dict)  # of the topics, at the last look

    def initial_offset(self) -> Places:
        return self._begin().to_places()

    def latest_offset(self) -> Places:
        begun = self._planned or self._begin()
        now = self._now(begun)
        wanted = {at: max(begun.offsets.get(at, 0), bounds.end) for at, bounds in now.items()}
        if self.options.max_records is not None:
            more = {at: end - begun.offsets.get(at, 0) for at, end in wanted.items()}
            given = shares(more, self.options.max_records)
            wanted = {at: wanted[at] - more[at] + given[at] for at in wanted}
        return StreamOffsets(self._ids, wanted).to_places()

    def parts(self, start: Places, end: Places) -> list[FrameRange]:
        """What a batch reads, cut for several tasks. The same for the same offsets, at any time."""
        begun, ended = StreamOffsets.of(start), StreamOffsets.of(end)
        now = self._now(replace(begun, ids={**ended.ids, **begun.ids}))
        self._planned = ended
        found: list[FrameRange] = []
        for at, stop in ended.offsets.items():
            first = begun.offsets.get(at, 0)
            if first >= stop:
                continue
            if at in now and now[at].begin > first and self.options.fails_on_loss:
                raise Refused(
                    "log-truncated",
                    f"{at} begins at offset {now[at].begin:,}, and the stream was to go on at {first:,}: records are"
                    " gone that it never read",
                    'To go on with what is there, and without those, add `.option("failOnDataLoss", "false")`.',
                )
            part = FrameRange(
                topic=at.topic, partition=at.partition, start=first, end=stop, stage=self.topics.get(at.topic, ""),
                may_skip=not self.options.fails_on_loss,
            )  # fmt: skip
            found += [part] if self.options.source == "changelog" else part.split()
        return found

    def commit(self, end: Places) -> None:
        """Nothing waits for it: Spark's checkpoint has all that a restart needs."""

    def read(self, part: FrameRange) -> Iterator[pa.RecordBatch]:
        return self.frame.read(part)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _begin(self) -> StreamOffsets:
        if self._initial is None:
            now = self._now(StreamOffsets({}, {}))
            place = self.options.start or "begin"
            offsets = {at: offset_in(self._opened, at, bounds, place) for at, bounds in now.items()}
            self._initial = StreamOffsets(self._ids, offsets)
        return self._initial

    @property
    def _opened(self) -> Log:
        if self._log is None:
            self._log = open_log(self.settings)
        return self._log

    def _now(self, begun: StreamOffsets) -> dict[TopicPartition, Bounds]:
        """Where partitions begin and how far they are decided; topics that are not those of the offsets are refused."""
        log, topics = self._opened, self._opened.topics(list(self.topics))
        for name, known in begun.ids.items():
            refuse_replaced(name, known, topics.get(name))
        self._ids = {name: topic.id for name, topic in topics.items()}
        chosen = [
            TopicPartition(name, number)
            for name, topic in topics.items()
            for number in range(topic.partitions)
            if not self.options.partitions or number in self.options.partitions
        ]
        bounds = log.bounds(chosen)
        if kafka_of(self.settings) is None:
            return dict(bounds)
        stable = cast(Stable, log).stable_ends(chosen)
        return {at: Bounds(bounds[at].begin, stable[at]) for at in chosen}


def refuse_replaced(name: str, known: str, topic: Topic | None) -> None:
    if topic is None or topic.id != known:
        what = "was deleted" if topic is None else "was deleted and made again"
        raise Refused(
            "topic-recreated",
            f"the topic {name} {what} since the stream began: its offsets are those of the old one",
            "Begin the query with another checkpointLocation.",
            f"topic id {'none' if topic is None else topic.id}, the stream began in {known}",
        )


def shares(more: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """How many of each partition's records fit into a batch, by how many each has. A small one is never left out.

    >>> list(shares({TopicPartition("t", 0): 90, TopicPartition("t", 1): 9, TopicPartition("t", 2): 1}, 10).values())
    [9, 0, 1]
    """
    total = sum(more.values())
    if total <= limit:
        return dict(more)
    given = {at: count * limit // total for at, count in more.items()}
    left = limit - sum(given.values())
    for at in sorted(more, key=lambda each: more[each]):
        added = min(left, more[at] - given[at])
        given[at], left = given[at] + added, left - added
    return given
