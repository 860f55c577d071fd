"""The log as a Kafka cluster keeps it, through confluent-kafka.

Settings are librdkafka's own, passed through (SASL, SSL and the rest); secrets among them are never shown. Every
question has a deadline: what Kafka does not answer by then is LogUnavailable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as KafkaPlace
from confluent_kafka import admin as admin_module

from samovar.changelog.errors import Fenced, LogUnavailable, Refused
from samovar.changelog.kafka_errors import MISSING, PASSING, STALE, error_of, failure_of
from samovar.changelog.kafka_glances import Glances
from samovar.changelog.kafka_member import KafkaMember, places_at
from samovar.changelog.kafka_read import NOBODY, KafkaReader, places_of
from samovar.changelog.kafka_settings import Settings
from samovar.changelog.kafka_write import Writer
from samovar.changelog.log import Append, Bounds, Glance, Joining, Member, Reader, Topic, TopicPartition, TopicSpec

ASK_S = 30.0  # until a question must be answered; longer than a dead writer's transaction can be pending
VISIBLE_S = 30.0  # until a new topic must have its leaders, and a deleted one must be gone
TRY_S = 12.0  # for one try; the client's own time for a request is 10 s
AGAIN_S = 0.05
ANSWER_S = 5.0
# What checks of a topic look at.
CHECKED = frozenset(
    """cleanup.policy min.compaction.lag.ms max.compaction.lag.ms delete.retention.ms retention.ms retention.bytes
    max.message.bytes min.insync.replicas message.timestamp.type segment.ms""".split()
)
COORDINATORS = "__consumer_offsets"
NO_GROUP = frozenset({KafkaError.GROUP_ID_NOT_FOUND})

admin: Any = admin_module  # most of its names are not exported as far as types go

Key = TypeVar("Key")
Answer = TypeVar("Answer")
Futures = Mapping[Key, "Future[Any]"]


class KafkaLog:
    """A Kafka cluster as a Log."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = Settings(dict(settings))
        try:
            self._admin = admin.AdminClient(self._settings.admin())
        except KafkaException as error:
            raise self._settings.refusal(error) from None
        self._appending: Writer | None = None
        self._glances = Glances(self._settings)

    def __repr__(self) -> str:
        return f"KafkaLog({self._settings!r})"

    # ---------------------------------------------------------------- topics

    def topics(self, names: Collection[str]) -> Mapping[str, Topic]:
        if not names:
            return {}
        asked = TopicCollection(list(names))
        found = self._ask("describing topics", lambda: self._admin.describe_topics(asked), without=MISSING)
        resources = [admin.ConfigResource(admin.ResourceType.TOPIC, name) for name in found]
        if not resources:
            return {}
        told = self._ask("describing topics", lambda: self._admin.describe_configs(resources), without=MISSING)
        settings = {resource.name: checked(entries) for resource, entries in told.items()}
        return {name: topic_of(found[name], settings[name]) for name in found if name in settings}

    def create(self, specs: Sequence[TopicSpec]) -> None:
        if not specs:
            return
        wanted = [admin.NewTopic(s.name, s.partitions, s.replication, config=dict(s.settings)) for s in specs]
        exists = frozenset({KafkaError.TOPIC_ALREADY_EXISTS})
        self._ask("creating topics", lambda: self._admin.create_topics(wanted), without=exists)
        names = {spec.name for spec in specs}
        self._wait(lambda: self._led(names), f"topics {', '.join(sorted(names))} have no leaders")

    def delete(self, names: Collection[str]) -> None:
        if not names:
            return
        self._ask("deleting topics", lambda: self._admin.delete_topics(list(names)), without=MISSING)
        self._wait(lambda: not self.topics(names), f"topics {', '.join(sorted(names))} are still there")

    def _led(self, names: Collection[str]) -> bool:
        asked = TopicCollection(list(names))
        found = self._ask("describing topics", lambda: self._admin.describe_topics(asked), without=MISSING)
        return all(name in found and all(part.leader for part in found[name].partitions) for name in names)

    # ---------------------------------------------------------------- offsets

    def bounds(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Bounds]:
        begins = self._offsets(partitions, admin.OffsetSpec.earliest())
        ends = self._offsets(partitions, admin.OffsetSpec.latest())
        return {at: Bounds(begins[at], ends[at]) for at in partitions}

    def offset_at(self, at: TopicPartition, time_ms: int) -> int:
        found = self._offsets([at], admin.OffsetSpec.for_timestamp(time_ms))[at]
        return found if found >= 0 else self._offsets([at], admin.OffsetSpec.latest())[at]

    def stable_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Up to where nothing is undecided: the ends, or where the first open transaction begins. No capability of a
        Log: only what lets others read, as Spark's connector does, has to ask for it.
        """
        return self._offsets(partitions, admin.OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)

    def _offsets(
        self,
        partitions: Collection[TopicPartition],
        spec: Any,
        level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, int]:
        """Of all records, also of those in open transactions: the latest is the high watermark."""
        if not partitions:
            return {}
        asked = dict.fromkeys(places_of(partitions), spec)
        try:
            told = self._ask("asking for offsets", lambda: self._admin.list_offsets(asked, isolation_level=level))
        except LogUnavailable:
            self._refuse_missing({at.topic for at in partitions})
            raise
        return {TopicPartition(place.topic, place.partition): info.offset for place, info in told.items()}

    def _refuse_missing(self, names: Collection[str]) -> None:
        """A topic that is not there looks, to one who asks for its offsets, as one without leaders."""
        missing = sorted(set(names) - self.topics(names).keys())
        if missing:
            raise failure_of(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, ", ".join(missing)), "asking", self._settings)

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int | None]:
        if not partitions:
            return {}
        asked = places_of(partitions)
        with self._standing_by(group) as consumer:
            places = self._patiently(
                f"asking for offsets of group {group}", lambda: refuse_errors(consumer.committed(asked, ASK_S))
            )
        found = {TopicPartition(place.topic, place.partition): place.offset for place in places}
        return {at: found[at] if found[at] >= 0 else None for at in partitions}

    def set_committed(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        members = self.members(group)
        if members:
            raise active(group, members)
        if not offsets:
            return
        asked = places_at(offsets)
        with self._standing_by(group) as consumer:
            try:
                self._patiently(
                    f"setting offsets of group {group}",
                    lambda: refuse_errors(consumer.commit(offsets=asked, asynchronous=False) or ()),
                )
            except Fenced:  # somebody joined just now
                raise active(group, self.members(group)) from None

    @contextmanager
    def _standing_by(self, group: str) -> Iterator[Consumer]:
        """A consumer that knows the group and is no member of it.

        The admin client could ask the same, but librdkafka 2.16 crashes there when a coordinator has moved.
        """
        try:
            consumer = Consumer(self._settings.consumer(group, {}))
        except KafkaException as error:
            raise self._settings.refusal(error) from None
        try:
            yield consumer
        finally:
            consumer.close()

    def members(self, group: str) -> Sequence[str]:
        doing = f"describing group {group}"
        if not self._had_groups(doing):
            return []
        told = self._ask(doing, lambda: self._admin.describe_consumer_groups([group]), without=NO_GROUP)
        found = told[group].members if group in told else ()
        return sorted(member.group_instance_id or member.client_id for member in found)

    def _had_groups(self, doing: str) -> bool:
        """Whether there was ever a group. Where none was, the question after one would make the coordinator's topic,
        and the client would then forget it until its time is over.
        """
        asked = TopicCollection([COORDINATORS])
        try:
            return bool(self._ask(doing, lambda: self._admin.describe_topics(asked), without=MISSING))
        except Refused:  # we may not look
            return True

    # ---------------------------------------------------------------- records

    def reader(self, positions: Mapping[TopicPartition, int]) -> Reader:
        return KafkaReader(self._settings, positions)

    def glance(self, positions: Mapping[TopicPartition, int], records: int) -> Glance:
        return self._glances.reader(positions, records)

    def tail(self, positions: Mapping[TopicPartition, int]) -> Reader:
        return KafkaReader(self._settings, positions, self._settings.tailer(NOBODY))

    def append(self, appends: Sequence[Append]) -> int:
        if self._appending is None:
            self._appending = Writer(self._settings, {}, reports_all=True)
        self._appending.begin()
        try:
            for append in appends:
                self._appending.put(append)
            self._appending.flush()
        except BaseException as error:
            self._end_appending()  # with it goes what is still in the queue: nothing may be written later
            if isinstance(error, KafkaException):
                raise failure_of(error_of(error), "appending", self._settings) from None
            raise
        return sum(len(append.records) for append in appends)

    def join(self, joining: Joining) -> Member:
        return KafkaMember(self._settings, joining)

    def close(self) -> None:
        self._glances.close()
        self._end_appending()

    def _end_appending(self) -> None:
        if self._appending is not None:
            self._appending.close()
            self._appending = None

    # ---------------------------------------------------------------- asking

    def _ask(
        self, doing: str, ask: Callable[[], Futures[Key]], without: Collection[int] = frozenset()
    ) -> dict[Key, Any]:
        """The answers, without those that failed with one of these codes."""
        return self._patiently(doing, lambda: answers(ask(), without))

    def _patiently(self, doing: str, ask: Callable[[], Answer]) -> Answer:
        """An answer, or what Kafka says. What passes by itself, such as a pending transaction, is asked again."""
        deadline = time.monotonic() + ASK_S
        while True:
            try:
                return ask()
            except KafkaException as error:
                told = error_of(error)
                if told.code() not in PASSING or time.monotonic() > deadline:
                    raise failure_of(told, doing, self._settings) from None
                self._look_again(told)
            except FutureTimeout:  # the client lost it: it answers within its own time, or never
                if time.monotonic() > deadline:
                    raise LogUnavailable(f"{doing}: no answer within {ASK_S:.0f} s") from None
            time.sleep(AGAIN_S)

    def _look_again(self, error: KafkaError) -> None:
        """After a broker's restart the client asks with what it knew of leaders before, until it is told to look."""
        if error.code() in STALE:
            with suppress(KafkaException):
                self._admin.list_topics(timeout=ANSWER_S)

    def _wait(self, holds: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + VISIBLE_S
        while not holds():
            if time.monotonic() > deadline:
                raise LogUnavailable(f"{otherwise} after {VISIBLE_S:.0f} s")
            time.sleep(AGAIN_S)


def answers(futures: Futures[Key], without: Collection[int]) -> dict[Key, Any]:
    found = {}
    for key, future in futures.items():
        try:
            found[key] = future.result(TRY_S)
        except KafkaException as error:
            if error_of(error).code() not in without:
                raise
    return found


def refuse_errors(places: Sequence[KafkaPlace]) -> Sequence[KafkaPlace]:
    """An answer may hold an error for one partition: that is no offset, and never "none was committed"."""
    for place in places:
        if place.error is not None:
            raise KafkaException(place.error)
    return places


def active(group: str, members: Sequence[str]) -> Refused:
    hint = "Stop its containers first; one that was killed counts until its session is over, a few seconds later."
    return Refused("group-active", f"group {group} has members: {', '.join(members) or 'just joining'}", hint)


def checked(entries: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(entry.value) for name, entry in entries.items() if name in CHECKED and entry.value is not None}


def topic_of(described: Any, settings: Mapping[str, str]) -> Topic:
    partitions = described.partitions
    replication = min((len(part.replicas) for part in partitions), default=1)
    return Topic(described.name, len(partitions), settings, str(described.topic_id), replication)
